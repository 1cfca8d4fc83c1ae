#include "model/hf_tensors.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace tercet {
namespace {

constexpr int64_t kPartElements = int64_t{1} << 20;

// The smallest magnitude that rounds to infinity.
double overflow_bound(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return 65520;
    case DType::bf16:
      return 0x1.FFp127;
    case DType::f32:
      return 0x1.FFFFFFp127;
    default:
      return INFINITY;
  }
}

template <class T>
void require_fits(const std::vector<T>& part, int64_t first, const TensorInfo& info, DType dtype,
                  const std::string& path) {
  const double bound = overflow_bound(dtype);
  for (size_t i = 0; i < part.size(); ++i) {
    if (std::abs(static_cast<double>(part[i])) < bound) continue;
    const int64_t element = first + static_cast<int64_t>(i);
    if (!std::isfinite(part[i]))
      fail_input(fmt::format("{}: element {} is {}", info.name, element, part[i]), path,
                 "the weights are damaged; use another file");
    fail_input(
        fmt::format("{}: element {} is {}, beyond the range of {}", info.name, element, part[i], dtype_name(dtype)),
        path, "choose another --dtype");
  }
}

template <class T>
void copy_as(const TensorSource& source, const TensorInfo& info, int64_t first, int64_t count, DType target,
             const WritePart& write) {
  std::vector<T> part;
  for (int64_t done = 0; done < count; done += kPartElements) {
    part.resize(static_cast<size_t>(std::min(kPartElements, count - done)));
    const auto size = static_cast<int64_t>(part.size());
    source.read(info.name, DTypeOf<T>::value, first + done, size, part.data());
    require_fits(part, first + done, info, target, source.path());
    write(done, size, DTypeOf<T>::value, part.data());
  }
}

}  // namespace

std::vector<TensorSpec> opt_tensors(const OptConfig& config, Head head) {
  std::vector<TensorSpec> tensors;
  for (const UnitSpec& unit : opt_units(config, head))
    for (const SegmentSpec& segment : unit.segments)
      tensors.insert(tensors.end(), segment.tensors.begin(), segment.tensors.end());
  return tensors;
}

void copy_weights(const TensorSource& source, const TensorInfo& info, int64_t first, int64_t count, DType target,
                  const WritePart& write) {
  if (info.dtype == DType::f64)
    copy_as<double>(source, info, first, count, target, write);
  else
    copy_as<float>(source, info, first, count, target, write);
}

}  // namespace tercet
