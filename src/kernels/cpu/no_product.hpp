// Products with an empty dimension, on which libraries disagree.
#ifndef TRIREME_SRC_KERNELS_CPU_NO_PRODUCT_HPP_
#define TRIREME_SRC_KERNELS_CPU_NO_PRODUCT_HPP_

#include <algorithm>

#include "trireme/kernels/matrix.hpp"

namespace trireme::kernels {

// True if a dimension of the product is 0; c then has its final value.
inline bool NoProduct(std::int64_t inner, const Matrix& c, bool accumulate) {
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

#endif  // TRIREME_SRC_KERNELS_CPU_NO_PRODUCT_HPP_
