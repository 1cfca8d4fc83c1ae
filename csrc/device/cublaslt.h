// Matrix products through cuBLASLt.
#pragma once

#include <map>

#include "device/cublaslt_api.h"
#include "device/gpu_stream.h"
#include "device/product_algorithms.h"

namespace tercet {

// Queues products on one stream. cuBLASLt is column-major, so a row-major product C = A B is asked for as C^T = B^T
// A^T: the operands trade places and every row-major matrix [r, c] of pitch p is a column-major [c, r] with leading
// dimension p. Sums are fp32, also those of the parts of a sum; bias (over the columns of c) and ReLU ride in the
// epilogue. The algorithm of a shape is the one that `algorithms` keeps, as long as the library takes it, else the
// first that the heuristic offers within the workspace.
class LtProducts {
 public:
  static constexpr size_t kWorkspaceBytes = size_t{32} << 20;

  // `workspace` holds kWorkspaceBytes of device memory; `stream` is the CUDA stream. All outlive this object.
  LtProducts(const lt::Functions& functions, ProductAlgorithms& algorithms, void* workspace, void* stream);
  ~LtProducts();
  LtProducts(const LtProducts&) = delete;
  LtProducts& operator=(const LtProducts&) = delete;

  // Throws Error(Fault::run) for shapes and dtypes that do not fit, and when cuBLASLt refuses the product.
  void run(const Product& product);

  // Different shapes so far, of which the latest are remembered.
  size_t shapes() const { return plans_.size(); }

 private:
  struct Plan;
  class Planner;

  Plan& plan_of(const Product& product);

  const lt::Functions& lt_;
  ProductAlgorithms& algorithms_;
  void* workspace_;
  void* stream_;
  lt::Handle handle_ = nullptr;
  std::map<ProductShape, Plan> plans_;
};

}  // namespace tercet
