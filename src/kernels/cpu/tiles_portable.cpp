// Attention's tiles for any instruction set: vectors of 16 bytes, which every processor has.
#include "attention_tile.hpp"
#include "thin_tile.hpp"

namespace trireme::kernels {

constinit const AttentionKernels kAttentionPortable{
    "portable", MakeAttentionKernels<Vector<float, 16>, 6, 2>(),
    MakeAttentionKernels<Vector<double, 16>, 6, 2>()};

// Products with few rows for any instruction set: vectors of 16 bytes, which every processor has.

constinit const ThinKernels kThinPortable{
    "portable",
    {&ThinTransposed<Vector<float, 16>, 4, 2, 4>, &ThinPlain<Vector<float, 16>, 4, 2, 8>,
     &ThinPanels<Vector<float, 16>, 4, 2>},
    {&ThinTransposed<Vector<double, 16>, 4, 2, 2>, &ThinPlain<Vector<double, 16>, 4, 2, 8>,
     &ThinPanels<Vector<double, 16>, 4, 2>}};

}  // namespace trireme::kernels
