// The products that tercet asks of cuBLASLt, carried out by a stand-in on host memory.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/rng.h"
#include "device/cublaslt.h"
#include "device/fake_cublaslt/fake_cublaslt.h"

namespace tercet {
namespace {

const lt::Functions& fake() { return lt::open_library(TERCET_FAKE_CUBLASLT); }

// The stand-in as it is at first.
lt::FakeControl& fresh_fake() {
  fake();  // which stays loaded
  void* library = dlopen(TERCET_FAKE_CUBLASLT, RTLD_NOW);
  const auto control = reinterpret_cast<lt::FakeControl* (*)()>(dlsym(library, "fake_cublaslt_control"));
  *control() = {};
  return *control();
}

const ProductLibrary kLibrary = {.version = 130100, .gpu = "GPU", .multiprocessors = 132};

// The products of one process.
struct Products {
  explicit Products(const ProductLibrary& library = kLibrary) : algorithms(library) {}

  // Restores what another process saved; returns the messages so far and to come.
  std::vector<std::string>& restore(const Json& saved) {
    algorithms.restore(saved, "step-1.h5", [this](const std::string& message) { messages.push_back(message); });
    return messages;
  }

  ProductAlgorithms algorithms;
  std::vector<char> workspace = std::vector<char>(LtProducts::kWorkspaceBytes);
  LtProducts queue{fake(), algorithms, workspace.data(), nullptr};
  std::vector<std::string> messages;
};

// A matrix of any dtype and pitch on the host; what lies between the rows is NaN.
class Matrix {
 public:
  Matrix(DType dtype, int64_t rows, int64_t columns, int64_t pitch, uint64_t seed)
      : tensor(nullptr, dtype, DeviceKind::cpu, {rows, columns}), memory_(rows * pitch * dtype_size(dtype), 0xFF) {
    tensor.data = memory_.data();
    tensor.pitch = pitch;
    const RandomStream random(seed, RandomPurpose::test);
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t column = 0; column < columns; ++column)
        set(row, column, random.normal(static_cast<uint64_t>(row * columns + column)));
  }

  double at(int64_t row, int64_t column) const {
    double value = 0;
    convert(tensor.dtype, address(row, column), DType::f64, &value, 1);
    return value;
  }
  void set(int64_t row, int64_t column, double value) {
    convert(DType::f64, &value, tensor.dtype, address(row, column), 1);
  }
  // Whether everything between the rows is as it was.
  bool padding_is_whole() const {
    const size_t size = dtype_size(tensor.dtype);
    for (int64_t row = 0; row < tensor.rows(); ++row)
      for (size_t i = (row * tensor.pitch + tensor.columns()) * size; i < (row + 1) * tensor.pitch * size; ++i)
        if (memory_[i] != 0xFF) return false;
    return true;
  }

  Tensor tensor;

 private:
  void* address(int64_t row, int64_t column) const {
    return const_cast<uint8_t*>(memory_.data()) + (row * tensor.pitch + column) * dtype_size(tensor.dtype);
  }

