// dropout: overwrites out; x is read once.
#include "trireme/kernels/dropout.hpp"
#include "backends.hpp"

#include <cstring>

#include "row_mask.hpp"

namespace trireme::kernels {

void cpu::DropoutForward(const device::Stream& stream, const Matrix& x,
                         const Dropout& dropout, const Matrix& out) {
  DispatchDtype(x.dtype, [&](auto zero) {
    using T = decltype(zero);
#pragma omp parallel num_threads(stream.threads)
    {
      RowMask mask(dropout, x.columns);
#pragma omp for schedule(static)
      for (std::int64_t row = 0; row < x.rows; ++row) {
        const T* from = x.As<T>() + row * x.stride;
        T* to = out.As<T>() + row * out.stride;
        if (mask.Active()) {
          mask.Apply(row, from, to, x.columns);
        } else if (from != to) {
          std::memcpy(to, from, static_cast<std::size_t>(x.columns) * sizeof(T));
        }
      }
    }
  });
}

}  // namespace trireme::kernels
