// thin_panels: panels are filled up with zeros beyond the last output.
#include "trireme/kernels/thin_panels.hpp"

#include <omp.h>

#include <algorithm>

#include "thin_kernels.hpp"

namespace trireme::kernels {

namespace {


struct Sizes {
  std::int64_t outputs, inner, wide, panels;
};
Sizes SizesOf(Form form, const Matrix& weight) {
  const bool transposed = form == Form::kTransposed;
  const std::int64_t outputs = transposed ? weight.rows : weight.columns;
  const std::int64_t wide = kPanelBytes / static_cast<std::int64_t>(SizeOf(weight.dtype));
  return {outputs, transposed ? weight.columns : weight.rows, wide, CeilDivide(outputs, wide)};
}

template <typename T>
void Pack(const device::Stream& stream, Form form, const Matrix& weight, T* panels) {
  const Sizes sizes = SizesOf(form, weight);
  // Strides of the weight by output and by inner index.
  const bool transposed = form == Form::kTransposed;
  const std::int64_t by_output = transposed ? weight.stride : 1;
  const std::int64_t by_inner = transposed ? 1 : weight.stride;
#pragma omp parallel for num_threads(stream.threads) schedule(static) if (stream.threads > 1)
  for (std::int64_t panel = 0; panel < sizes.panels; ++panel) {
    const T* const from = weight.As<T>() + panel * sizes.wide * by_output;
    T* const to = panels + panel * sizes.wide * sizes.inner;
    const std::int64_t width = std::min(sizes.wide, sizes.outputs - panel * sizes.wide);
    for (std::int64_t k = 0; k < sizes.inner; ++k) {
      T* const line = to + k * sizes.wide;
      for (std::int64_t j = 0; j < width; ++j) line[j] = from[j * by_output + k * by_inner];
      std::fill(line + width, line + sizes.wide, T(0));
    }
  }
}

}  // namespace

std::int64_t MostThinRows() { return kThinRows; }

bool HasThinProducts(const device::Stream& stream, Dtype dtype) {
  const bool bf16 = dtype == Dtype::kBfloat16 || (stream.bf16 && dtype == Dtype::kFloat32);
  return !stream.OnGpu() && !stream.canonical && !bf16;
}

std::int64_t PanelBytes(Form form, const Matrix& weight) {
  const Sizes sizes = SizesOf(form, weight);
  return sizes.panels * sizes.inner * kPanelBytes;
}

void PackPanels(const device::Stream& stream, Form form, const Matrix& weight, void* panels) {
  if (weight.dtype == Dtype::kFloat64) {
    return Pack(stream, form, weight, static_cast<double*>(panels));
  }
  Pack(stream, form, weight, static_cast<float*>(panels));
}

}  // namespace trireme::kernels
