// A defect of MPICH, and how to do without what it breaks.
#ifndef TRIREME_SRC_COMM_SCATTER_IN_PLACE_HPP_
#define TRIREME_SRC_COMM_SCATTER_IN_PLACE_HPP_

namespace trireme::comm {

// False if MPI_Ireduce_scatter may not be called with MPI_IN_PLACE: MPICH (4.0.2) and its kin copy
// a rank's part to the begin of the operand by memcpy, and abort where the two overlap, that is,
// where the part is longer than all parts before it together. counts: [ranks]. The same on every
// rank.
bool ScattersInPlace(const int* counts, int ranks);
// The same for the library of that name, as MPI_Get_library_version tells it.
bool ScattersInPlace(const char* library, const int* counts, int ranks);

}  // namespace trireme::comm

#endif  // TRIREME_SRC_COMM_SCATTER_IN_PLACE_HPP_
