// Matrix products through cuBLASLt.
#pragma once

#include <map>
#include <string>
#include <tuple>

#include "device/cublaslt_api.h"
#include "device/gpu_stream.h"

namespace tercet {

// Queues products on one stream. cuBLASLt is column-major, so a row-major product C = A B is asked for as C^T = B^T
// A^T: the operands trade places and every row-major matrix [r, c] of pitch p is a column-major [c, r] with leading
// dimension p. Sums are fp32; bias (over the columns of c) and ReLU ride in the epilogue. The algorithm of a shape is
// chosen once, the first that the heuristic offers within the workspace, and kept.
class LtProducts {
 public:
  static constexpr size_t kWorkspaceBytes = size_t{32} << 20;

  // `workspace` holds kWorkspaceBytes of device memory that outlive this object; `stream` is the CUDA stream.
  LtProducts(const lt::Functions& functions, void* workspace, void* stream);
  ~LtProducts();
  LtProducts(const LtProducts&) = delete;
  LtProducts& operator=(const LtProducts&) = delete;

  // Throws Error(Fault::run) for shapes and dtypes that do not fit, and when cuBLASLt refuses the product.
  void run(const Product& product);

  // Different shapes so far.
  size_t shapes() const { return plans_.size(); }

 private:
  // What an algorithm depends on: sizes, pitches, dtypes, transposes, epilogue, accumulation, alignment of addresses.
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, int, int, int>;
  struct Plan;
  class Planner;

  Plan& plan_of(const Product& product);

  const lt::Functions& lt_;
  void* workspace_;
  void* stream_;
  lt::Handle handle_ = nullptr;
  std::map<Key, Plan> plans_;
};

// Throws Error(Fault::run) unless the operands of a product fit each other and lie on `device`.
void require_product(const Product& product, DeviceKind device);

}  // namespace tercet
