// Attention by our own kernels: what serves every shape, and what cuDNN's answers are compared
// with.
#ifndef TRIREME_SRC_KERNELS_CUDA_ATTENTION_HPP_
#define TRIREME_SRC_KERNELS_CUDA_ATTENTION_HPP_

#include "trireme/kernels/attention_part.hpp"

namespace trireme::kernels::cuda {

// As the functions of kernels/attention.hpp. RunError where head_dim is above 256.
std::int64_t OwnAttentionScratch(const AttentionShape& shape);
decltype(kernels::AttentionForward) OwnAttentionForward;
decltype(kernels::AttentionBackward) OwnAttentionBackward;

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_ATTENTION_HPP_
