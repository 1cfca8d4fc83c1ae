#include "device/product_algorithms.h"

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/error.h"

namespace tercet {
namespace {

constexpr size_t kWordDigits = 16;

// The largest power of two up to 16 that divides the address.
int64_t alignment_of(const void* address) {
  const auto bits = reinterpret_cast<uintptr_t>(address) | 16;
  return static_cast<int64_t>(bits & (~bits + 1));
}

// That of a single row may be anything.
int64_t pitch_of(const Tensor& tensor) { return std::max(tensor.pitch, tensor.columns()); }

bool is_alignment(int64_t bytes) { return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16; }

bool sensible(const ProductShape& s) {
  return std::min({s.m, s.n, s.k}) > 0 && std::min({s.pitch_a, s.pitch_b, s.pitch_c}) > 0 &&
         is_alignment(s.alignment_a) && is_alignment(s.alignment_b) && is_alignment(s.alignment_c) &&
         (s.alignment_bias == 0 || is_alignment(s.alignment_bias));
}

std::string hexadecimal(const lt::Algorithm& algorithm) {
  std::string text;
  for (const uint64_t word : algorithm.data) text += fmt::format("{:016x}", word);
  return text;
}

lt::Algorithm parse_algorithm(const std::string& text) {
  lt::Algorithm algorithm{};
  const char* at = text.data();
  if (text.size() == kWordDigits * std::size(algorithm.data))
    for (uint64_t& word : algorithm.data) at = std::from_chars(at, at + kWordDigits, word, 16).ptr;
  if (hexadecimal(algorithm) != text) fail_input(fmt::format("\"{}\" is not 128 hexadecimal digits", text));
  return algorithm;
}

ProductLibrary parse_library(const Json& saved) {
  return {.version = saved.at("cublaslt").as_int(),
          .gpu = saved.at("gpu").as_string(),
          .multiprocessors = saved.at("multiprocessors").as_int()};
}

std::map<ProductShape, lt::Algorithm> parse_table(const Json& saved) {
  std::vector<lt::Algorithm> algorithms;
  for (const Json& text : saved.at("algorithms").as_array()) algorithms.push_back(parse_algorithm(text.as_string()));
  std::map<ProductShape, lt::Algorithm> table;
  for (const auto& [text, index] : saved.at("shapes").as_object()) {
    if (index.as_int() < 0 || index.as_int() >= std::ssize(algorithms))
      fail_input(fmt::format("the product {} has algorithm {} of {}", text, index.as_int(), algorithms.size()));
    table.emplace(ProductShape::parse(text), algorithms[static_cast<size_t>(index.as_int())]);
  }
  return table;
}

}  // namespace

ProductShape ProductShape::of(const Product& p) {
  return {.m = p.c.rows(),
          .n = p.c.columns(),
          .k = p.depth(),
          .pitch_a = pitch_of(p.a),
          .pitch_b = pitch_of(p.b),
          .pitch_c = pitch_of(p.c),
          .in = p.a.dtype,
          .out = p.c.dtype,
          .alignment_a = alignment_of(p.a.data),
          .alignment_b = alignment_of(p.b.data),
          .alignment_c = alignment_of(p.c.data),
          .alignment_bias = p.bias.defined() ? alignment_of(p.bias.data) : 0,
          .transpose_a = p.transpose_a,
          .transpose_b = p.transpose_b,
          .relu = p.relu,
          .accumulate = p.beta != 0};
}

std::string ProductShape::text() const {
  std::string flags;
  for (const auto& [set, name] : {std::pair{transpose_a, " transpose_a"},
                                  {transpose_b, " transpose_b"},
                                  {relu, " relu"},
                                  {accumulate, " accumulate"}})
    if (set) flags += name;
  return fmt::format("{}x{}x{} {}>{} pitch {},{},{} align {},{},{},{}{}", m, n, k, dtype_name(in), dtype_name(out),
                     pitch_a, pitch_b, pitch_c, alignment_a, alignment_b, alignment_c, alignment_bias, flags);
}

ProductShape ProductShape::parse(const std::string& text) {
  ProductShape s;
  char in[8] = "", out[8] = "";
  const int read = std::sscanf(text.c_str(),
                               "%" SCNd64 "x%" SCNd64 "x%" SCNd64 " %4[a-z0-9]>%4[a-z0-9] pitch %" SCNd64 ",%" SCNd64
                               ",%" SCNd64 " align %" SCNd64 ",%" SCNd64 ",%" SCNd64 ",%" SCNd64,
                               &s.m, &s.n, &s.k, in, out, &s.pitch_a, &s.pitch_b, &s.pitch_c, &s.alignment_a,
                               &s.alignment_b, &s.alignment_c, &s.alignment_bias);
  const auto has = [&](const char* flag) { return text.find(flag) != std::string::npos; };
  s.transpose_a = has(" transpose_a");
  s.transpose_b = has(" transpose_b");
  s.relu = has(" relu");
  s.accumulate = has(" accumulate");
  constexpr int kFields = 12;
  if (read == kFields) {
    s.in = parse_dtype(in, text);
    s.out = parse_dtype(out, text);
  }
  if (read != kFields || !sensible(s) || s.text() != text)
    fail_input(fmt::format("\"{}\" is not the shape of a product", text));
  return s;
}

std::string ProductLibrary::text() const {
  return fmt::format("cuBLASLt {} on {} ({} multiprocessors)", version, gpu, multiprocessors);
}

const lt::Algorithm* ProductAlgorithms::find(const ProductShape& shape) {
  in_use_ = true;
  const auto found = algorithms_.find(shape);
  return found == algorithms_.end() ? nullptr : &found->second;
}

void ProductAlgorithms::keep(const ProductShape& shape, const lt::Algorithm& algorithm) {
  if (algorithms_.size() < kMost) algorithms_.insert_or_assign(shape, algorithm);
}

void ProductAlgorithms::refuse(const ProductShape& shape) {
  algorithms_.erase(shape);
  if (const Report report = std::exchange(report_, nullptr))
    report(
        fmt::format("{} refuses the algorithm that the run kept for the product {}: another is chosen, and equality "
                    "of bits with the run before ends here",
                    library_.text(), shape.text()));
}

Json ProductAlgorithms::to_json() const {
  Json::Array algorithms;
  Json::Object shapes;
  std::map<std::string, int64_t> index;
  for (const auto& [shape, algorithm] : algorithms_) {
    const auto [entry, is_new] = index.emplace(hexadecimal(algorithm), std::ssize(algorithms));
    if (is_new) algorithms.emplace_back(entry->first);
    shapes.emplace_back(shape.text(), entry->second);
  }
  Json json = Json::object();
  json.set("cublaslt", library_.version).set("gpu", library_.gpu).set("multiprocessors", library_.multiprocessors);
  return json.set("algorithms", std::move(algorithms)).set("shapes", std::move(shapes));
}

void ProductAlgorithms::restore(const Json& saved, const std::string& where, Report report) {
  TERCET_REQUIRE(!in_use_, "the algorithms of products are restored after the first product");
  algorithms_.clear();
  if (saved.is_null())
    return report(
        fmt::format("{} keeps no algorithms of products: they are chosen anew, and equality of bits with the "
                    "run before ends here",
                    where));
  ProductLibrary before;
  std::map<ProductShape, lt::Algorithm> table;
  try {
    before = parse_library(saved);
    table = parse_table(saved);
  } catch (const Error& error) {
    fail_input(fmt::format("the algorithms of products cannot be read: {}", error.what()), where,
               "resume from another checkpoint");
  }
  if (before != library_)
    return report(
        fmt::format("the products of the run before went through {}, those from here on through {}: their "
                    "algorithms are chosen anew, and equality of bits with the run before ends here",
                    before.text(), library_.text()));
  algorithms_ = std::move(table);
  report_ = std::move(report);
}

}  // namespace tercet
