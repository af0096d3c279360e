// ScattersInPlace: by the lengths of the parts first, then by the library's name.
#include "scatter_in_place.hpp"

#include <mpi.h>

#include <array>
#include <cstdint>
#include <string_view>

namespace trireme::comm {

bool ScattersInPlace(const char* library, const int* counts, int ranks) {
  std::int64_t before = ranks > 0 ? counts[0] : 0;
  bool overlaps = false;
  for (int rank = 1; rank < ranks; ++rank) {
    overlaps = overlaps || counts[rank] > before;
    before += counts[rank];
  }
  return !overlaps || std::string_view(library).starts_with("Open MPI");
}

bool ScattersInPlace(const int* counts, int ranks) {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> library{};
  int length = 0;
  MPI_Get_library_version(library.data(), &length);
  return ScattersInPlace(library.data(), counts, ranks);
}

}  // namespace trireme::comm
