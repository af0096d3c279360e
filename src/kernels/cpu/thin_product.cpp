// thin_product: overwrites y. Each thread has some of the columns, and with them its own part of
// the weight.
#include "thin_product.hpp"

#include <omp.h>

#include <algorithm>

#include "trireme/base/partition.hpp"

namespace trireme::kernels {

namespace {


// Elements of the weight that are worth a thread.
constexpr std::int64_t kAThread = 1 << 13;

template <typename T>
void Multiply(const ThinKernelsOf<T>& kernels, const device::Stream& stream, const Matrix& x,
              Form form, const Matrix& weight, const Matrix& y, const void* panels) {
  const bool transposed = form == Form::kTransposed;
  const std::int64_t units = CeilDivide(y.columns, kThinColumns);
  const auto most = static_cast<std::int64_t>(omp_in_parallel() != 0 ? 1 : stream.threads);
  const int threads = static_cast<int>(
      std::min(std::clamp<std::int64_t>(weight.Size() / kAThread, 1, most), units));
#pragma omp parallel for num_threads(threads) schedule(static) if (threads > 1)
  for (int part = 0; part < threads; ++part) {
    const Part share = PartOf(units, part, threads);
    const std::int64_t begin = share.begin * kThinColumns,
                       end = std::min(y.columns, share.end * kThinColumns);
    ThinProduct<T> product{
        x.rows,        end - begin,       x.columns,
        x.As<T>(),     x.stride,          weight.As<T>() + begin * (transposed ? weight.stride : 1),
        weight.stride, y.As<T>() + begin, y.stride};
    if (panels != nullptr && x.rows > 1) {
      product.w = static_cast<const T*>(panels) + begin * x.columns;
      kernels.panels(product);
    } else {
      (transposed ? kernels.transposed : kernels.plain)(product);
    }
  }
}

}  // namespace

void ThinMultiply(const ThinKernels& kernels, const device::Stream& stream, const Matrix& x,
                  Form form, const Matrix& weight, const Matrix& y, const void* panels) {
  if (y.dtype == Dtype::kFloat64) {
    return Multiply(kernels.fp64, stream, x, form, weight, y, panels);
  }
  Multiply(kernels.fp32, stream, x, form, weight, y, panels);
}

}  // namespace trireme::kernels
