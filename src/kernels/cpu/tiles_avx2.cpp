// Attention's tiles for AVX2, compiled for x86-64-v3: 6 rows and two vectors of sums in 16
// registers.
#include "attention_tile.hpp"
#include "thin_tile.hpp"

namespace trireme::kernels {

constinit const AttentionKernels kAttentionAvx2{"AVX2",
                                                MakeAttentionKernels<Vector<float, 32>, 6, 2>(),
                                                MakeAttentionKernels<Vector<double, 32>, 6, 2>()};

// Products with few rows for AVX2, compiled for x86-64-v3.

constinit const ThinKernels kThinAvx2{
    "AVX2",
    {&ThinTransposed<Vector<float, 32>, 4, 2, 8>, &ThinPlain<Vector<float, 32>, 4, 2, 8>,
     &ThinPanels<Vector<float, 32>, 4, 2>},
    {&ThinTransposed<Vector<double, 32>, 4, 2, 4>, &ThinPlain<Vector<double, 32>, 4, 2, 8>,
     &ThinPanels<Vector<double, 32>, 4, 2>}};

}  // namespace trireme::kernels
