// What the streams of GPU devices (`cuda`, and `emu`, which stands in for it) offer to the launchers of kernels/*.cu
// beyond Stream: kernels, matrix products, scratch memory and captured graphs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "device/device.h"

namespace tercet {

// How many threads run a kernel, and the dynamic shared memory of each block.
struct LaunchShape {
  unsigned grid_x = 1, grid_y = 1, grid_z = 1;
  unsigned threads = 1;  // of a block, in one dimension
  size_t shared_bytes = 0;

  int64_t blocks() const { return int64_t{grid_x} * grid_y * grid_z; }
};

// c = alpha op(a) op(b) + beta c + bias, then max(., 0) when `relu`. Sums are fp32; c is rounded once.
struct Product {
  Tensor a;     // [m, k], or [k, m] when transpose_a; fp32, bf16 or fp16; any pitch
  Tensor b;     // [k, n], or [n, k] when transpose_b; dtype of a
  Tensor c;     // [m, n]; dtype of a, or fp32
  Tensor bias;  // [n] dtype of a, or not given; with beta = 0 only
  bool transpose_a = false;
  bool transpose_b = false;
  bool relu = false;
  double alpha = 1;
  double beta = 0;

  int64_t depth() const { return transpose_a ? a.rows() : a.columns(); }  // k
  // "a product of fp32[5, 3] and fp32[3, 7] into fp32[5, 7]"
  std::string describe() const;
};

// Throws Error(Fault::run) unless the operands of a product fit each other and lie on `device`.
void require_product(const Product& product, DeviceKind device);

class ProductAlgorithms;

// Work that was captured from a stream, to be queued again as a whole.
class Graph {
 public:
  virtual ~Graph() = default;
};

class GpuStream : public Stream {
 public:
  // Scratch memory of at least `bytes`, aligned to 256, for the op that is being queued: its contents are undefined,
  // and the next op of this stream gets the same memory. Throws Error(Fault::run) above kWorkspaceBytes.
  static constexpr size_t kWorkspaceBytes = size_t{64} << 20;
  virtual void* workspace(size_t bytes) = 0;

  // Queues a matrix product. m and n may be 0, k is at least 1.
  virtual void product(const Product& product) = 0;

  // The algorithms of this stream's products (product_algorithms.h), to be saved and restored with a run; nullptr where
  // products have but one.
  virtual ProductAlgorithms* product_algorithms() { return nullptr; }

  // Between the two calls work is recorded instead of run. Synchronising or waiting for an event of another stream in
  // between throws Error(Fault::run).
  virtual void begin_capture() = 0;
  virtual std::unique_ptr<Graph> end_capture() = 0;
  // Queues captured work. The graph must live until the stream is synchronised.
  virtual void launch(Graph& graph) = 0;
};

// What `queue` puts on the stream, captured. When it throws, the capture is ended and forgotten.
std::unique_ptr<Graph> capture(GpuStream& stream, const std::function<void()>& queue);

}  // namespace tercet
