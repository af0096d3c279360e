// The clock by which the program times itself.
#ifndef TRIREME_BASE_CLOCK_HPP_
#define TRIREME_BASE_CLOCK_HPP_

#include <chrono>

namespace trireme {

// Seconds since a fixed moment of this process; never runs backwards. Works without MPI.
inline double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds since 1970 on the system's clock, which may jump.
inline double UnixSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace trireme

#endif  // TRIREME_BASE_CLOCK_HPP_
