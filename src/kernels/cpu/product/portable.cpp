// Kernels of our own matrix product in plain C++, for any CPU. Where the CPU has no fused
// multiply-add, the C library computes it: correct, but slow.
#include "tile.hpp"

namespace trireme::kernels {

namespace {

float Fused(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
double Fused(double x, double y, double z) { return __builtin_fma(x, y, z); }

template <typename T, int kCount>
struct Lanes {
  using Scalar = T;
  struct Register {
    T lane[kCount];
  };
  static constexpr int kLanes = kCount;
  static Register Zero() { return {}; }
  static Register Broadcast(T x) {
    Register y;
    for (int i = 0; i < kCount; ++i) y.lane[i] = x;
    return y;
  }
  static Register Load(const T* x) {
    Register y;
    for (int i = 0; i < kCount; ++i) y.lane[i] = x[i];
    return y;
  }
  static Register LoadPart(const T* x, int count) {
    Register y;
    for (int i = 0; i < kCount; ++i) y.lane[i] = i < count ? x[i] : T(0);
    return y;
  }
  static void Store(T* x, const Register& y) { StorePart(x, kCount, y); }
  static void StorePart(T* x, int count, const Register& y) {
    for (int i = 0; i < count; ++i) x[i] = y.lane[i];
  }
  static Register Add(const Register& x, const Register& y) {
    Register z;
    for (int i = 0; i < kCount; ++i) z.lane[i] = x.lane[i] + y.lane[i];
    return z;
  }
  static Register MultiplyAdd(const Register& x, const Register& y, const Register& z) {
    Register w;
    for (int i = 0; i < kCount; ++i) w.lane[i] = Fused(x.lane[i], y.lane[i], z.lane[i]);
    return w;
  }
  static void Transpose(Register* block) {
    for (int i = 0; i < kCount; ++i) {
      for (int j = 0; j < i; ++j) {
        const T x = block[i].lane[j];
        block[i].lane[j] = block[j].lane[i];
        block[j].lane[i] = x;
      }
    }
  }
};

}  // namespace

constinit const ProductSet kProductPortable{
    "portable", MakeKernels<Plain<Lanes<float, 4>>, 4, 2, kInnerBlock>(),
    MakeKernels<Plain<Lanes<double, 2>>, 4, 2, kInnerBlock>()};

}  // namespace trireme::kernels
