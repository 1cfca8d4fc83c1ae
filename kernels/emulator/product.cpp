#include "kernels/emulator/product.h"

#include <algorithm>
#include <vector>

#include "base/checked.h"
#include "base/error.h"
#include "kernels/emulator/device_memory.h"
#include "kernels/gemm.h"

namespace tercet::emu {
namespace {

// A matrix in fp32: the tensor's own memory, or a copy.
class Widened {
 public:
  explicit Widened(const Tensor& tensor) {
    if (tensor.dtype == DType::f32) {
      data_ = static_cast<float*>(tensor.data);
      pitch_ = tensor.pitch;
      return;
    }
    pitch_ = tensor.columns();
    copy_.resize(static_cast<size_t>(tensor.elements()));
    data_ = copy_.data();
    for (int64_t row = 0; row < tensor.rows(); ++row)
      convert(tensor.dtype, tensor.row_range(row, 1).data, DType::f32, data_ + row * pitch_, pitch_);
  }

  float* data() const { return data_; }
  int64_t pitch() const { return pitch_; }

 private:
  std::vector<float> copy_;
  float* data_;
  int64_t pitch_;
};

void require_allocated(const Tensor& tensor, const char* name) {
  if (tensor.elements() == 0) return;
  const auto elements = static_cast<size_t>((tensor.rows() - 1) * tensor.pitch + tensor.columns());
  DeviceMemory::instance().require(tensor.data, elements * dtype_size(tensor.dtype), name);
}

void add_bias_and_activate(const Product& product, float* c, int64_t pitch) {
  const int64_t columns = product.c.columns();
  std::vector<float> bias(static_cast<size_t>(columns), 0.0f);
  if (product.bias.defined()) convert(product.bias.dtype, product.bias.data, DType::f32, bias.data(), columns);
  for (int64_t row = 0; row < product.c.rows(); ++row)
    for (int64_t column = 0; column < columns; ++column) {
      float& value = c[row * pitch + column];
      value += bias[static_cast<size_t>(column)];
      if (product.relu && value < 0) value = 0;
    }
}

}  // namespace

void require_emulated_product(const Product& product) {
  require_product(product, DeviceKind::emu);
  require_allocated(product.a, "a of a product");
  require_allocated(product.b, "b of a product");
  require_allocated(product.c, "c of a product");
  if (product.bias.defined()) require_allocated(product.bias, "bias of a product");
}

void compute_product(const Product& product) {
  const Widened a(product.a), b(product.b);
  const Tensor& c = product.c;
  const int64_t m = c.rows(), n = c.columns();
  if (m == 0 || n == 0) return;
  std::vector<float> sums(static_cast<size_t>(m * n), 0.0f);
  if (product.beta != 0)
    for (int64_t row = 0; row < m; ++row)
      convert(c.dtype, c.row_range(row, 1).data, DType::f32, sums.data() + row * n, n);
  const auto flag = [](bool transposed) { return transposed ? Transpose::yes : Transpose::no; };
  blas_gemm({flag(product.transpose_a), flag(product.transpose_b), m, n, product.depth()}, product.alpha, a.data(),
            a.pitch(), b.data(), b.pitch(), product.beta, sums.data(), n);
  if (product.bias.defined() || product.relu) add_bias_and_activate(product, sums.data(), n);
  for (int64_t row = 0; row < m; ++row)
    convert(DType::f32, sums.data() + row * n, c.dtype, c.row_range(row, 1).data, n);
}

}  // namespace tercet::emu
