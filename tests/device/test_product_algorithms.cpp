#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "device/product_algorithms.h"

namespace tercet {
namespace {

const ProductLibrary kLibrary = {.version = 130100, .gpu = "NVIDIA H200", .multiprocessors = 132};

ProductShape small_shape() {
  return {.m = 5,
          .n = 7,
          .k = 3,
          .pitch_a = 11,
          .pitch_b = 9,
          .pitch_c = 10,
          .in = DType::bf16,
          .out = DType::f32,
          .alignment_a = 16,
          .alignment_b = 8,
          .alignment_c = 2};
}

// One shape per field, each different from the first in that field alone.
std::vector<ProductShape> neighbours() {
  std::vector<ProductShape> shapes(1, small_shape());
  const auto vary = [&](auto change) {
    shapes.push_back(small_shape());
    change(shapes.back());
  };
  vary([](ProductShape& s) { s.m = int64_t{1} << 40; });
  vary([](ProductShape& s) { s.n = 8; });
  vary([](ProductShape& s) { s.k = 4; });
  vary([](ProductShape& s) { s.pitch_a = 12; });
  vary([](ProductShape& s) { s.pitch_b = 10; });
  vary([](ProductShape& s) { s.pitch_c = 11; });
  vary([](ProductShape& s) { s.in = DType::f16; });
  vary([](ProductShape& s) { s.out = DType::bf16; });
  vary([](ProductShape& s) { s.alignment_a = 1; });
  vary([](ProductShape& s) { s.alignment_b = 16; });
  vary([](ProductShape& s) { s.alignment_c = 4; });
  vary([](ProductShape& s) { s.alignment_bias = 16; });
  vary([](ProductShape& s) { s.transpose_a = true; });
  vary([](ProductShape& s) { s.transpose_b = true; });
  vary([](ProductShape& s) { s.relu = true; });
  vary([](ProductShape& s) { s.accumulate = true; });
  return shapes;
}

lt::Algorithm algorithm(uint64_t seed) {
  lt::Algorithm made{};
  for (uint64_t& word : made.data) word = seed = seed * 6364136223846793005u + 1442695040888963407u;
  return made;
}

void ignore(const std::string&) {}

// A table that is valid but for one member.
Json changed(const std::string& member, Json value) {
  ProductAlgorithms table(kLibrary);
  table.keep(small_shape(), algorithm(1));
  Json json = table.to_json();
  json.set(member, std::move(value));
  return json;
}

Json with_shape(const std::string& text, Json index) {
  Json shapes = Json::object();
  shapes.set(text, std::move(index));
  return changed("shapes", shapes);
}

}  // namespace

TEST_CASE("the text of a product's shape says all of it and is read back") {
  CHECK(small_shape().text() == "5x7x3 bf16>fp32 pitch 11,9,10 align 16,8,2,0");
  for (const ProductShape& shape : neighbours()) {
    CAPTURE(shape.text());
    CHECK(ProductShape::parse(shape.text()) == shape);
    CHECK((shape == small_shape()) == (shape.text() == small_shape().text()));
  }
}

TEST_CASE("the shape of a product is taken from its operands; the pitch of a single row is its width") {
  alignas(16) static float memory[64];
  Product product{.a = Tensor(memory, DType::f32, DeviceKind::cpu, {3, 1}),
                  .b = Tensor(memory + 1, DType::f32, DeviceKind::cpu, {2, 3}),
                  .c = Tensor(memory + 2, DType::f32, DeviceKind::cpu, {1, 2}),
                  .bias = Tensor(memory + 4, DType::f32, DeviceKind::cpu, {2}),
                  .transpose_a = true,
                  .transpose_b = true,
                  .relu = true};
  product.c.pitch = 0;
  CHECK(ProductShape::of(product).text() == "1x2x3 fp32>fp32 pitch 1,3,2 align 16,4,8,16 transpose_a transpose_b relu");
  product = {.a = product.b, .b = product.a, .c = Tensor(memory, DType::f32, DeviceKind::cpu, {2, 1}), .beta = 1};
  CHECK(ProductShape::of(product).text() == "2x1x3 fp32>fp32 pitch 3,1,1 align 4,16,16,0 accumulate");
}

TEST_CASE("a table that was written as JSON is read back, each algorithm written once") {
  ProductAlgorithms table(kLibrary);
  uint64_t number = 0;
  for (const ProductShape& shape : neighbours()) table.keep(shape, algorithm(number++ % 3));
  const std::string text = table.to_json().dump(2);
  const Json json = parse_json(text, "products.json");
  CHECK(json.at("algorithms").as_array().size() == 3);
  CHECK(json.at("cublaslt").as_int() == 130100);
  ProductAlgorithms read(kLibrary);
  read.restore(json, "products.json", ignore);
  number = 0;
  for (const ProductShape& shape : neighbours()) {
    REQUIRE(read.find(shape) != nullptr);
    CHECK(*read.find(shape) == algorithm(number++ % 3));
  }
  CHECK(read.to_json().dump(2) == text);
}

TEST_CASE("a table that cannot be read is refused with what is wrong and where") {
  const std::string shape = small_shape().text();
  Json incomplete = Json::object();
  incomplete.set("cublaslt", 1).set("gpu", "GPU").set("multiprocessors", 1).set("algorithms", Json::array());
  const std::vector<std::pair<Json, std::string>> cases = {
      {Json("text"), "cublaslt"},
      {incomplete, "shapes"},
      {changed("cublaslt", "13"), "expected"},
      {changed("gpu", 1), "expected"},
      {changed("algorithms", Json::Array{Json("12")}), "\"12\" is not 128 hexadecimal digits"},
      {changed("algorithms", Json::Array{Json(std::string(128, 'g'))}), "is not 128 hexadecimal digits"},
      {changed("algorithms", Json::Array{Json(std::string(128, 'A'))}), "is not 128 hexadecimal digits"},
      {changed("algorithms", Json::array()), "has algorithm 0 of 0"},
      {with_shape(shape, -1), "has algorithm -1 of 1"},
      {with_shape(shape, 1), "has algorithm 1 of 1"},
      {with_shape(shape, "0"), "expected"},
      {with_shape("", 0), "\"\" is not the shape of a product"},
      {with_shape(shape + " ", 0), "is not the shape of a product"},
      {with_shape(shape + " transpose_c", 0), "is not the shape of a product"},
      {with_shape(shape + " relu transpose_a", 0), "is not the shape of a product"},
      {with_shape("5x7x3 bf16>fp99 pitch 11,9,10 align 16,8,2,0", 0), "fp99"},
      {with_shape("5x7x0 bf16>fp32 pitch 11,9,10 align 16,8,2,0", 0), "is not the shape of a product"},
      {with_shape("5x7x3 bf16>fp32 pitch 11,9,10 align 16,8,3,0", 0), "is not the shape of a product"},
      {with_shape("5x7x99999999999999999999 bf16>fp32 pitch 11,9,10 align 16,8,2,0", 0), "is not the shape"}};
  for (const auto& [json, message] : cases) {
    const std::string table_text = json.dump();
    CAPTURE(table_text);
    ProductAlgorithms table(kLibrary);
    try {
      table.restore(json, "step-1.h5", ignore);
      FAIL_CHECK("was not refused");
    } catch (const Error& error) {
      CHECK(error.fault() == Fault::input);
      const std::string text = error.what();
      CHECK_MESSAGE(text.find("step-1.h5: the algorithms of products cannot be read: ") == 0, text);
      CHECK_MESSAGE(text.find(message) != std::string::npos, text);
    }
  }
}

}  // namespace tercet