  std::vector<uint8_t> memory_;
};

struct Case {
  bool transpose_a, transpose_b, relu, bias;
  double alpha, beta;
  DType in, out;
};

void check_product(const Case& test) {
  const int64_t m = 5, n = 7, k = 3;
  Matrix a(test.in, test.transpose_a ? k : m, test.transpose_a ? m : k, 11, 1);
  Matrix b(test.in, test.transpose_b ? n : k, test.transpose_b ? k : n, 9, 2);
  Matrix c(test.out, m, n, 10, 3);
  Matrix bias(test.in, 1, n, n, 4);
  const Matrix before = c;
  Products products;
  Product product{.a = a.tensor,
                  .b = b.tensor,
                  .c = c.tensor,
                  .transpose_a = test.transpose_a,
                  .transpose_b = test.transpose_b,
                  .relu = test.relu,
                  .alpha = test.alpha,
                  .beta = test.beta};
  if (test.bias) product.bias = Tensor(bias.tensor.data, test.in, DeviceKind::cpu, {n});
  products.queue.run(product);
  // One rounding to the result's dtype: 2^-8 in bf16, 2^-11 in fp16, 2^-24 in fp32, doubled for the stand-in's own
  // float.
  const double unit = test.out == DType::bf16 ? 0x1p-8 : test.out == DType::f16 ? 0x1p-11 : 0x1p-23;
  for (int64_t row = 0; row < m; ++row)
    for (int64_t column = 0; column < n; ++column) {
      double sum = 0;
      for (int64_t i = 0; i < k; ++i)
        sum +=
            (test.transpose_a ? a.at(i, row) : a.at(row, i)) * (test.transpose_b ? b.at(column, i) : b.at(i, column));
      double expected = test.alpha * sum + test.beta * before.at(row, column) + (test.bias ? bias.at(0, column) : 0);
      if (test.relu) expected = std::max(expected, 0.0);
      CHECK(std::abs(c.at(row, column) - expected) <= unit * (1 + std::abs(expected)));
    }
  CHECK(c.padding_is_whole());
}

}  // namespace

TEST_CASE("a product equals the sum of its terms for every transpose, epilogue, dtype and pitch") {
  for (const DType in : {DType::f32, DType::bf16, DType::f16})
    for (const bool transpose_a : {false, true})
      for (const bool transpose_b : {false, true})
        for (const bool relu : {false, true})
          for (const bool bias : {false, true})
            for (const DType out : {in, DType::f32}) {
              check_product({transpose_a, transpose_b, relu, bias, 1, 0, in, out});
              if (!bias) check_product({transpose_a, transpose_b, relu, bias, -0.5, 1, in, out});
            }
}

TEST_CASE("one plan serves all products of a shape, whatever their bias") {
  Matrix a(DType::f32, 4, 4, 4, 1), b(DType::f32, 4, 4, 4, 2), c(DType::f32, 4, 4, 4, 3), d(DType::f32, 4, 4, 4, 3);
  Matrix first(DType::f32, 1, 4, 4, 5), second(DType::f32, 1, 4, 4, 6);
  Products products;
  Product product{.a = a.tensor, .b = b.tensor, .c = c.tensor};
  product.bias = Tensor(first.tensor.data, DType::f32, DeviceKind::cpu, {4});
  products.queue.run(product);
  product.c = d.tensor;
  product.bias = Tensor(second.tensor.data, DType::f32, DeviceKind::cpu, {4});
  products.queue.run(product);
  CHECK(products.queue.shapes() == 1);
  CHECK(d.at(2, 1) - c.at(2, 1) == doctest::Approx(second.at(0, 1) - first.at(0, 1)).epsilon(1e-5));  // fp32
}

TEST_CASE("products that do not fit are refused") {
  Matrix a(DType::f32, 4, 3, 3, 1), b(DType::f32, 4, 5, 5, 2), c(DType::f32, 4, 5, 5, 3);
  Products products;
  CHECK_THROWS_WITH(products.queue.run({.a = a.tensor, .b = b.tensor, .c = c.tensor}),
                    doctest::Contains("b of a product"));
  CHECK_THROWS_WITH(lt::open_library("/nowhere/libcublasLt.so"), doctest::Contains("cuBLASLt cannot be loaded"));
}

// Runs a product of [rows, 4] and [4, 4].
void run_rows(Products& products, int64_t rows) {
  Matrix a(DType::f32, rows, 4, 4, 1), b(DType::f32, 4, 4, 4, 2), c(DType::f32, rows, 4, 4, 3);
  products.queue.run({.a = a.tensor, .b = b.tensor, .c = c.tensor});
}

TEST_CASE("the first algorithm that fits is chosen, once per shape") {
  lt::FakeControl& control = fresh_fake();
  control.first = 2;
  control.refused = 2;
  control.too_large = 3;
  Products products;
  run_rows(products, 3);
  run_rows(products, 3);
  CHECK(control.last == 4);
  CHECK(control.choices == 1);
  control.first = 5;
  run_rows(products, 3);
  CHECK(control.last == 4);
  run_rows(products, 6);
  CHECK(control.last == 5);
  CHECK(control.choices == 2);
}

