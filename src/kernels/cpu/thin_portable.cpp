// Products with few rows for any instruction set: vectors of 16 bytes, which every processor has.
#include "thin_tile.hpp"

namespace trireme::kernels {

constinit const ThinKernels kThinPortable{
    "portable",
    {&ThinTransposed<Vector<float, 16>, 4, 2, 4>, &ThinPlain<Vector<float, 16>, 4, 2, 8>,
     &ThinPanels<Vector<float, 16>, 4, 2>},
    {&ThinTransposed<Vector<double, 16>, 4, 2, 2>, &ThinPlain<Vector<double, 16>, 4, 2, 8>,
     &ThinPanels<Vector<double, 16>, 4, 2>}};

}  // namespace trireme::kernels
