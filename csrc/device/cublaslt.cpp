#include "device/cublaslt.h"

#include <array>
#include <memory>

#include "base/error.h"

namespace tercet {
namespace {

lt::DataType lt_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return lt::kFloat;
    case DType::bf16:
      return lt::kBfloat16;
    case DType::f16:
      return lt::kHalf;
    default:
      fail_run(fmt::format("a product in {}", dtype_name(dtype)), "--dtype", "use fp32, bf16 or fp16");
  }
}

lt::Epilogue epilogue_of(const Product& product) {
  if (product.bias.defined()) return product.relu ? lt::kReluBias : lt::kBias;
  return product.relu ? lt::kRelu : lt::kDefault;
}

// Destroys a cuBLASLt object with its library's function.
struct Destroy {
  lt::Status (*function)(void*);
  void operator()(void* object) const { function(object); }
};
using Object = std::unique_ptr<void, Destroy>;

void require_success(const lt::Functions& functions, lt::Status status, const char* what) {
  if (status != 0)
    fail_run(fmt::format("cuBLASLt: {}: {}", what, functions.status_text(status)), "cuda",
             "run with CUBLASLT_LOG_LEVEL=5 to see the call");
}

}  // namespace

struct LtProducts::Plan {
  Object descriptor, a, b, c;
  lt::Algorithm algorithm{};
};

LtProducts::LtProducts(const lt::Functions& functions, ProductAlgorithms& algorithms, void* workspace, void* stream)
    : lt_(functions), algorithms_(algorithms), workspace_(workspace), stream_(stream) {
  require_success(lt_, lt_.create(&handle_), "create");
}

LtProducts::~LtProducts() {
  plans_.clear();
  lt_.destroy(handle_);
}

// Makes the library's objects for one product.
class LtProducts::Planner {
 public:
  Planner(const lt::Functions& functions, lt::Handle handle) : lt_(functions), handle_(handle) {}

  Plan plan(const Product& product, const ProductShape& shape, ProductAlgorithms& algorithms) const {
    Plan plan;
    plan.descriptor = descriptor(product);
    plan.a = layout(product.a, shape.pitch_a);
    plan.b = layout(product.b, shape.pitch_b);
    plan.c = layout(product.c, shape.pitch_c);
    const lt::Algorithm* kept = algorithms.find(shape);
    if (kept != nullptr && accepts(plan, *kept)) {
      plan.algorithm = *kept;
      return plan;
    }
    if (kept != nullptr) algorithms.refuse(shape);
    plan.algorithm = choose(product, shape, plan);
    algorithms.keep(shape, plan.algorithm);
    return plan;
  }

 private:
  template <class Create>
  Object make(lt::Status (*destroy)(void*), const char* what, Create&& create) const {
    void* object = nullptr;
    require_success(lt_, create(&object), what);
    return Object(object, {destroy});
  }

  Object descriptor(const Product& product) const {
    Object made = make(lt_.descriptor_destroy, "a descriptor",
                       [&](void** object) { return lt_.descriptor_create(object, lt::kCompute32f, lt::kFloat); });
    const auto set = [&](lt::DescriptorAttribute attribute, const auto& value, const char* what) {
      require_success(lt_, lt_.descriptor_set(made.get(), attribute, &value, sizeof(value)), what);
    };
    // A row-major operand is seen transposed, and b comes first.
    set(lt::kTransposeA, product.transpose_b ? lt::kTranspose : lt::kNoTranspose, "the first transpose");
    set(lt::kTransposeB, product.transpose_a ? lt::kTranspose : lt::kNoTranspose, "the second transpose");
    set(lt::kEpilogue, epilogue_of(product), "the epilogue");
    if (product.bias.defined()) {
      set(lt::kBiasType, lt_type(product.bias.dtype), "the type of the bias");
      set(lt::kBiasPointer, product.bias.data, "the bias");
    }
    return made;
  }

