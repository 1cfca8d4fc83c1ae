// A cuBLASLt on host memory, so that the descriptors, layouts and epilogues that tercet asks for are carried out, and
// checked for sense, on machines without a GPU. Matrices are column-major, sums are in double.
#include "fake_cublaslt.h"

#include <cstring>

#include "device/dtype.h"

namespace tercet::lt {
namespace {

constexpr Status kSuccess = 0;
constexpr Status kInvalid = 7;
constexpr Status kNotSupported = 15;
constexpr uint64_t kMark = 0x7465726365740001;  // of an algorithm that the heuristic gave
constexpr int kAlgorithms = 8;

FakeControl control;

struct FakeDescriptor {
  int32_t transpose_a = kNoTranspose, transpose_b = kNoTranspose, epilogue = kDefault, bias_type = -1;
  const void* bias = nullptr;
};
struct FakeLayout {
  DataType type;
  int64_t rows, columns, leading;
};
struct FakePreference {
  uint64_t workspace = 0;
  uint32_t reduction_schemes = 7;
  uint32_t alignment[4] = {};
};

DType dtype_of(int type) { return type == kFloat ? DType::f32 : type == kHalf ? DType::f16 : DType::bf16; }

double load(const void* memory, int type, int64_t index) {
  double value = 0;
  const DType dtype = dtype_of(type);
  convert(dtype, static_cast<const char*>(memory) + index * static_cast<int64_t>(dtype_size(dtype)), DType::f64, &value,
          1);
  return value;
}

void store(void* memory, int type, int64_t index, double value) {
  const DType dtype = dtype_of(type);
  const auto single = static_cast<float>(value);
  convert(DType::f32, &single, dtype, static_cast<char*>(memory) + index * static_cast<int64_t>(dtype_size(dtype)), 1);
}

double at(const void* memory, const FakeLayout& layout, bool transposed, int64_t row, int64_t column) {
  return load(memory, layout.type, transposed ? row * layout.leading + column : column * layout.leading + row);
}

bool sensible(const FakeLayout& layout) {
  return layout.rows > 0 && layout.columns > 0 && layout.leading >= layout.rows;
}

// The depth of the product, or -1 when the layouts do not fit each other.
int64_t depth_of(const FakeDescriptor& d, const FakeLayout& a, const FakeLayout& b, const FakeLayout& c) {
  const bool ta = d.transpose_a == kTranspose, tb = d.transpose_b == kTranspose;
  const int64_t m = ta ? a.columns : a.rows, k = ta ? a.rows : a.columns;
  const int64_t kb = tb ? b.columns : b.rows, n = tb ? b.rows : b.columns;
  const bool fits = m == c.rows && n == c.columns && k == kb && a.type == b.type;
  return fits && sensible(a) && sensible(b) && sensible(c) ? k : -1;
}

// Whether the algorithm is one of the library's and not refused.
bool is_usable(const Algorithm& algorithm) {
  return algorithm.data[0] == kMark && algorithm.data[1] < kAlgorithms &&
         static_cast<int>(algorithm.data[1]) != control.refused;
}

bool is_too_large(const Algorithm& algorithm) { return static_cast<int>(algorithm.data[1]) == control.too_large; }

HeuristicResult offer(int number, const FakePreference& preference) {
  HeuristicResult result{};
  result.algorithm.data[0] = kMark;
  result.algorithm.data[1] = static_cast<uint64_t>(number);
  if (is_too_large(result.algorithm)) result.workspace_bytes = preference.workspace + 1;
  if (number == control.refused) result.state = kNotSupported;
  return result;
}

template <class T>
Status destroy(void* object) {
  delete static_cast<T*>(object);
  return kSuccess;
}

}  // namespace
}  // namespace tercet::lt

using namespace tercet::lt;

extern "C" {

FakeControl* fake_cublaslt_control() { return &control; }

Status cublasLtCreate(Handle* handle) {
  *handle = new int(0);
  return kSuccess;
}
Status cublasLtDestroy(Handle handle) { return destroy<int>(handle); }
size_t cublasLtGetVersion() { return 130000; }
const char* cublasLtGetStatusString(Status status) { return status == kSuccess ? "success" : "invalid value"; }

Status cublasLtMatmulDescCreate(Descriptor* descriptor, ComputeType compute, DataType scale) {
  if (compute != kCompute32f || scale != kFloat) return kInvalid;
  *descriptor = new FakeDescriptor;
  return kSuccess;
}
Status cublasLtMatmulDescDestroy(Descriptor descriptor) { return destroy<FakeDescriptor>(descriptor); }
Status cublasLtMatmulDescSetAttribute(Descriptor descriptor, DescriptorAttribute attribute, const void* value,
                                      size_t bytes) {
  auto& d = *static_cast<FakeDescriptor*>(descriptor);
  if (bytes != (attribute == kBiasPointer ? sizeof(void*) : sizeof(int32_t))) return kInvalid;
  switch (attribute) {
    case kTransposeA:
      std::memcpy(&d.transpose_a, value, bytes);
      return kSuccess;
    case kTransposeB:
      std::memcpy(&d.transpose_b, value, bytes);
      return kSuccess;
    case kEpilogue:
      std::memcpy(&d.epilogue, value, bytes);
      return kSuccess;
    case kBiasType:
      std::memcpy(&d.bias_type, value, bytes);
      return kSuccess;
    case kBiasPointer:
      std::memcpy(&d.bias, value, bytes);
      return kSuccess;
  }
  return kInvalid;
}

Status cublasLtMatrixLayoutCreate(Layout* layout, DataType type, uint64_t rows, uint64_t columns, int64_t leading) {
  *layout = new FakeLayout{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), leading};
  return kSuccess;
}
Status cublasLtMatrixLayoutDestroy(Layout layout) { return destroy<FakeLayout>(layout); }

