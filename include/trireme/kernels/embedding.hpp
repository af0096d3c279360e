// Token embedding with positions and dropout.
#ifndef TRIREME_KERNELS_EMBEDDING_HPP_
#define TRIREME_KERNELS_EMBEDDING_HPP_

#include <cstdint>

#include "trireme/kernels/dropout.hpp"

namespace trireme::kernels {

// out[r] = dropout(scale * weight[tokens[r]] + positions[r % length]); overwrites out: [rows, dim].
// weight: [vocabulary, dim]; positions: [>= length, dim] or Empty(); length is dropout.length.
void EmbeddingForward(const device::Stream& stream, const std::int32_t* tokens,
                      const tensor::Matrix& weight, const tensor::Matrix& positions, double scale,
                      const Dropout& dropout, const tensor::Matrix& out);

// Gradient of the above. dout: [rows, dim] is masked in place; dweight[token] += scale * dout,
// in the order of the rows whatever the number of threads; dpositions (or Empty()) likewise.
void EmbeddingBackward(const device::Stream& stream, const std::int32_t* tokens, double scale,
                       const Dropout& dropout, const tensor::Matrix& dout,
                       const tensor::Matrix& dweight, const tensor::Matrix& dpositions);

// The fixed table of Vaswani et al. 2017, section 3.5: [t, 2i] = sin(t / 10000^(2i/dim)), [t, 2i+1]
// = cos.
void SinusoidalPositions(const tensor::Matrix& table);

}  // namespace trireme::kernels

#endif  // TRIREME_KERNELS_EMBEDDING_HPP_
