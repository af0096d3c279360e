// The products of a GPU's stream.
#include "cuda/products.hpp"

#include <fmt/format.h>

#include "backends.hpp"
#include "trireme/base/error.hpp"

namespace trireme::kernels {

namespace cuda {

GpuProducts::GpuProducts(const device::Stream& stream, int sites)
    : algorithms_(*stream.gpu), fp8_(stream, stream.fp8 ? sites : 0) {}

GpuProducts& ProductsOf(const device::Stream& stream) {
  if (stream.products == nullptr) {
    throw RunError("a matrix product on a GPU's stream that has no Products",
                   "This is a bug in Trireme.");
  }
  return *static_cast<GpuProducts*>(stream.products);
}

void Multiply(const device::Stream& stream, const Product& product) {
  if (ProductsOf(stream).Run(stream, product)) return;
  throw RunError(fmt::format("cuBLASLt has no algorithm for the matrix product {} on {}",
                             ProductKey(product).Text(), stream.gpu->name),
                 "This is a bug in Trireme.");
}

}  // namespace cuda

std::unique_ptr<Products> cuda::MakeProducts(const device::Stream& stream, int sites) {
  return std::make_unique<GpuProducts>(stream, sites);
}

}  // namespace trireme::kernels
