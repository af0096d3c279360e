// Attention by cuDNN's fused kernels, in bf16 and without dropout. Built if cuDNN 9 and the headers
// of cudnn-frontend were found.
#ifndef TRIREME_SRC_KERNELS_CUDA_CUDNN_ATTENTION_HPP_
#define TRIREME_SRC_KERNELS_CUDA_CUDNN_ATTENTION_HPP_

#include <string>

#include "trireme/kernels/attention.hpp"

namespace trireme::kernels::cuda {

// Versions of the loaded library and of the headers of the build: "cuDNN 9.13.0 (frontend 1.18.0)".
std::string CudnnVersions();

// The first call of a function below for a shape builds its plan, which takes up to seconds and
// allocates. Plans belong to the stream's libraries.

// Whether cuDNN serves a pass over such a shape.
bool CudnnHasPlan(const device::Stream& stream, const AttentionShape& shape, bool backward);
// Elements (fp32) of scratch for the forward pass over such a shape, and with `backward` for both;
// 0 if cuDNN serves neither. One line on stderr names a pass that it does not serve, with the
// reason.
std::int64_t CudnnAttentionScratch(const device::Stream& stream, const AttentionShape& shape,
                                   bool backward);

// kernels::AttentionForward and AttentionBackward, with bf16 operands on boundaries of 16 bytes.
// False, with nothing queued and a line on stderr, if cuDNN does not serve the shape or the
// strides. RunError if scratch was planned for the pass and is too small.
bool CudnnAttentionForward(const device::Stream& stream, const AttentionShape& shape,
                           const tensor::Matrix& qkv, const tensor::Matrix& out,
                           const tensor::Matrix& lse, const tensor::Matrix& scratch);
bool CudnnAttentionBackward(const device::Stream& stream, const AttentionShape& shape,
                            const tensor::Matrix& qkv, const tensor::Matrix& out,
                            const tensor::Matrix& dout, const tensor::Matrix& lse,
                            const tensor::Matrix& dqkv, const tensor::Matrix& scratch);

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_CUDNN_ATTENTION_HPP_
