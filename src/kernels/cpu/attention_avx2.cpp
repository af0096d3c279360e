// Attention's tiles for AVX2, compiled for x86-64-v3: 6 rows and two vectors of sums in 16
// registers.
#include "attention_tile.hpp"

namespace trireme::kernels {

constinit const AttentionKernels kAttentionAvx2{"AVX2",
                                                MakeAttentionKernels<Vector<float, 32>, 6, 2>(),
                                                MakeAttentionKernels<Vector<double, 32>, 6, 2>()};

}  // namespace trireme::kernels
