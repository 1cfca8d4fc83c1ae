#include <doctest/doctest.h>

#include "base/file.h"
#include "base/json.h"
#include "rollout/small_model.h"
#include "store/safetensors.h"

namespace tercet::testing {
namespace {

void read_golden_weights(UnitSet& units, const TensorSource& source) {
  for (int unit = 0; unit < units.count(); ++unit)
    for (const SegmentSpec& segment : units.spec(unit).segments)
      for (const TensorSpec& spec : segment.tensors) {
        const Tensor tensor = units.weight(spec.name);
        REQUIRE(source.at(spec.name).elements() == tensor.elements());
        source.read(spec.name, tensor.dtype, tensor.data);
      }
}

std::vector<int32_t> ids_of(const Json& json) {
  std::vector<int32_t> ids;
  for (const Json& id : json.as_array()) ids.push_back(static_cast<int32_t>(id.as_int()));
  return ids;
}

TEST_CASE("greedy responses are those of transformers") {
  for (const std::string name : {"pre_ln", "post_ln", "gelu", "head80"})
    for (const DType dtype : {DType::f64, DType::f32}) {
      CAPTURE(name);
      CAPTURE(std::string(dtype_name(dtype)));
      const std::string folder = std::string(TERCET_SOURCE_DIR) + "/tests/golden/models/" + name;
      const auto json = [&](const std::string& file) {
        return parse_json(read_file(folder + "/" + file), folder + "/" + file);
      };
      const Json greedy = json("golden.json").at("greedy");
      const int64_t max_new_tokens = greedy.at("max_new_tokens").as_int();
      std::vector<GenerationRequest> requests;
      for (const Json& sample : greedy.at("samples").as_array())
        requests.push_back({ids_of(sample.at("prompt")), 0, max_new_tokens});

      // Fewer slots than prompts, so that sequences of different ages share forwards.
      SmallGenerator small(OptConfig::from_json(json("config.json"), folder), small_options(dtype, 4));
      read_golden_weights(small.model.units(), SafetensorsReader(folder + "/model.safetensors"));
      const auto generations = small.generate(requests, {.temperature = 0});
      for (size_t i = 0; i < requests.size(); ++i) {
        const auto expected = ids_of(greedy.at("samples").as_array()[i].at("continuation"));
        CHECK(generations[i].response == expected);
        CHECK(generations[i].finish == (expected.back() == 2 ? Finish::end : Finish::length));
      }
    }
}

}  // namespace
}  // namespace tercet::testing
