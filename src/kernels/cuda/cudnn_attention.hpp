// Attention by cuDNN's fused kernels, in bf16 and without dropout. Built if cuDNN 9 and the headers
// of cudnn-frontend were found.
#ifndef TRIREME_SRC_KERNELS_CUDA_CUDNN_ATTENTION_HPP_
#define TRIREME_SRC_KERNELS_CUDA_CUDNN_ATTENTION_HPP_

#include <string>

#include "attention.hpp"
#include "trireme/kernels/attention_part.hpp"

namespace trireme::kernels::cuda {

// False with the emulator's, unless it is told otherwise.
bool CudnnIsThere();
// Versions of the loaded library and of the headers of the build: "cuDNN 9.13.0 (frontend 1.18.0)".
std::string CudnnVersions();
// As WhyNoFixedOrder (kernels/libraries.hpp), of sequences of any length.
std::string WhyNoFixedOrderOfCudnn(const device::Stream& stream);

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
                           const Matrix& qkv, const Matrix& out,
                           const Matrix& lse, const Matrix& scratch);
bool CudnnAttentionBackward(const device::Stream& stream, const AttentionShape& shape,
                            const Matrix& qkv, const Matrix& out,
                            const Matrix& dout, const Matrix& lse,
                            const Matrix& dqkv, const Matrix& scratch);

// Sequences of documents (cudnn_documents.cpp). Elements (fp32) of scratch for the forward pass
// over such a shape, and with `backward` for both, `own` elements of our own kernels included;
// `own` if cuDNN serves neither.
std::int64_t CudnnDocumentsScratch(const device::Stream& stream, const AttentionShape& shape,
                                   std::int64_t own, bool backward);
// Whether cuDNN serves a pass over such a shape.
bool CudnnHasDocumentsPlan(const device::Stream& stream, const AttentionShape& shape,
                           bool backward);
// A pass over the sequences that have no more documents than a plan has entries, causal. Returns
// which those are: [sequences] on the GPU, 1 or 0; our own kernels have to compute the others.
// Null, with nothing queued, if cuDNN does not serve the shape or the strides.
const std::int32_t* CudnnDocuments(const device::Stream& stream, const AttentionShape& shape,
                                   const DocumentOperands& operands, bool backward);

// Whether rows lie on boundaries of 16 bytes, as cuDNN reads them.
bool OnCudnnBoundaries(const Matrix& m);

// Blocks of ring attention (cudnn_part.cpp). Elements (fp32) of scratch for the forward pass over
// the blocks of PositionsOf, and with `backward` for both, behind `own` elements of our own
// kernels; `own` if cuDNN serves none. It serves blocks that are all of one size.
std::int64_t CudnnPartScratch(const device::Stream& stream, const AttentionShape& shape,
                              std::int64_t own, bool backward);

// kernels::AttentionPartForward and AttentionPartBackward. False, with nothing queued, if no plan
// was built for the block then. What the two leave in scratch is what our own kernels leave there,
// so that blocks may alternate.
bool CudnnPartForward(const device::Stream& stream, const AttentionShape& shape, const Part& tasks,
                      const Matrix& qkv, const KeyValueBlock& block,
                      const Matrix& out, const Matrix& lse,
                      const Matrix& scratch);
// Operands of AttentionPartBackward.
struct PartGradients {
  Matrix qkv;
  KeyValueBlock block;
  Matrix out, dout, lse, dqkv, dblock, scratch;
};
bool CudnnPartBackward(const device::Stream& stream, const AttentionShape& shape, const Part& tasks,
                       const PartGradients& operands);

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_CUDNN_ATTENTION_HPP_
