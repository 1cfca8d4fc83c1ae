#include "model/model.h"

namespace tercet {
namespace {

const std::string kDecoder = "model.decoder.";

void add_unit(std::vector<UnitSpec>& units, std::string name, SegmentSpec matrices, SegmentSpec vectors) {
  UnitSpec unit{std::move(name), {}};
  if (matrices.elements > 0) unit.segments.push_back(std::move(matrices));
  if (vectors.elements > 0) unit.segments.push_back(std::move(vectors));
  if (!unit.segments.empty()) units.push_back(std::move(unit));
}

SegmentSpec matrices_segment() { return {.name = "matrices", .decay = true}; }
SegmentSpec vectors_segment() { return {.name = "vectors", .decay = false}; }

void add_norm(SegmentSpec& vectors, const OptConfig& config, const std::string& name) {
  if (!config.layer_norm_elementwise_affine) return;
  vectors.add(name + ".weight", {config.hidden_size});
  vectors.add(name + ".bias", {config.hidden_size});
}

void add_layer(std::vector<UnitSpec>& units, const OptConfig& config, int64_t layer) {
  const std::string name = fmt::format("layers.{}", layer);
  const std::string prefix = kDecoder + name + ".";
  const int64_t hidden = config.hidden_size;
  SegmentSpec matrices = matrices_segment();
  SegmentSpec vectors = vectors_segment();
  for (const char* projection : {"q_proj", "k_proj", "v_proj"})
    matrices.add(fmt::format("{}self_attn.{}.weight", prefix, projection), {hidden, hidden}, 0);
  matrices.add(prefix + "self_attn.out_proj.weight", {hidden, hidden}, 1);
  matrices.add(prefix + "fc1.weight", {config.ffn_dim, hidden}, 0);
  matrices.add(prefix + "fc2.weight", {hidden, config.ffn_dim}, 1);
  if (config.enable_bias) {
    for (const char* projection : {"q_proj", "k_proj", "v_proj"})
      vectors.add(fmt::format("{}self_attn.{}.bias", prefix, projection), {hidden}, 0);
    vectors.add(prefix + "self_attn.out_proj.bias", {hidden});
    vectors.add(prefix + "fc1.bias", {config.ffn_dim}, 0);
    vectors.add(prefix + "fc2.bias", {hidden});
  }
  add_norm(vectors, config, prefix + "self_attn_layer_norm");
  add_norm(vectors, config, prefix + "final_layer_norm");
  add_unit(units, name, std::move(matrices), std::move(vectors));
}

}  // namespace

std::vector<UnitSpec> opt_units(const OptConfig& config, Head head) {
  std::vector<UnitSpec> units;
  SegmentSpec embedding = matrices_segment();
  embedding.add(kDecoder + "embed_tokens.weight", {config.vocab_size, config.word_embed_proj_dim}, 0);
  embedding.add(kDecoder + "embed_positions.weight",
                {config.max_position_embeddings + OptConfig::kPositionOffset, config.hidden_size});
  if (config.has_projections())
    embedding.add(kDecoder + "project_in.weight", {config.hidden_size, config.word_embed_proj_dim});
  add_unit(units, "embedding", std::move(embedding), vectors_segment());

  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) add_layer(units, config, layer);

  SegmentSpec final_matrices = matrices_segment();
  SegmentSpec final_vectors = vectors_segment();
  if (config.has_projections())
    final_matrices.add(kDecoder + "project_out.weight", {config.word_embed_proj_dim, config.hidden_size});
  if (config.has_final_layer_norm()) add_norm(final_vectors, config, kDecoder + "final_layer_norm");
  add_unit(units, "final", std::move(final_matrices), std::move(final_vectors));

  if (head == Head::scalar) {
    SegmentSpec score = matrices_segment();
    score.add("score.weight", {1, config.word_embed_proj_dim});
    add_unit(units, "score", std::move(score), vectors_segment());
  }
  return units;
}

}  // namespace tercet
