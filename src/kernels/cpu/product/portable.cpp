// Kernels of our own matrix product in plain C++, for any CPU. Where the CPU has no fused
// multiply-add, the C library computes it: correct, but slow.
#include "tile.hpp"

namespace trireme::kernels {

namespace {

float Fused(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
double Fused(double x, double y, double z) { return __builtin_fma(x, y, z); }

template <typename T>
struct Lanes : Vector<T, 16> {
  using typename Vector<T, 16>::Register;
  static Register MultiplyAdd(Register x, Register y, Register z) {
    for (int i = 0; i < Lanes::kLanes; ++i) z[i] = Fused(x[i], y[i], z[i]);
    return z;
  }
};

}  // namespace

constinit const ProductSet kProductPortable{
    "portable", MakeKernels<Plain<Lanes<float>>, 4, 2, kInnerBlock>(),
    MakeKernels<Plain<Lanes<double>>, 4, 2, kInnerBlock>(),
    MakeKernels<Plain<Lanes<float>, RoundedFloat>, 4, 2, kInnerBlock>()};

}  // namespace trireme::kernels
