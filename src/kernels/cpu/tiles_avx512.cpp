// Attention's tiles for AVX-512, compiled for x86-64-v4: 8 rows and two vectors of sums in 32
// registers, which measured faster than more.
#include "attention_tile.hpp"
#include "thin_tile.hpp"

namespace trireme::kernels {

constinit const AttentionKernels kAttentionAvx512{"AVX-512",
                                                  MakeAttentionKernels<Vector<float, 64>, 8, 2>(),
                                                  MakeAttentionKernels<Vector<double, 64>, 8, 2>()};

// Products with few rows for AVX-512, compiled for x86-64-v4.

constinit const ThinKernels kThinAvx512{
    "AVX-512",
    {&ThinTransposed<Vector<float, 64>, 8, 2, 8>, &ThinPlain<Vector<float, 64>, 8, 2, 16>,
     &ThinPanels<Vector<float, 64>, 8, 2>},
    {&ThinTransposed<Vector<double, 64>, 8, 2, 8>, &ThinPlain<Vector<double, 64>, 8, 2, 16>,
     &ThinPanels<Vector<double, 64>, 8, 2>}};

}  // namespace trireme::kernels
