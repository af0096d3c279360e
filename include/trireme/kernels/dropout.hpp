// Dropout as a pure function of global coordinates (rule 2): which mask belongs to which element.
#ifndef TRIREME_KERNELS_DROPOUT_HPP_
#define TRIREME_KERNELS_DROPOUT_HPP_

#include <cstdint>

#include "trireme/base/philox.hpp"
#include "trireme/base/positions.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/tensor/matrix.hpp"

namespace trireme::kernels {

// One place where dropout acts. Row r of a matrix is row R = first_row + r of the micro-batch,
// which belongs to sequence R / length at position positions.At(R % length); column c is feature f
// = first_feature + c. The 16-bit lane f % 8 of
//   Philox({f / 8, position, ordinal low, ordinal high}, MakeKey(seed, purpose, layer, site))
// decides: kept where lane >= threshold, and multiplied by 65536 / (65536 - threshold).
struct Dropout {
  double probability = 0;
  std::uint32_t seed = 0;
  Purpose purpose = Purpose::kResidualDropout;
  std::uint32_t layer = 0;
  std::uint32_t site = 0;                   // which of a layer's places, or the head
  const std::uint64_t* ordinals = nullptr;  // [sequences], global sample numbers
  std::int64_t length = 1;                  // positions of a sequence that this rank holds
  std::int64_t first_row = 0;               // of the micro-batch: a shard of the rows begins there
  std::int64_t first_feature = 0;           // a slice of the features begins there
  Positions positions = {};                 // where those of `length` lie in the sequence

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
void DropoutForward(const device::Stream& stream, const tensor::Matrix& x, const Dropout& dropout,
                    const tensor::Matrix& out);

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_DROPOUT_HPP_
