// Attention by our own kernels: what serves every shape, and what cuDNN's answers are compared
// with; and what cuDNN needs of us.
#ifndef TRIREME_SRC_KERNELS_CUDA_ATTENTION_HPP_
#define TRIREME_SRC_KERNELS_CUDA_ATTENTION_HPP_

#include "trireme/kernels/attention_part.hpp"

namespace trireme::kernels::cuda {

// Whether this program has cuDNN's attention, which then serves what it can.
bool CudnnBuilt();

// As the functions of kernels/attention.hpp. RunError where head_dim is above 256.
std::int64_t OwnAttentionScratch(const AttentionShape& shape);
decltype(kernels::AttentionForward) OwnAttentionForward;
decltype(kernels::AttentionBackward) OwnAttentionBackward;

// lse [rows, heads] in fp32 to and from packed [sequences, heads, length].
void PackStatistics(const device::Stream& stream, const AttentionShape& shape,
                    const tensor::Matrix& lse, float* packed);
void UnpackStatistics(const device::Stream& stream, const AttentionShape& shape,
                      const float* packed, const tensor::Matrix& lse);

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_ATTENTION_HPP_
