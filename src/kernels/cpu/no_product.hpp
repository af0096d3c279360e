// Products with nothing to multiply: libraries disagree about what they do then.
#ifndef TRIREME_KERNELS_CPU_NO_PRODUCT_HPP_
#define TRIREME_KERNELS_CPU_NO_PRODUCT_HPP_

#include <algorithm>

#include "trireme/tensor/matrix.hpp"

namespace trireme::kernels {

// True where a dimension of the product is 0: c is then what it has to be.
inline bool NoProduct(std::int64_t inner, const tensor::Matrix& c, bool accumulate) {
  if (c.rows == 0 || c.columns == 0) return true;
  if (inner > 0) return false;
  if (accumulate) return true;
  DispatchDtype(c.dtype, [&](auto zero) {
    for (std::int64_t row = 0; row < c.rows; ++row) {
      std::fill_n(c.As<decltype(zero)>() + row * c.stride, c.columns, zero);
    }
  });
  return true;
}

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_CPU_NO_PRODUCT_HPP_