// What a process has saved that ran products of 3 and 6 rows with algorithm 4.
Json saved_table(lt::FakeControl& control) {
  control.first = 4;
  Products products;
  run_rows(products, 3);
  run_rows(products, 6);
  control = {};
  return products.algorithms.to_json();
}

TEST_CASE("a run with more shapes than are kept goes on, and what is remembered stays bounded") {
  fresh_fake();
  Products products;
  const auto most = static_cast<int64_t>(ProductAlgorithms::kMost);
  Matrix a(DType::f32, most + 2, 1, 1, 1), b(DType::f32, 1, 1, 1, 2), c(DType::f32, most + 2, 1, 1, 3);
  const auto run = [&](int64_t rows) {
    products.queue.run({.a = a.tensor.row_range(0, rows), .b = b.tensor, .c = c.tensor.row_range(0, rows)});
  };
  for (int64_t rows = 1; rows <= most + 2; ++rows) run(rows);
  CHECK(products.queue.shapes() == 2);
  CHECK(products.algorithms.to_json().at("shapes").as_object().size() == ProductAlgorithms::kMost);
  run(1);
  CHECK(products.queue.shapes() == 3);
}

TEST_CASE("a restored algorithm runs again without a new choice, and the table is kept as it was") {
  lt::FakeControl& control = fresh_fake();
  const Json saved = saved_table(control);
  Products products;
  CHECK(products.restore(saved).empty());
  run_rows(products, 3);
  CHECK(control.last == 4);
  CHECK(control.choices == 0);
  CHECK(products.algorithms.to_json() == saved);  // also what has not run yet
  run_rows(products, 5);                          // new to the table
  CHECK(control.last == 0);
  CHECK(products.messages.empty());
  CHECK_THROWS_WITH(products.restore(saved), doctest::Contains("after the first product"));
}

TEST_CASE("another library, GPU or number of multiprocessors chooses anew and says so once") {
  lt::FakeControl& control = fresh_fake();
  const Json saved = saved_table(control);
  for (const ProductLibrary& other : {ProductLibrary{130200, "GPU", 132}, ProductLibrary{130100, "other GPU", 132},
                                      ProductLibrary{130100, "GPU", 114}}) {
    CAPTURE(other.text());
    Products products(other);
    REQUIRE(products.restore(saved).size() == 1);
    CHECK(products.messages[0] ==
          "the products of the run before went through cuBLASLt 130100 on GPU (132 "
          "multiprocessors), those from here on through " +
              other.text() +
              ": their algorithms are chosen anew, and equality of bits with the run before "
              "ends here");
    run_rows(products, 3);
    CHECK(control.last == 0);
    CHECK(products.messages.size() == 1);
    CHECK(products.algorithms.to_json().at("shapes").as_object().size() == 1);
  }
  Products products;
  REQUIRE(products.restore(Json()).size() == 1);
  CHECK(products.messages[0].find("step-1.h5 keeps no algorithms of products") != std::string::npos);
}

TEST_CASE("an algorithm that the library refuses, or that no longer fits, is replaced, which is said once") {
  lt::FakeControl& control = fresh_fake();
  const Json saved = saved_table(control);
  for (int lt::FakeControl::*trouble : {&lt::FakeControl::refused, &lt::FakeControl::too_large}) {
    control = {};
    control.*trouble = 4;
    Products products;
    CHECK(products.restore(saved).empty());
    for (const int64_t rows : {3, 6}) {
      run_rows(products, rows);
      CHECK(control.last == 0);
    }
    REQUIRE(products.messages.size() == 1);
    CHECK(products.messages[0].find("refuses the algorithm that the run kept for the product 3x4x4 fp32>fp32") !=
          std::string::npos);
    CHECK(products.algorithms.to_json().at("algorithms").as_array().size() == 1);
    CHECK(products.algorithms.to_json() != saved);
  }
}

}  // namespace tercet