  Object layout(const Tensor& tensor, int64_t leading) const {
    return make(lt_.layout_destroy, "a layout", [&](void** object) {
      return lt_.layout_create(object, lt_type(tensor.dtype), static_cast<uint64_t>(tensor.columns()),
                               static_cast<uint64_t>(tensor.rows()), leading);
    });
  }

  Object preference(const ProductShape& shape) const {
    Object made = make(lt_.preference_destroy, "a preference", lt_.preference_create);
    const auto prefer = [&](lt::PreferenceAttribute attribute, const auto& value) {
      require_success(lt_, lt_.preference_set(made.get(), attribute, &value, sizeof(value)), "a preference");
    };
    const auto align = [&](lt::PreferenceAttribute attribute, int64_t bytes) {
      prefer(attribute, static_cast<uint32_t>(bytes));
    };
    prefer(lt::kMaxWorkspaceBytes, kWorkspaceBytes);
    prefer(lt::kReductionSchemes, lt::kReductionInComputeType);
    align(lt::kMinAlignmentA, shape.alignment_b);
    align(lt::kMinAlignmentB, shape.alignment_a);
    align(lt::kMinAlignmentC, shape.alignment_c);
    align(lt::kMinAlignmentD, shape.alignment_c);
    return made;
  }

  lt::Algorithm choose(const Product& product, const ProductShape& shape, const Plan& plan) const {
    const Object preferred = preference(shape);
    std::array<lt::HeuristicResult, kOffers> offers{};
    int found = 0;
    require_success(lt_,
                    lt_.heuristic(handle_, plan.descriptor.get(), plan.b.get(), plan.a.get(), plan.c.get(),
                                  plan.c.get(), preferred.get(), kOffers, offers.data(), &found),
                    product.describe().c_str());
    for (int i = 0; i < found; ++i)
      if (fits(offers.at(static_cast<size_t>(i)))) return offers.at(static_cast<size_t>(i)).algorithm;
    fail_run("cuBLASLt has no algorithm for " + product.describe(), "cuda");
  }

  bool accepts(const Plan& plan, const lt::Algorithm& algorithm) const {
    lt::HeuristicResult result{};
    return lt_.check(handle_, plan.descriptor.get(), plan.b.get(), plan.a.get(), plan.c.get(), plan.c.get(), &algorithm,
                     &result) == 0 &&
           fits(result);
  }

  static bool fits(const lt::HeuristicResult& result) {
    return result.state == 0 && result.workspace_bytes <= kWorkspaceBytes;
  }

  static constexpr int kOffers = 8;  // of the heuristic, the best first

  const lt::Functions& lt_;
  lt::Handle handle_;
};

LtProducts::Plan& LtProducts::plan_of(const Product& product) {
  const ProductShape shape = ProductShape::of(product);
  const auto known = plans_.find(shape);
  if (known != plans_.end()) return known->second;
  if (plans_.size() >= ProductAlgorithms::kMost) plans_.clear();
  return plans_.emplace(shape, Planner(lt_, handle_).plan(product, shape, algorithms_)).first->second;
}

void LtProducts::run(const Product& product) {
  require_product(product, product.c.device);
  if (product.c.elements() == 0) return;
  Plan& plan = plan_of(product);
  if (product.bias.defined())
    require_success(
        lt_, lt_.descriptor_set(plan.descriptor.get(), lt::kBiasPointer, &product.bias.data, sizeof(product.bias.data)),
        "the bias of a product");
  const auto alpha = static_cast<float>(product.alpha);
  const auto beta = static_cast<float>(product.beta);
  require_success(lt_,
                  lt_.matmul(handle_, plan.descriptor.get(), &alpha, product.b.data, plan.b.get(), product.a.data,
                             plan.a.get(), &beta, product.c.data, plan.c.get(), product.c.data, plan.c.get(),
                             &plan.algorithm, workspace_, kWorkspaceBytes, stream_),
                  product.describe().c_str());
}

}  // namespace tercet
