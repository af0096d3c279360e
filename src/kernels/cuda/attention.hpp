// Attention by our own GPU kernels, which serve every shape and check cuDNN's answers; and the
// conversions that cuDNN needs.
#ifndef TRIREME_SRC_KERNELS_CUDA_ATTENTION_HPP_
#define TRIREME_SRC_KERNELS_CUDA_ATTENTION_HPP_

#include <string>

#include "trireme/kernels/attention_part.hpp"

namespace trireme::kernels::cuda {

// "cuDNN 9.13.0 (frontend 1.18.0)"; "" if it is not built in.
std::string CudnnName();
// Whether cuDNN serves one pass over such a shape, without dropout. As slow as AttentionScratch.
bool CudnnServes(const device::Stream& stream, const AttentionShape& shape, Dtype dtype,
                 bool backward);

// Own kernels for the functions of kernels/attention.hpp and attention_part.hpp. RunError if
// head_dim is above 256.
decltype(kernels::AttentionForward) OwnAttentionForward;
decltype(kernels::AttentionBackward) OwnAttentionBackward;
decltype(kernels::AttentionPartForward) OwnAttentionPartForward;
decltype(kernels::AttentionPartBackward) OwnAttentionPartBackward;

// Operands of the passes over sequences of documents, as AttentionForward and AttentionBackward
// have them; the forward pass has no dout and dqkv.
struct DocumentOperands {
  Matrix qkv, out, lse, scratch, dout = {}, dqkv = {};
};
// The same passes by our own kernels over the sequences whose number in `served`, [sequences] on
// the GPU, is 0. What belongs to the others is left alone. Without dropout.
void OwnAttentionForwardOfRest(const device::Stream& stream, const AttentionShape& shape,
                               const DocumentOperands& operands, const std::int32_t* served);
void OwnAttentionBackwardOfRest(const device::Stream& stream, const AttentionShape& shape,
                                const DocumentOperands& operands, const std::int32_t* served);

// Copies lse, [rows, heads] in fp32, to and from `packed`, [sequences, heads, length].
void PackStatistics(const device::Stream& stream, const AttentionShape& shape,
                    const Matrix& lse, float* packed);
void UnpackStatistics(const device::Stream& stream, const AttentionShape& shape,
                      const float* packed, const Matrix& lse);

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_ATTENTION_HPP_
