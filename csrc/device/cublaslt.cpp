#include "device/cublaslt.h"

#include <algorithm>
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

int64_t depth_of(const Product& product) { return product.transpose_a ? product.a.rows() : product.a.columns(); }

lt::Epilogue epilogue_of(const Product& product) {
  if (product.bias.defined()) return product.relu ? lt::kReluBias : lt::kBias;
  return product.relu ? lt::kRelu : lt::kDefault;
}

// The largest power of two up to 16 that divides the address.
uint32_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address) | 16;
  return static_cast<uint32_t>(bits & (~bits + 1));
}

void require_operand(const Tensor& tensor, DType dtype, int64_t rows, int64_t columns, DeviceKind device,
                     const char* name) {
  require_shape(tensor, dtype, {rows, columns}, name);
  TERCET_REQUIRE(tensor.device == device, "{} is not in the memory of {}", name, device_name(device));
  TERCET_REQUIRE(rows <= 1 || tensor.pitch >= columns, "the rows of {} overlap (pitch {})", name, tensor.pitch);
}

std::string describe(const Product& product) {
  return fmt::format("a product of {} and {} into {}", product.a.describe(), product.b.describe(),
                     product.c.describe());
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

void require_product(const Product& product, DeviceKind device) {
  const DType dtype = product.a.dtype;
  lt_type(dtype);
  TERCET_REQUIRE(product.a.rank == 2 && product.b.rank == 2 && product.c.rank == 2, "{}", describe(product));
  const int64_t m = product.c.rows(), n = product.c.columns(), k = depth_of(product);
  require_operand(product.a, dtype, product.transpose_a ? k : m, product.transpose_a ? m : k, device, "a of a product");
  require_operand(product.b, dtype, product.transpose_b ? n : k, product.transpose_b ? k : n, device, "b of a product");
  require_operand(product.c, product.c.dtype == DType::f32 ? DType::f32 : dtype, m, n, device, "c of a product");
  TERCET_REQUIRE(k > 0, "{} has no depth", describe(product));
  if (!product.bias.defined()) return;
  require_shape(product.bias, dtype, {n}, "bias of a product");
  TERCET_REQUIRE(product.beta == 0, "a product with bias and beta = {}", product.beta);
}

LtProducts::LtProducts(const lt::Functions& functions, void* workspace, void* stream)
    : lt_(functions), workspace_(workspace), stream_(stream) {
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

  Plan plan(const Product& product) const {
    Plan plan;
    plan.descriptor = descriptor(product);
    plan.a = layout(product.a);
    plan.b = layout(product.b);
    plan.c = layout(product.c);
    plan.algorithm = choose(product, plan);
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

  Object layout(const Tensor& tensor) const {
    // The pitch of a single row may be anything; the library wants at least the columns.
    const int64_t leading = std::max(tensor.pitch, tensor.columns());
    return make(lt_.layout_destroy, "a layout", [&](void** object) {
      return lt_.layout_create(object, lt_type(tensor.dtype), static_cast<uint64_t>(tensor.columns()),
                               static_cast<uint64_t>(tensor.rows()), leading);
    });
  }

  lt::Algorithm choose(const Product& product, const Plan& plan) const {
    const Object preference = make(lt_.preference_destroy, "a preference", lt_.preference_create);
    const auto prefer = [&](lt::PreferenceAttribute attribute, const auto& value) {
      require_success(lt_, lt_.preference_set(preference.get(), attribute, &value, sizeof(value)), "a preference");
    };
    prefer(lt::kMaxWorkspaceBytes, kWorkspaceBytes);
    prefer(lt::kMinAlignmentA, alignment_of(product.b.data));
    prefer(lt::kMinAlignmentB, alignment_of(product.a.data));
    prefer(lt::kMinAlignmentC, alignment_of(product.c.data));
    prefer(lt::kMinAlignmentD, alignment_of(product.c.data));
    lt::HeuristicResult result{};
    int found = 0;
    require_success(lt_,
                    lt_.heuristic(handle_, plan.descriptor.get(), plan.b.get(), plan.a.get(), plan.c.get(),
                                  plan.c.get(), preference.get(), 1, &result, &found),
                    describe(product).c_str());
    if (found == 0) fail_run("cuBLASLt has no algorithm for " + describe(product), "cuda");
    return result.algorithm;
  }

  const lt::Functions& lt_;
  lt::Handle handle_;
};

LtProducts::Plan& LtProducts::plan_of(const Product& product) {
  const auto flags = static_cast<int>(product.transpose_b) | static_cast<int>(product.transpose_a) << 1 |
                     static_cast<int>(product.beta != 0) << 2 | epilogue_of(product) << 3;
  const auto types = lt_type(product.a.dtype) | lt_type(product.c.dtype) << 8;
  const auto alignments = static_cast<int>(alignment_of(product.a.data) | alignment_of(product.b.data) << 8 |
                                           alignment_of(product.c.data) << 16);
  const Key key{product.c.rows(),
                product.c.columns(),
                depth_of(product),
                product.a.pitch,
                product.b.pitch,
                product.c.pitch,
                flags,
                types,
                alignments};
  const auto known = plans_.find(key);
  if (known != plans_.end()) return known->second;
  return plans_.emplace(key, Planner(lt_, handle_).plan(product)).first->second;
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
  require_success(
      lt_,
      lt_.matmul(handle_, plan.descriptor.get(), &alpha, product.b.data, plan.b.get(), product.a.data, plan.a.get(),
                 &beta, product.c.data, plan.c.get(), product.c.data, plan.c.get(), &plan.algorithm, workspace_,
                 kWorkspaceBytes, stream_),
      fmt::format("a product of {} and {} into {}", product.a.describe(), product.b.describe(), product.c.describe())
          .c_str());
}

}  // namespace tercet
