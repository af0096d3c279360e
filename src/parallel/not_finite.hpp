// Search for a parameter whose gradient is not finite.
#ifndef TRIREME_SRC_PARALLEL_NOT_FINITE_HPP_
#define TRIREME_SRC_PARALLEL_NOT_FINITE_HPP_

#include <string>

#include "trireme/base/partition.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/kernels/registry.hpp"

namespace trireme::parallel {

// Name of the first parameter in the flat range with a gradient that is not finite; empty: none.
// gradients: of the range, from its first element on, in the stream's memory.
std::string FirstNotFinite(const device::Stream& stream, const kernels::Registry& registry,
                           Part flat, void* gradients);

}  // namespace trireme::parallel

#endif  // TRIREME_SRC_PARALLEL_NOT_FINITE_HPP_
