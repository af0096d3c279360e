// Attention by cuDNN's fused kernels, in bf16 and without dropout. Built where cuDNN 9 and the
// headers of cudnn-frontend were found.
#ifndef TRIREME_SRC_KERNELS_CUDA_CUDNN_ATTENTION_HPP_
#define TRIREME_SRC_KERNELS_CUDA_CUDNN_ATTENTION_HPP_

#include "trireme/kernels/attention.hpp"

namespace trireme::kernels::cuda {

// Elements (fp32) of scratch for both passes over such a shape; 0 where cuDNN does not serve it.
// Plans are built, and kept, at the first call for a shape: that takes up to seconds and allocates.
std::int64_t CudnnAttentionScratch(const device::Stream& stream, const AttentionShape& shape);

// As kernels::AttentionForward and AttentionBackward, with bf16 operands on boundaries of 16 bytes.
// False, and nothing is queued, where cuDNN does not serve the shape or the strides.
bool CudnnAttentionForward(const device::Stream& stream, const AttentionShape& shape,
                           const tensor::Matrix& qkv, const tensor::Matrix& out,
                           const tensor::Matrix& lse, const tensor::Matrix& scratch);
bool CudnnAttentionBackward(const device::Stream& stream, const AttentionShape& shape,
                            const tensor::Matrix& qkv, const tensor::Matrix& out,
                            const tensor::Matrix& dout, const tensor::Matrix& lse,
                            const tensor::Matrix& dqkv, const tensor::Matrix& scratch);

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_CUDNN_ATTENTION_HPP_
