// Attention on tensor cores: bf16, rows on boundaries of 16 bytes (AttentionOperands::vector). It
// computes what the kernels of attention_kernels.cuh compute, with dropout, documents, padding and
// parts; weights and their gradients are rounded to bf16 where they are operands of products.
#pragma once

#include "cuda/attention_kernels.cuh"

namespace trireme::kernels::cuda {

// Bytes of shared memory that a block takes, at most.
int MatrixForwardBytes(int head_dim);
int MatrixQueryGradientBytes(int head_dim);
int MatrixKeyGradientBytes(int head_dim);

// Queued; nothing if there is nothing to write.
void LaunchMatrixForward(cudaStream_t queue, const AttentionOperands<Bf16>& a);
// After LaunchAttentionDelta.
void LaunchMatrixQueryGradient(cudaStream_t queue, const AttentionOperands<Bf16>& a);
void LaunchMatrixKeyGradient(cudaStream_t queue, const AttentionOperands<Bf16>& a);

}  // namespace trireme::kernels::cuda
