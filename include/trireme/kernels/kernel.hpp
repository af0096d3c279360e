// Kernel: an operation that has one implementation per back end. A call runs the implementation of
// the stream's back end; src/kernels/backends.hpp lists them.
#pragma once

#include <utility>

#include "trireme/device/stream.hpp"

namespace trireme::kernels {

// Throws a RunError: the stream's back end does not implement this kernel.
[[noreturn]] void ThrowNoKernel(const device::Stream& stream);

// Kernel<void(const Matrix& x)> F is called as F(stream, x).
template <typename Signature>
struct Kernel;

template <typename Result, typename... Arguments>
struct Kernel<Result(Arguments...)> {
  using Function = Result(const device::Stream&, Arguments...);
  Function* cpu = nullptr;
  Function* cuda = nullptr;  // null: CPU only, or the program was built without CUDA
  Function* planned = nullptr;

  Result operator()(const device::Stream& stream, Arguments... arguments) const {
    return Of(stream)(stream, std::forward<Arguments>(arguments)...);
  }

 private:
  Function& Of(const device::Stream& stream) const {
    Function* function = nullptr;
    switch (stream.Where()) {
      case device::Kind::kCpu:
        function = cpu;
        break;
      case device::Kind::kCuda:
        function = cuda;
        break;
      case device::Kind::kPlanned:
        function = planned;
        break;
    }
    if (function == nullptr) ThrowNoKernel(stream);
    return *function;
  }
};

}  // namespace trireme::kernels
