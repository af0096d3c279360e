// Dropout as a pure function of global coordinates: the mask of each element, whatever the layout.
#ifndef TRIREME_KERNELS_DROPOUT_HPP_
#define TRIREME_KERNELS_DROPOUT_HPP_

#include <cstdint>

#include "trireme/base/philox.hpp"
#include "trireme/base/positions.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/kernels/matrix.hpp"

namespace trireme::kernels {

// A place of a model where dropout acts. Row r of a matrix is row R = first_row + r of the
// micro-batch, in sequence R / length at position positions.At(R % length); column c is feature f =
// first_feature + c. The 16-bit lane f % 8 of
//   Philox({f / 8, position, ordinal low, ordinal high}, MakeKey(seed, purpose, layer, site))
// decides: an element is kept, and multiplied by 65536 / (65536 - threshold), if lane >= threshold.
struct Dropout {
  double probability = 0;
  std::uint32_t seed = 0;
  Purpose purpose = Purpose::kResidualDropout;
  std::uint32_t layer = 0;
  std::uint32_t site = 0;                   // number of the place in its layer, or the head
  const std::uint64_t* ordinals = nullptr;  // [sequences], global sample numbers
  std::int64_t length = 1;                  // positions of a sequence on this rank
  std::int64_t first_row = 0;               // first row of a shard of the micro-batch's rows
  std::int64_t first_feature = 0;           // first feature of a slice
  Positions positions = {};                 // of the `length` rows in their sequence

  // The same place, for a matrix that begins `rows` rows further on.
  Dropout From(std::int64_t rows) const {
    Dropout later = *this;
    later.first_row += rows;
    return later;
  }
  bool Active() const { return Threshold() > 0; }
  std::uint32_t Threshold() const { return static_cast<std::uint32_t>(probability * 65536 + 0.5); }
  std::int64_t PositionOf(std::int64_t row) const {
    return positions.At((first_row + row) % length);
  }
  double Scale() const { return 65536.0 / (65536.0 - Threshold()); }
};

// out = mask(x) (out may be x). x, out: [rows, features].
void DropoutForward(const device::Stream& stream, const Matrix& x, const Dropout& dropout,
                    const Matrix& out);

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_DROPOUT_HPP_
