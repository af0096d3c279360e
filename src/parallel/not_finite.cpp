// FirstNotFinite: by sums of squares, of the range first and then of each parameter.
#include "not_finite.hpp"

#include <algorithm>
#include <cmath>

#include "trireme/kernels/update.hpp"

namespace trireme::parallel {

std::string FirstNotFinite(const device::Stream& stream, const kernels::Registry& registry,
                           Part flat, void* gradients) {
  // The host would wait for the GPU here: there the norm of the sums finds them all at once.
  if (stream.OnGpu()) return {};
  const Dtype dtype = registry.SumType();
  const auto finite = [&](std::int64_t begin, std::int64_t end) {
    return std::isfinite(kernels::SquareSum(stream, dtype, end - begin,
                                            ElementAt(gradients, dtype, begin - flat.begin)));
  };
  if (finite(flat.begin, flat.end)) return {};
  for (const kernels::Parameter& parameter : registry.Parameters()) {
    const std::int64_t begin = std::max(parameter.offset, flat.begin);
    const std::int64_t end = std::min(parameter.offset + parameter.LocalSize(), flat.end);
    if (begin < end && !finite(begin, end)) return parameter.name;
  }
  if (registry.SecondOf() == kernels::kNoParameter) return {};  // in between: nobody reads it
  return registry.Parameters()[static_cast<std::size_t>(registry.SecondOf())].name;
}

}  // namespace trireme::parallel
