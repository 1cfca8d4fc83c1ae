#include "shard/unit.h"

#include "base/checked.h"
#include "kernels/elementwise.h"

namespace tercet {
namespace {

std::string slot_name(const UnitOptions& options, const UnitSpec& unit, const SegmentSpec& segment, const char* what) {
  return fmt::format("{}/{}/{}/{}", options.prefix, unit.name, segment.name, what);
}

const TensorSpec* find_spec(const UnitSpec& unit, std::string_view name, int& segment_index, size_t& tensor_index) {
  for (size_t s = 0; s < unit.segments.size(); ++s) {
    const auto& tensors = unit.segments[s].tensors;
    for (size_t t = 0; t < tensors.size(); ++t)
      if (tensors[t].name == name) {
        segment_index = static_cast<int>(s);
        tensor_index = t;
        return &tensors[t];
      }
  }
  return nullptr;
}

int64_t matrix_columns(const TensorSpec& tensor) { return tensor.shape.size() == 2 ? tensor.shape[1] : 0; }

Tensor view(const Tensor& flat, const TensorRef& ref) {
  if (!flat.defined()) return {};
  const Tensor part = flat.row_range(ref.offset, ref.rows * std::max<int64_t>(ref.columns, 1));
  return ref.columns == 0 ? part : part.reshaped({ref.rows, ref.columns});
}

}  // namespace

int64_t TensorSpec::elements() const {
  int64_t product = 1;
  for (const int64_t size : shape) product = checked_mul(product, size);
  return product;
}

void SegmentSpec::add(std::string tensor_name, std::vector<int64_t> shape, int tensor_parallel_axis) {
  TensorSpec tensor{std::move(tensor_name), std::move(shape), elements, tensor_parallel_axis};
  elements = checked_add(elements, tensor.elements());
  tensors.push_back(std::move(tensor));
}

TensorRef find_tensor(const UnitSpec& unit, std::string_view name) { return find_joined(unit, name, 1); }

TensorRef find_joined(const UnitSpec& unit, std::string_view first, int count) {
  TensorRef ref;
  size_t index = 0;
  const TensorSpec* tensor = find_spec(unit, first, ref.segment, index);
  if (tensor == nullptr) return {};
  const auto& tensors = unit.segments[static_cast<size_t>(ref.segment)].tensors;
  ref.offset = tensor->offset;
  ref.columns = matrix_columns(*tensor);
  for (size_t i = index; i < index + static_cast<size_t>(count); ++i) {
    TERCET_REQUIRE(i < tensors.size() && matrix_columns(tensors[i]) == ref.columns,
                   "{} cannot be joined with {} tensors", first, count);
    ref.rows += tensors[i].shape[0];
  }
  return ref;
}

std::vector<Slot> UnitSet::footprint(const std::vector<UnitSpec>& units, const UnitOptions& options) {
  std::vector<Slot> slots;
  for (const UnitSpec& unit : units)
    for (const SegmentSpec& segment : unit.segments) {
      const auto elements = static_cast<size_t>(segment.elements);
      const size_t state_bytes = elements * dtype_size(statistics_dtype(options.dtype));
      slots.push_back({slot_name(options, unit, segment, "weights"), MemoryClass::parameters,
                       elements * dtype_size(options.dtype), Phase::rollout, Phase::save});
      if (!options.trainable || !segment.trainable) continue;
      if (options.dtype != statistics_dtype(options.dtype))
        slots.push_back({slot_name(options, unit, segment, "master"), MemoryClass::optimizer, state_bytes,
                         Phase::rollout, Phase::save});
      slots.push_back({slot_name(options, unit, segment, "gradient"), MemoryClass::gradients, state_bytes,
                       options.gradient_first, options.gradient_last});
      for (const char* moment : {"m", "v"})
        slots.push_back({slot_name(options, unit, segment, moment), MemoryClass::optimizer, state_bytes, Phase::rollout,
                         Phase::save});
    }
  return slots;
}

UnitSet::UnitSet(std::vector<UnitSpec> units, const UnitOptions& options, Arena& arena, Stream& stream,
                 Communicator& communicator)
    : units_(std::move(units)), options_(options), communicator_(communicator), leases_(units_.size(), 0) {
  const DType state = statistics_dtype(options.dtype);
  for (const UnitSpec& unit : units_) {
    auto& unit_buffers = buffers_.emplace_back();
    for (const SegmentSpec& segment : unit.segments) {
      Buffers& buffers = unit_buffers.emplace_back();
      const auto take = [&](const char* what, DType dtype) {
        return arena.take(slot_name(options, unit, segment, what), dtype, {segment.elements});
      };
      buffers.weights = take("weights", options.dtype);
      if (!options.trainable || !segment.trainable) continue;
      if (options.dtype != state) buffers.master = take("master", state);
      buffers.gradient = take("gradient", state);
      for (Tensor* moment : {&buffers.m, &buffers.v}) {
        *moment = take(moment == &buffers.m ? "m" : "v", state);
        fill_zero(stream, *moment);
      }
    }
  }
}

int UnitSet::index_of(std::string_view name) const {
  for (size_t i = 0; i < units_.size(); ++i)
    if (units_[i].name == name) return static_cast<int>(i);
  fail_run(fmt::format("the model has no unit called {}", name));
}

UnitSet::Buffers& UnitSet::buffers(int unit, int segment) {
  return buffers_.at(static_cast<size_t>(unit)).at(static_cast<size_t>(segment));
}

int64_t UnitSet::parameters() const {
  int64_t sum = 0;
  for (const UnitSpec& unit : units_)
    for (const SegmentSpec& segment : unit.segments) sum += segment.elements;
  return sum;
}

Tensor UnitSet::by_name(std::string_view tensor_name, Tensor (*choose)(const Buffers&)) {
  for (size_t u = 0; u < units_.size(); ++u) {
    int segment = -1;
    size_t index = 0;
    const TensorSpec* tensor = find_spec(units_[u], tensor_name, segment, index);
    if (tensor == nullptr) continue;
    const Buffers& segment_buffers = buffers(static_cast<int>(u), segment);
    return view(choose(segment_buffers), {segment, tensor->offset, tensor->shape[0], matrix_columns(*tensor)});
  }
  return {};
}

Tensor UnitSet::weight(std::string_view tensor_name) {
  const Tensor tensor = by_name(tensor_name, [](const Buffers& buffers) { return buffers.weights; });
  TERCET_REQUIRE(tensor.defined(), "the model has no tensor called {}", tensor_name);
  return tensor;
}

Tensor UnitSet::exact_weight(std::string_view tensor_name) {
  const Tensor tensor = by_name(tensor_name, [](const Buffers& buffers) { return buffers.exact(); });
  TERCET_REQUIRE(tensor.defined(), "the model has no tensor called {}", tensor_name);
  return tensor;
}

Tensor UnitSet::gradient(std::string_view tensor_name) {
  const Tensor tensor = by_name(tensor_name, [](const Buffers& buffers) { return buffers.gradient; });
  TERCET_REQUIRE(tensor.defined(), "the model has no gradient of a tensor called {}", tensor_name);
  return tensor;
}

Tensor UnitSet::first_moment(std::string_view tensor_name) {
  const Tensor tensor = by_name(tensor_name, [](const Buffers& buffers) { return buffers.m; });
  TERCET_REQUIRE(tensor.defined(), "the model does not train a tensor called {}", tensor_name);
  return tensor;
}

bool UnitSet::has(std::string_view tensor_name) const {
  int segment = -1;
  size_t index = 0;
  for (const UnitSpec& unit : units_)
    if (find_spec(unit, tensor_name, segment, index) != nullptr) return true;
  return false;
}

void UnitSet::zero_gradients(Stream& stream) {
  for (auto& unit : buffers_)
    for (Buffers& segment : unit)
      if (segment.gradient.defined()) fill_zero(stream, segment.gradient);
}

void UnitSet::round_weights(Stream& stream) {
  for (auto& unit : buffers_)
    for (Buffers& segment : unit)
      if (segment.master.defined()) cast(stream, {.source = segment.master, .target = segment.weights});
}

void UnitSet::require_idle() const {
  for (size_t i = 0; i < units_.size(); ++i)
    TERCET_REQUIRE(leases_[i] == 0, "the unit {} is still held {} times", units_[i].name, leases_[i]);
}

UnitLease::UnitLease(UnitSet& set, int unit) : set_(set), unit_(unit) { ++set_.leases_.at(static_cast<size_t>(unit)); }

UnitLease::~UnitLease() { --set_.leases_[static_cast<size_t>(unit_)]; }

Tensor UnitLease::weight(const TensorRef& ref) const {
  return ref.defined() ? view(set_.buffers(unit_, ref.segment).weights, ref) : Tensor();
}

Tensor UnitLease::gradient(const TensorRef& ref) const {
  return ref.defined() ? view(set_.buffers(unit_, ref.segment).gradient, ref) : Tensor();
}

}  // namespace tercet
