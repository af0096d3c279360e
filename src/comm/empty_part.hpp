// Addresses for transfers of which a rank has no element.
#ifndef TRIREME_SRC_COMM_EMPTY_PART_HPP_
#define TRIREME_SRC_COMM_EMPTY_PART_HPP_

#include <mpi.h>

#include "trireme/comm/places.hpp"

namespace trireme::comm {

// `memory` for the part of a rank; if it has no element, an address of its own: a view of no rows
// may lie where the other buffer begins, and MPI forbids equal buffers (MPICH checks).
inline void* PartAt(const void* memory, const Places& places, int rank) {
  static char nothing = 0;
  if (places.Sizes()[rank] > 0 || memory == MPI_IN_PLACE) return const_cast<void*>(memory);
  return &nothing;
}

}  // namespace trireme::comm

#endif  // TRIREME_SRC_COMM_EMPTY_PART_HPP_
