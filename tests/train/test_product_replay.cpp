// The algorithms of matrix products go with a run: into its folder and its checkpoints, and back on resume.
#include <doctest/doctest.h>

#include "base/file.h"
#include "data/records.h"
#include "device/product_algorithms.h"
#include "store/hdf5_file.h"
#include "train/run_files.h"
#include "train/training_loop.h"

namespace tercet::testing {
namespace {

const ProductLibrary kLibrary = {.version = 130100, .gpu = "GPU", .multiprocessors = 132};

ProductShape shape_of_rows(int64_t rows) {
  return {.m = rows,
          .n = 4,
          .k = 4,
          .pitch_a = 4,
          .pitch_b = 4,
          .pitch_c = 4,
          .alignment_a = 16,
          .alignment_b = 16,
          .alignment_c = 16};
}

constexpr double kStepFlops = 6e9;

// A run whose step s has a product of s rows, for which algorithm s is chosen; `products` may be nullptr.
void run_steps(const std::string& path, int64_t steps, bool resume, ProductAlgorithms* products) {
  RunFolder folder({.path = path, .step = "sft", .resume = resume});
  folder.write_or_check_config(Json::object(), Json::object());
  CommonSettings settings;
  settings.resume = resume;
  StepHooks hooks;
  double flops = 0;
  hooks.flops = [&] { return flops; };
  hooks.peak_flops = 1e12;
  hooks.train = [&](int64_t step) {
    flops += kStepFlops;
    if (products != nullptr && products->find(shape_of_rows(step)) == nullptr)
      products->keep(shape_of_rows(step), {.data = {static_cast<uint64_t>(step)}});
    return Json::object();
  };
  hooks.checkpoint_bytes = [] { return uint64_t{0}; };
  hooks.save = [](Hdf5Writer&, Json&) {};
  hooks.load = [](const Hdf5Reader&, const Json&) {};
  hooks.summary = [](const Json&) { return std::string(); };
  hooks.products = products;
  run_training_loop(folder, settings, steps, hooks);
}

}  // namespace

TEST_CASE("timings have the rate of FLOP of each step, and its share of the device's peak where that is known") {
  const QuietTerminal quiet;
  const RunFiles files;
  run_steps(files.file("run"), 2, false, nullptr);
  int steps = 0;
  LineReader reader(files.file("run") + "/timings.jsonl");
  for (std::string line; reader.next(line);) {
    const Json timings = parse_json(line, reader.where());
    if (timings.find("time/step") == nullptr) continue;
    const double rate = kStepFlops / timings.at("time/step").as_double();
    CHECK(timings.at("flop_per_s").as_double() == doctest::Approx(rate).epsilon(1e-12));
    CHECK(timings.at("mfu").as_double() == doctest::Approx(rate / 1e12).epsilon(1e-12));
    ++steps;
  }
  CHECK(steps == 2);
}

namespace {

std::string log_of(const std::string& run) { return read_file(run + "/logs/rank-000.log"); }

}  // namespace

TEST_CASE("a resumed run has the algorithms of the run before, from its checkpoint") {
  const QuietTerminal quiet;
  const RunFiles files;
  const std::string run = files.file("run");
  ProductAlgorithms first(kLibrary);
  run_steps(run, 2, false, &first);
  const Json kept = first.to_json();
  CHECK(kept.at("shapes").as_object().size() == 2);
  CHECK(parse_json(read_file(run + "/products.json"), "products.json") == kept);
  CHECK(parse_json(Hdf5Reader(run + "/checkpoints/step-00000002.h5").text("state"), "state").at("product_algorithms") ==
        kept);

  ProductAlgorithms second(kLibrary);
  run_steps(run, 3, true, &second);
  REQUIRE(second.find(shape_of_rows(1)) != nullptr);
  CHECK(*second.find(shape_of_rows(1)) == lt::Algorithm{.data = {1}});
  CHECK(second.to_json().at("shapes").as_object().size() == 3);
  CHECK(parse_json(read_file(run + "/products.json"), "products.json") == second.to_json());
  CHECK(log_of(run).find("equality of bits") == std::string::npos);
}

TEST_CASE("a run that another GPU resumes says in its log that equality of bits ends, and goes on") {
  const QuietTerminal quiet;
  const RunFiles files;
  const std::string run = files.file("run");
  ProductAlgorithms first(kLibrary);
  run_steps(run, 2, false, &first);
  ProductAlgorithms second({.version = 130100, .gpu = "other GPU", .multiprocessors = 132});
  run_steps(run, 3, true, &second);
  CHECK(second.find(shape_of_rows(1)) == nullptr);
  CHECK(second.find(shape_of_rows(3)) != nullptr);
  CHECK(log_of(run).find("other GPU (132 multiprocessors): their algorithms are chosen anew, and equality of bits") !=
        std::string::npos);
}

TEST_CASE("a run without such algorithms keeps none, and a GPU that resumes it says so") {
  const QuietTerminal quiet;
  const RunFiles files;
  const std::string run = files.file("run");
  run_steps(run, 2, false, nullptr);
  CHECK_FALSE(std::filesystem::exists(run + "/products.json"));
  ProductAlgorithms second(kLibrary);
  run_steps(run, 3, true, &second);
  CHECK(log_of(run).find("step-00000002.h5 keeps no algorithms of products") != std::string::npos);
}

}  // namespace tercet::testing
