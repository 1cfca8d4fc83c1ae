// What `bench kernels` times: each op of kernels/ at the shapes that a model gives it, with the least bytes and FLOP
// that the shape costs.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "app/bench_tensors.h"
#include "app/bench_timing.h"
#include "model/config.h"

namespace tercet {

struct BenchCase {
  std::string op;            // as in kernels/op_list.h
  std::string part;          // which use of the op: "fc1 + relu"; may be empty
  std::string model;         // "opt-1.3b"
  std::string shape;         // "8192 x 2048 -> 8192"
  DType dtype = DType::f32;  // of the op's elements
  // Each operand once: what must be read and written, and multiplications and additions of matrix products and
  // attention (causal: half of the square). Other arithmetic is not counted.
  int64_t bytes = 0;
  int64_t flops = 0;
  // Makes one set of tensors and what runs on it.
  std::function<BenchCall(BenchTensors&)> prepare;

  std::string name() const { return part.empty() ? op : op + ", " + part; }
  // max(bytes / copy rate, FLOP / reference_flops)
  double floor_seconds(const DeviceRates& rates) const;
};

// The sizes that shapes are made of.
struct BenchSizes {
  std::string model;
  OptConfig config;
  DType dtype = DType::f32;
  int64_t tokens = 0;           // T of a micro-batch
  int64_t sequence = 0;         // tokens of its sequences: 512, or half of T
  int64_t response = 0;         // response tokens of a sequence: half of it
  int64_t slots = 0;            // sequences decoded together: 64, or an eighth of T
  int64_t cached = 0;           // tokens that each of them attends to: 384, or what the model has positions for
  int64_t prompt_tokens = 0;    // of a forward over prompts: an eighth of T
  std::vector<int64_t> chunks;  // rows of logits at a time: the trainers' and 2048, as far as T has them
};

// Throws Error(Fault::input) when there are fewer than 16 tokens.
BenchSizes bench_sizes(const std::string& model, const OptConfig& config, DType dtype, int64_t tokens);

// All cases of a model, at least one for each op of kernels/.
std::vector<BenchCase> bench_cases(const BenchSizes& sizes);

// What the parts of bench_cases share.

// Standard deviation of weights.
inline constexpr double kBenchWeightScale = 0.02;

inline int64_t element_bytes(DType dtype) { return static_cast<int64_t>(dtype_size(dtype)); }

// Collects the cases of a model.
class BenchCaseList {
 public:
  explicit BenchCaseList(const BenchSizes& sizes) : sizes_(sizes) {}

  const BenchSizes& sizes() const { return sizes_; }
  // Fills in the model and the dtype.
  void add(BenchCase one);
  // The same for an op on statistics: log-probabilities, values, gradients and master weights.
  void add_statistics(BenchCase one);
  std::vector<BenchCase> take() { return std::move(cases_); }

 private:
  BenchSizes sizes_;
  std::vector<BenchCase> cases_;
};

// The parts of bench_cases.
void add_layer_cases(BenchCaseList& list);      // linear layers, norms, attention, embedding, dropout
void add_head_cases(BenchCaseList& list);       // logits, log-probabilities, rows of hidden states
void add_decoding_cases(BenchCaseList& list);   // KV cache, paged attention, sampling
void add_optimizer_cases(BenchCaseList& list);  // AdamW, norms, averages, casts
void add_loss_cases(BenchCaseList& list);       // ranking losses, PPO

}  // namespace tercet
