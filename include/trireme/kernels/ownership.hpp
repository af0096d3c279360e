// Ownership: the elements of its parameters that a rank owns, and their places in its storages.
#ifndef TRIREME_KERNELS_OWNERSHIP_HPP_
#define TRIREME_KERNELS_OWNERSHIP_HPP_

#include <cstdint>
#include <vector>

#include "trireme/base/partition.hpp"

namespace trireme::kernels {

// Part of the flat range that is summed, scattered or gathered in one transfer. Pieces do not
// overlap, follow each other in order, cover all parameters, and begin and end between parameters
// (or, unsharded, within a very large one).
struct Piece {
  Part range;  // flat offsets
  Part own;    // of these, the elements whose moments and update are this rank's
  // Place of element own.begin in the storages of values, gradients (after their sum) and moments;
  // elements.
  std::int64_t value = 0, gradient = 0, moment = 0;
  // Elements that each rank of the shard group owns, in order; empty: cut evenly.
  std::vector<std::int64_t> counts = {};
};

struct Ownership {
  std::vector<Piece> pieces;
  bool values_sharded = false;     // storage of values holds owned elements only
  bool gradients_sharded = false;  // storage of gradients holds owned elements only
  int gradient_levels = 1;         // copies of the gradients' storage: canonical sums
  std::int64_t values = 0, gradients = 0, moments = 0;  // elements of the storages; of one level
};

// All `size` elements are this rank's, in one piece.
Ownership OwnAll(std::int64_t size);

// The owned elements of one parameter.
struct Owned {
  Part flat;                                         // flat offsets; empty: none
  std::int64_t value = 0, gradient = 0, moment = 0;  // of element flat.begin, as in Piece
};

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_OWNERSHIP_HPP_
