// The clocks by which the program measures time.
#pragma once

#include <chrono>
#include <ctime>

namespace trireme {

// Seconds since a fixed but arbitrary moment; never runs backwards. Works without MPI.
inline double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline constexpr double kSecondsPerHour = 3600;

// Seconds since 1970 on the system's clock, which may jump.
inline double UnixSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// CPU time that this thread has used, in seconds.
inline double ThreadSeconds() {
  std::timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Measures times of the thread that made it and calls it.
class ThreadStopwatch {
 public:
  double All() const { return Seconds() - start_; }  // seconds since it was made
  double Waited() const { return All() - (ThreadSeconds() - before_); }  // without computing

 private:
  double start_ = Seconds();
  double before_ = ThreadSeconds();
};

}  // namespace trireme
