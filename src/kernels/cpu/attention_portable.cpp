// Attention's tiles for any instruction set: vectors of 16 bytes, which every processor has.
#include "attention_tile.hpp"

namespace trireme::kernels {

constinit const AttentionKernels kAttentionPortable{
    "portable", MakeAttentionKernels<Vector<float, 16>, 6, 2>(),
    MakeAttentionKernels<Vector<double, 16>, 6, 2>()};

}  // namespace trireme::kernels
