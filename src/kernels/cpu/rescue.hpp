// Carries an exception out of an OpenMP region, which it must not leave by itself.
#ifndef TRIREME_SRC_KERNELS_CPU_RESCUE_HPP_
#define TRIREME_SRC_KERNELS_CPU_RESCUE_HPP_

#include <exception>

namespace trireme::kernels {

class Rescue {
 public:
  // Runs `body` on the calling thread; keeps the first exception of all threads.
  template <typename Body>
  void Run(Body&& body) noexcept {
    try {
      body();
    } catch (...) {
#pragma omp critical(trireme_rescue)
      if (!first_) first_ = std::current_exception();
    }
  }
  // Throws the exception that was kept, if any; called after the region.
  void Rethrow() const {
    if (first_) std::rethrow_exception(first_);
  }

 private:
  std::exception_ptr first_;
};

}  // namespace trireme::kernels

#endif  // TRIREME_SRC_KERNELS_CPU_RESCUE_HPP_
