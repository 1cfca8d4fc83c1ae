// The parts of an iteration that a profile shows.
#include "ppo_world.h"

namespace tercet::ppo_test {

TEST_CASE("a profile of PPO shows its phases, their passes and the ops in them") {
  test::ProfileRanges ranges;
  WorldOptions options;
  options.settings = small_settings();
  options.data.prompts = prompts_of({{2, 5, 6}, {2, 7}});
  options.data.eval_prompts = options.data.prompts;
  options.profile = &ranges;
  World world(options);
  ranges.paths.clear();
  world.run(1, 1);
  world.trainer().evaluate();

  std::vector<std::string> phases;
  for (const std::string& path : ranges.paths)
    if (path.find(" > ") == std::string::npos && (phases.empty() || phases.back() != path)) phases.push_back(path);
  const auto at = [&](const char* phase) { return std::find(phases.begin(), phases.end(), phase) - phases.begin(); };
  CHECK(at("rollout") < at("score"));
  CHECK(at("score") < at("train actor"));
  CHECK(at("train actor") < at("train critic"));
  CHECK(at("train critic") < at("optimizer step"));
  CHECK(at("optimizer step") < at("evaluate"));
  REQUIRE(at("evaluate") < std::ssize(phases));

  CHECK(ranges.contain("rollout > paged_attention"));
  CHECK(ranges.contain("score > forward > attention_forward"));
  CHECK(ranges.contain("train actor > forward > attention_forward"));
  CHECK(ranges.contain("train actor > loss and backward > attention_backward"));
  CHECK(ranges.contain("train critic > loss and backward > ppo_value_loss"));
  CHECK(ranges.contain("optimizer step > adamw"));
  CHECK(ranges.open.empty());
  CHECK_FALSE(ranges.closed_too_often);
}

}  // namespace tercet::ppo_test
