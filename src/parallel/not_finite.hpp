// Finds the parameter whose gradient is not a finite number.
#ifndef TRIREME_PARALLEL_NOT_FINITE_HPP_
#define TRIREME_PARALLEL_NOT_FINITE_HPP_

#include <string>

#include "trireme/base/partition.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/tensor/registry.hpp"

namespace trireme::parallel {

// gradients: those of the flat range, from its first element on. Name of the first parameter that
// has one which is not finite; empty: all are.
std::string FirstNotFinite(const device::Stream& stream, const tensor::Registry& registry,
                           Part flat, void* gradients);

}  // namespace trireme::parallel

#endif  // TRIREME_PARALLEL_NOT_FINITE_HPP_
