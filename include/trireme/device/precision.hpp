// run.precision: the types and products that it means on a device, and whether the device has them.
#ifndef TRIREME_DEVICE_PRECISION_HPP_
#define TRIREME_DEVICE_PRECISION_HPP_

#include "trireme/base/dtype.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/device/options.hpp"

namespace trireme::device {

struct Arithmetic {
  Dtype dtype =
      Dtype::kFloat32;         // of values and activations; on a GPU bf16 storage for bf16 and fp8
  bool bf16_products = false;  // on the CPU: products round their operands
  bool fp8_products = false;   // on a GPU
};
Arithmetic ArithmeticOf(Precision precision, bool on_gpu);

// Throws InputError with the deck's line if the stream's device lacks the precision. bf16 without
// instructions for it is refused too: emulated, it would be slower than fp32.
void CheckPrecision(Precision precision, const device::Stream& stream, const deck::Deck& deck);

}  // namespace trireme::device

#endif  // TRIREME_DEVICE_PRECISION_HPP_
