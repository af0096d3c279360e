// Attention's tiles for AVX-512, compiled for x86-64-v4: 28 of 32 registers hold sums.
#include "attention_tile.hpp"

namespace trireme::kernels {

constinit const AttentionKernels kAttentionAvx512{
    MakeAttentionKernels<Vector<float, 64>, 14, 2>(),
    MakeAttentionKernels<Vector<double, 64>, 14, 2>()};

}  // namespace trireme::kernels
