// Units: a model is a list of units, a unit is an ordered list of segments, a segment is named tensors in one flat
// buffer.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "device/memory_plan.h"
#include "shard/communicator.h"

namespace tercet {

// A tensor inside a segment. Tensors follow each other without gaps, so that neighbours can be read as one matrix.
struct TensorSpec {
  std::string name;  // full Hugging Face name
  std::vector<int64_t> shape;
  int64_t offset = 0;             // elements from the start of the segment
  int tensor_parallel_axis = -1;  // the axis that tensor parallelism would cut; -1: replicated

  int64_t elements() const;
};

struct SegmentSpec {
  std::string name;            // "matrices", "vectors"
  bool decay = false;          // weight decay applies
  bool trainable = true;       // has gradients, master weights and moments
  std::string group = "base";  // learning-rate group
  std::vector<TensorSpec> tensors;
  int64_t elements = 0;

  // Appends a tensor after the last one.
  void add(std::string tensor_name, std::vector<int64_t> shape, int tensor_parallel_axis = -1);
};

struct UnitSpec {
  std::string name;  // "embedding", "layers.3", "final", "score"
  std::vector<SegmentSpec> segments;
};

// Where a tensor (or several neighbours read as one) lies in a unit.
struct TensorRef {
  int segment = -1;
  int64_t offset = 0;
  int64_t rows = 0;
  int64_t columns = 0;  // 0: a vector of `rows` elements

  bool defined() const { return segment >= 0; }
};

// The reference of tensor `name` in the unit; undefined when the unit has no such tensor.
TensorRef find_tensor(const UnitSpec& unit, std::string_view name);

// The reference of `count` tensors of equal width that follow each other from `first` on, read as one taller matrix or
// longer vector. Undefined when the unit has no such tensor.
TensorRef find_joined(const UnitSpec& unit, std::string_view first, int count);

struct UnitOptions {
  std::string prefix;  // of all slot names: "actor", "critic", ...
  DType dtype = DType::f32;
  bool trainable = false;
  // The phases between which gradients must survive.
  Phase gradient_first = Phase::train_actor;
  Phase gradient_last = Phase::train_actor;
};

// What a rank holds of all units of one model: weights and, when trainable, gradients and Adam moments.
class UnitSet {
 public:
  // The flat buffers of one segment.
  struct Buffers {
    Tensor weights;   // [n] options.dtype
    Tensor master;    // [n] statistics dtype: what is trained, and rounded to `weights`; trainable 16-bit sets only
    Tensor gradient;  // [n] statistics dtype; trainable only
    Tensor m, v;      // [n] statistics dtype; trainable only

    // The weights in their finest precision.
    const Tensor& exact() const { return master.defined() ? master : weights; }
  };

  static std::vector<Slot> footprint(const std::vector<UnitSpec>& units, const UnitOptions& options);
  // Takes the slots of footprint(units, options). Weights are uninitialised; moments are zero.
  UnitSet(std::vector<UnitSpec> units, const UnitOptions& options, Arena& arena, Stream& stream,
          Communicator& communicator);
  UnitSet(const UnitSet&) = delete;
  UnitSet& operator=(const UnitSet&) = delete;

  const UnitOptions& options() const { return options_; }
  int count() const { return static_cast<int>(units_.size()); }
  const UnitSpec& spec(int unit) const { return units_.at(static_cast<size_t>(unit)); }
  // The unit called `name`; throws Error(Fault::run) when there is none.
  int index_of(std::string_view name) const;
  Buffers& buffers(int unit, int segment);
  Communicator& communicator() { return communicator_; }

  // Elements of all tensors, and of the trainable ones.
  int64_t parameters() const;

  // A tensor's weights (gradient, Adam's first moment) by full name, for import, export and tests.
  Tensor weight(std::string_view tensor_name);
  // The weights in their finest precision: what files hold.
  Tensor exact_weight(std::string_view tensor_name);
  Tensor gradient(std::string_view tensor_name);
  Tensor first_moment(std::string_view tensor_name);
  bool has(std::string_view tensor_name) const;

  void zero_gradients(Stream& stream);

  // Rounds the master weights, where there are any, to the weights: after exact weights were written.
  void round_weights(Stream& stream);

  // Throws Error(Fault::run) when a lease is still held.
  void require_idle() const;

 private:
  friend class UnitLease;
  // The view of a tensor in the buffer that `choose` picks; undefined when there is none.
  Tensor by_name(std::string_view tensor_name, Tensor (*choose)(const Buffers&));

  std::vector<UnitSpec> units_;
  UnitOptions options_;
  Communicator& communicator_;
  std::vector<std::vector<Buffers>> buffers_;
  std::vector<int> leases_;
};

// Holds a unit's weights, and its gradient when it has one, whole while it lives. The only way in which the model
// weights.
class UnitLease {
 public:
  UnitLease(UnitSet& set, int unit);
  ~UnitLease();
  UnitLease(const UnitLease&) = delete;
  UnitLease& operator=(const UnitLease&) = delete;

  // An undefined reference gives an undefined tensor.
  Tensor weight(const TensorRef& ref) const;
  Tensor gradient(const TensorRef& ref) const;

 private:
  UnitSet& set_;
  int unit_;
};

}  // namespace tercet
