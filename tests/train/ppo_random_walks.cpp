// Random walks on a graph, after trlX's randomwalks example: 21 nodes, the goal is node 0, a walk has at most 10 nodes,
// the reward is (10 - length) / (10 - shortest length), 0 for a walk that leaves the graph or misses the goal. The
// actor first learns from 1,000 random walks and then, by PPO, to walk straight.
#include <cmath>
#include <deque>
#include <set>

#include "base/rng.h"
#include "ppo_world.h"

namespace tercet::ppo_test {
namespace {

constexpr int kNodes = 21;
constexpr int kGoal = 0;
constexpr int kLongest = 10;
constexpr int32_t kFirstNodeId = 3;

struct Graph {
  std::vector<std::vector<int>> next;  // neighbours by node
  std::vector<int> shortest;           // nodes of the shortest path to the goal, both ends counted

  bool has(int from, int to) const {
    const auto& all = next[static_cast<size_t>(from)];
    return std::find(all.begin(), all.end(), to) != all.end();
  }
};

std::vector<int> shortest_paths(const Graph& graph) {
  std::vector<int> length(kNodes, kLongest + 1);
  length[kGoal] = 1;
  for (int round = 0; round < kNodes; ++round)
    for (int from = 0; from < kNodes; ++from)
      for (const int to : graph.next[static_cast<size_t>(from)])
        length[static_cast<size_t>(from)] =
            std::min(length[static_cast<size_t>(from)], length[static_cast<size_t>(to)] + 1);
  return length;
}

// An edge with probability 0.1 between any two nodes; drawn again until every node has a way to the goal that leaves
// room for reward.
Graph draw_graph() {
  for (uint64_t site = 0;; ++site) {
    const RandomStream random(1002, RandomPurpose::test, site);
    Graph graph;
    graph.next.resize(kNodes);
    for (int from = 1; from < kNodes; ++from)
      for (int to = 0; to < kNodes; ++to)
        if (from != to && random.uniform(static_cast<uint64_t>(from), static_cast<uint32_t>(to)) < 0.1)
          graph.next[static_cast<size_t>(from)].push_back(to);
    graph.shortest = shortest_paths(graph);
    if (*std::max_element(graph.shortest.begin(), graph.shortest.end()) < kLongest) return graph;
  }
}

int32_t id_of(int node) { return kFirstNodeId + node; }

// The reward of a response to the prompt [2, start].
double optimality(const Graph& graph, const ScoredResponse& response) {
  const int start = response.prompt.back() - kFirstNodeId;
  int node = start, length = 1;
  for (const int32_t id : response.response) {
    const int to = id - kFirstNodeId;
    if (id == 2 || to < 0 || !graph.has(node, to) || ++length > kLongest) return 0;
    node = to;
    if (node == kGoal)
      return static_cast<double>(kLongest - length) /
             static_cast<double>(kLongest - graph.shortest[static_cast<size_t>(start)]);
  }
  return 0;
}

std::vector<int32_t> random_walk(const Graph& graph, uint64_t number, uint64_t seed) {
  const RandomStream random(seed, RandomPurpose::test, 77);
  int node = 1 + static_cast<int>(random.below(kNodes - 1, number));
  std::vector<int32_t> ids = {2, id_of(node)};
  for (uint32_t step = 1; step < kLongest && node != kGoal; ++step) {
    const auto& next = graph.next[static_cast<size_t>(node)];
    node = next[random.below(next.size(), number, step)];
    ids.push_back(id_of(node));
  }
  if (node == kGoal) ids.push_back(2);
  return ids;
}

// Cross-entropy on random walks, as `sft` does it.
void imitate_random_walks(Stream& stream, ModelInstance& actor, const Graph& graph, uint64_t seed) {
  constexpr int64_t kWalks = 1000, kBatch = 100, kEpochs = 8;
  std::vector<std::vector<int32_t>> walks;
  for (uint64_t i = 0; i < kWalks; ++i) walks.push_back(random_walk(graph, i, seed));
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const std::vector<int64_t> order = epoch_order(kWalks, seed, static_cast<uint64_t>(epoch));
    for (int64_t begin = 0; begin < kWalks; begin += kBatch) {
      RaggedBatch batch;
      for (int64_t i = begin; i < begin + kBatch; ++i)
        batch.append(walks[static_cast<size_t>(order[static_cast<size_t>(i)])], 0);
      const PredictionRows rows = prediction_rows(batch, std::vector<int64_t>(kBatch, 2));
      const double d = -1 / static_cast<double>(rows.count());
      actor.units().zero_gradients(stream);
      actor.accumulate_token_loss(batch, rows, [d](Stream& s, const LmHead::Chunk& chunk) {
        to_device(s, std::vector<double>(static_cast<size_t>(chunk.log_prob.rows()), d), chunk.d_log_prob);
      });
      AdamW& optimizer = actor.optimizer();
      optimizer.step(stream, 2e-3, optimizer.gradient_norm(stream));
    }
  }
  // PPO begins with fresh moments, as a run from a model file does.
  for (int u = 0; u < actor.units().count(); ++u)
    for (int s = 0; s < static_cast<int>(actor.units().spec(u).segments.size()); ++s)
      for (const Tensor& moment : {actor.units().buffers(u, s).m, actor.units().buffers(u, s).v})
        stream.fill_zero(moment.data, static_cast<size_t>(moment.elements()) * dtype_size(moment.dtype));
  actor.optimizer().set_steps(0);
}

WorldOptions walk_options(const Graph& graph, uint64_t seed) {
  WorldOptions options;
  PpoSettings& s = options.settings = small_settings();
  s.seed = seed;
  s.rollouts = 120;
  s.minibatches = 1;
  s.ppo_epochs = 4;
  s.max_prompt_tokens = 2;
  s.max_new_tokens = kLongest;
  s.kl_coef = 0;
  s.missing_eos_penalty = 0;
  s.actor_lr = s.critic_lr = 2e-3;
  s.schedule = "linear";
  options.iterations = 60;
  options.init_seed = seed;
  options.config = tiny_config(kFirstNodeId + kNodes, 32, 2);
  options.config.init_std = 0.1;
  options.capacity_tokens = 2048;
  options.head_chunk_rows = 512;
  options.reward = [graph](const ScoredResponse& response) { return optimality(graph, response); };
  options.prepare_actor = [graph, seed](Stream& stream, ModelInstance& actor) {
    imitate_random_walks(stream, actor, graph, seed);
  };
  // Six prompts per start node, which differ in their noise.
  std::vector<std::vector<int32_t>> starts;
  for (int copy = 0; copy < 6; ++copy)
    for (int node = 1; node < kNodes; ++node) starts.push_back({2, id_of(node)});
  options.data.prompts = prompts_of(starts);
  options.data.eval_prompts = prompts_of(starts);
  return options;
}

struct Result {
  double start = 0, end = 0;
};

Result learn(const WorldOptions& options, const PpoTrainer::ExperienceTransform& transform = {}) {
  World world(options);
  Result result;
  result.start = world.trainer().evaluate().at("eval/score").as_double();
  if (transform) world.trainer().set_experience_transform(transform);
  world.run();
  result.end = world.trainer().evaluate().at("eval/score").as_double();
  return result;
}

bool solved(const Result& result) { return result.end >= 0.85 && result.end >= result.start + 0.15; }

}  // namespace

TEST_CASE("PPO walks straight on the random graph") {
  const Graph graph = draw_graph();
  const Result result = learn(walk_options(graph, 1));
  MESSAGE("optimality " << result.start << " -> " << result.end);
  CHECK(solved(result));
}

TEST_CASE("long: PPO walks straight on the random graph from each of five seeds") {
  const Graph graph = draw_graph();
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    const Result result = learn(walk_options(graph, seed));
    MESSAGE("seed " << seed << ": optimality " << result.start << " -> " << result.end);
    CHECK(solved(result));
  }
}

TEST_CASE("long: with the sign of the advantages flipped the walks get worse") {
  const Graph graph = draw_graph();
  const Result result = learn(walk_options(graph, 1), [](Experience& x) {
    for (double& a : x.advantages) a = -a;
  });
  MESSAGE("optimality " << result.start << " -> " << result.end);
  CHECK(result.end < result.start);
}

}  // namespace tercet::ppo_test
