// Attention by cuDNN's fused kernels, in bf16 and without dropout. Built where cuDNN 9 and the
// headers of cudnn-frontend were found.
#ifndef TRIREME_SRC_KERNELS_CUDA_CUDNN_ATTENTION_HPP_
#define TRIREME_SRC_KERNELS_CUDA_CUDNN_ATTENTION_HPP_

#include <string>

#include "trireme/kernels/attention.hpp"

namespace trireme::kernels::cuda {

// "cuDNN 9.13.0 (frontend 1.18.0)": the library that was loaded, the headers of the build.
std::string CudnnVersions();

// Plans are built, and kept, at the first call of any of these for a shape: that takes up to
// seconds and allocates.

bool CudnnHasPlan(const device::Stream& stream, const AttentionShape& shape, bool backward);
// Elements (fp32) of scratch for the forward pass over such a shape, and with `backward` for both;
// 0 where cuDNN serves none. A pass that it does not serve is told on stderr, with the reason, once
// a process.
std::int64_t CudnnAttentionScratch(const device::Stream& stream, const AttentionShape& shape,
                                   bool backward);

// As kernels::AttentionForward and AttentionBackward, with bf16 operands on boundaries of 16 bytes.
// False, and nothing is queued, where cuDNN does not serve the shape or the strides (likewise
// told). RunError where it was to serve this pass and there is too little scratch.
bool CudnnAttentionForward(const device::Stream& stream, const AttentionShape& shape,
                           const tensor::Matrix& qkv, const tensor::Matrix& out,
                           const tensor::Matrix& lse, const tensor::Matrix& scratch);
bool CudnnAttentionBackward(const device::Stream& stream, const AttentionShape& shape,
                            const tensor::Matrix& qkv, const tensor::Matrix& out,
                            const tensor::Matrix& dout, const tensor::Matrix& lse,
                            const tensor::Matrix& dqkv, const tensor::Matrix& scratch);

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_CUDNN_ATTENTION_HPP_
