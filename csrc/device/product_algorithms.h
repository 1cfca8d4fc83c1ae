// The table of algorithms of matrix products, by which a resumed run repeats the bits of the run before it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "base/json.h"
#include "device/cublaslt_api.h"
#include "device/gpu_stream.h"

namespace tercet {

// What the algorithm of a product is chosen for.
struct ProductShape {
  int64_t m = 0, n = 0, k = 0;                    // of Product
  int64_t pitch_a = 0, pitch_b = 0, pitch_c = 0;  // elements
  DType in = DType::f32, out = DType::f32;
  // Bytes, a power of two up to 16; that of the bias is 0 when there is none.
  int64_t alignment_a = 0, alignment_b = 0, alignment_c = 0, alignment_bias = 0;
  bool transpose_a = false, transpose_b = false, relu = false, accumulate = false;

  static ProductShape of(const Product& product);
  auto operator<=>(const ProductShape&) const = default;

  // "5x7x3 bf16>fp32 pitch 11,9,10 align 16,16,8,0 transpose_b accumulate"
  std::string text() const;
  // The inverse of text(); throws Error(Fault::input) for another text.
  static ProductShape parse(const std::string& text);
};

// Products repeat bit for bit where library, GPU and algorithm are the same.
struct ProductLibrary {
  int64_t version = 0;  // cublasLtGetVersion()
  std::string gpu;      // "NVIDIA H200"
  int64_t multiprocessors = 0;

  bool operator==(const ProductLibrary&) const = default;
  // "cuBLASLt 130100 on NVIDIA H200 (132 multiprocessors)"
  std::string text() const;
};

// The algorithm of each shape that one stream has met. A choice is kept, saved with the run and found again by the run
// that resumes it. Choices are a function of library, GPU and shape, never of timing, so ranks on GPUs of one kind
// agree although their ragged batches bring each of them other shapes; all of them resume from rank 0's table. Every
// number of tokens is a shape of its own: kMost of them are kept, and the library chooses the others again.
//
// As JSON: {"cublaslt", "gpu", "multiprocessors", "algorithms": [128 hexadecimal digits, ...],
// "shapes": {ProductShape::text(): index into algorithms, ...}}.
class ProductAlgorithms {
 public:
  // Takes a message for the user.
  using Report = std::function<void(const std::string&)>;

  static constexpr size_t kMost = 4096;

  explicit ProductAlgorithms(ProductLibrary library) : library_(std::move(library)) {}

  // The algorithm kept for a shape, or nullptr.
  const lt::Algorithm* find(const ProductShape& shape);
  void keep(const ProductShape& shape, const lt::Algorithm& algorithm);
  // The library refuses the algorithm that was kept: it is forgotten, and the first time this is reported.
  void refuse(const ProductShape& shape);

  Json to_json() const;
  // Replaces the table by a saved one, before the first product. One that another library or GPU chose, or null (none
  // was saved), leaves the table empty and is reported: equality of bits with the run before ends there. Throws
  // Error(Fault::input, where = `where`) that says what is wrong with `saved`.
  void restore(const Json& saved, const std::string& where, Report report);

 private:
  ProductLibrary library_;
  std::map<ProductShape, lt::Algorithm> algorithms_;
  bool in_use_ = false;
  Report report_;  // until it was needed
};

}  // namespace tercet