Status cublasLtMatmulPreferenceCreate(Preference* preference) {
  *preference = new FakePreference;
  return kSuccess;
}
Status cublasLtMatmulPreferenceDestroy(Preference preference) { return destroy<FakePreference>(preference); }
Status cublasLtMatmulPreferenceSetAttribute(Preference preference, PreferenceAttribute attribute, const void* value,
                                            size_t bytes) {
  auto& p = *static_cast<FakePreference*>(preference);
  if (attribute == kMaxWorkspaceBytes) {
    if (bytes != sizeof(p.workspace)) return kInvalid;
    std::memcpy(&p.workspace, value, bytes);
    return kSuccess;
  }
  if (bytes != sizeof(uint32_t)) return kInvalid;
  if (attribute == kReductionSchemes) {
    std::memcpy(&p.reduction_schemes, value, bytes);
    return kSuccess;
  }
  std::memcpy(&p.alignment[attribute - kMinAlignmentA], value, bytes);
  return kSuccess;
}

Status cublasLtMatmulAlgoGetHeuristic(Handle, Descriptor descriptor, Layout a, Layout b, Layout c, Layout d,
                                      Preference preference, int requested, HeuristicResult* results, int* found) {
  const auto& p = *static_cast<FakePreference*>(preference);
  const auto& operands = *static_cast<FakeDescriptor*>(descriptor);
  *found = 0;
  ++control.choices;
  if (requested < 1 || c != d || p.workspace == 0) return kInvalid;
  // Parts of a sum are not to be rounded to the result's type.
  if (p.reduction_schemes != kReductionInComputeType) return kInvalid;
  for (const uint32_t alignment : p.alignment)
    if (alignment == 0 || alignment > 16) return kInvalid;
  if (depth_of(operands, *static_cast<FakeLayout*>(a), *static_cast<FakeLayout*>(b), *static_cast<FakeLayout*>(c)) < 0)
    return kInvalid;
  for (int number = control.first; number < kAlgorithms && *found < requested; ++number)
    results[(*found)++] = offer(number, p);
  return kSuccess;
}

Status cublasLtMatmulAlgoCheck(Handle, Descriptor descriptor, Layout a, Layout b, Layout c, Layout d,
                               const Algorithm* algorithm, HeuristicResult* result) {
  ++control.checks;
  const int64_t depth = depth_of(*static_cast<FakeDescriptor*>(descriptor), *static_cast<FakeLayout*>(a),
                                 *static_cast<FakeLayout*>(b), *static_cast<FakeLayout*>(c));
  if (depth < 0 || c != d || algorithm->data[0] != kMark) return kInvalid;
  *result = {};
  if (is_too_large(*algorithm)) result->workspace_bytes = SIZE_MAX;
  return is_usable(*algorithm) ? kSuccess : kNotSupported;
}

Status cublasLtMatmul(Handle, Descriptor descriptor, const void* alpha, const void* a, Layout a_layout, const void* b,
                      Layout b_layout, const void* beta, const void* c, Layout c_layout, void* d, Layout d_layout,
                      const Algorithm* algorithm, void* workspace, size_t workspace_bytes, void*) {
  const auto& operands = *static_cast<FakeDescriptor*>(descriptor);
  const auto &la = *static_cast<FakeLayout*>(a_layout), &lb = *static_cast<FakeLayout*>(b_layout),
             &lc = *static_cast<FakeLayout*>(c_layout);
  const int64_t depth = depth_of(operands, la, lb, lc);
  if (depth < 0 || c != d || c_layout != d_layout || !is_usable(*algorithm)) return kInvalid;
  if (is_too_large(*algorithm)) return kInvalid;
  control.last = static_cast<int>(algorithm->data[1]);
  if (workspace == nullptr || workspace_bytes == 0) return kInvalid;
  const double scale = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  for (int64_t column = 0; column < lc.columns; ++column)
    for (int64_t row = 0; row < lc.rows; ++row) {
      double sum = 0;
      for (int64_t k = 0; k < depth; ++k)
        sum += at(a, la, operands.transpose_a == kTranspose, row, k) *
               at(b, lb, operands.transpose_b == kTranspose, k, column);
      const int64_t index = column * lc.leading + row;
      double value = scale * sum + (keep == 0 ? 0 : keep * load(c, lc.type, index));
      if (operands.epilogue & kBias) value += load(operands.bias, operands.bias_type, row);
      if (operands.epilogue & kRelu) value = value > 0 ? value : 0;
      store(d, lc.type, index, value);
    }
  return kSuccess;
}
}
