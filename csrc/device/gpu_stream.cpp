#include "device/gpu_stream.h"

#include "base/error.h"

namespace tercet {
namespace {

void require_operand(const Tensor& tensor, DType dtype, int64_t rows, int64_t columns, DeviceKind device,
                     const char* name) {
  require_shape(tensor, dtype, {rows, columns}, name);
  TERCET_REQUIRE(tensor.device == device, "{} is not in the memory of {}", name, device_name(device));
  TERCET_REQUIRE(rows <= 1 || tensor.pitch >= columns, "the rows of {} overlap (pitch {})", name, tensor.pitch);
}

}  // namespace

std::unique_ptr<Graph> capture(GpuStream& stream, const std::function<void()>& queue) {
  stream.begin_capture();
  try {
    queue();
  } catch (...) {
    stream.end_capture();
    throw;
  }
  return stream.end_capture();
}

std::string Product::describe() const {
  return fmt::format("a product of {} and {} into {}", a.describe(), b.describe(), c.describe());
}

void require_product(const Product& product, DeviceKind device) {
  const DType dtype = product.a.dtype;
  TERCET_REQUIRE(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16, "a product in {}",
                 dtype_name(dtype));
  TERCET_REQUIRE(product.a.rank == 2 && product.b.rank == 2 && product.c.rank == 2, "{}", product.describe());
  const int64_t m = product.c.rows(), n = product.c.columns(), k = product.depth();
  require_operand(product.a, dtype, product.transpose_a ? k : m, product.transpose_a ? m : k, device, "a of a product");
  require_operand(product.b, dtype, product.transpose_b ? n : k, product.transpose_b ? k : n, device, "b of a product");
  require_operand(product.c, product.c.dtype == DType::f32 ? DType::f32 : dtype, m, n, device, "c of a product");
  TERCET_REQUIRE(k > 0, "{} has no depth", product.describe());
  if (!product.bias.defined()) return;
  require_shape(product.bias, dtype, {n}, "bias of a product");
  TERCET_REQUIRE(product.beta == 0, "a product with bias and beta = {}", product.beta);
}

}  // namespace tercet
