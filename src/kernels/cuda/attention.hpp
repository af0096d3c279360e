// Attention by our own GPU kernels, which serve every shape and check cuDNN's answers; and the
// conversions that cuDNN needs.
#pragma once

#include <cstdint>
#include <string>

#include "trireme/device/stream.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/matrix.hpp"

namespace trireme::kernels::cuda {

// "cuDNN 9.13.0 (frontend 1.18.0)"; "" if it is not built in.
std::string CudnnName();
// Whether cuDNN serves one pass over such a shape, without dropout. As slow as AttentionScratch.
bool CudnnServes(const device::Stream& stream, const AttentionShape& shape, Dtype dtype,
                 bool backward);

// Own kernels for the functions of kernels/attention.hpp. RunError if head_dim is above 256.
decltype(kernels::AttentionForward)::Function OwnAttentionForward;
decltype(kernels::AttentionBackward)::Function OwnAttentionBackward;
decltype(kernels::AttentionPartForward)::Function OwnAttentionPartForward;
decltype(kernels::AttentionPartBackward)::Function OwnAttentionPartBackward;

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

// Results of attention to one block of keys by a library, merged into those of the blocks before
// (kernels/attention.hpp), in bf16.

// Some rows and heads of some sequences, within matrices of more.
struct AttentionWindow {
  std::int64_t sequences = 0;
  std::int64_t sequence_rows = 0;  // in memory, from one sequence to the next
  std::int64_t rows = 0;           // of a sequence in the window
  std::int64_t heads = 0, head_dim = 0;
};
inline AttentionWindow WholeWindow(const AttentionShape& s) {
  return {s.sequences, s.length, s.length, s.heads, s.head_dim};
}

// Matrices below begin at the window's first row and head. Dense operands: part_lse
// [sequences, heads, rows], the log-sum-exp of the window's rows; part [sequences * rows,
// heads * head_dim].

// Copies the window of lse, [., heads] in fp32, to and from `packed`, [sequences, heads, rows].
void PackLse(const device::Stream& stream, const AttentionWindow& window, const Matrix& lse,
             float* packed);
void UnpackLse(const device::Stream& stream, const AttentionWindow& window, const float* packed,
               const Matrix& lse);

// The queries' sum over blocks before it is rounded to bf16, in the scratch of parts: [rows, heads
// * head_dim] in fp32, dense. Whoever adds to it or resumes it reads this and no bf16.
Matrix ExactSum(const AttentionShape& shape, const Matrix& scratch);

// A sum over blocks: as it is stored in bf16, written only, and before it is rounded (fp32). Rows
// on boundaries of 16 bytes.
struct RoundedSum {
  Matrix stored, exact;
};

// Merges `part`, attention to some keys, and its log-sum-exp into `out` and `lse`: as
// kernels::AttentionPartForward. With part_lse null it adds `part`, the queries' gradient by some
// keys, to `out`, and lse is not read.
void MergeAttention(const device::Stream& stream, const AttentionWindow& window, const Matrix& part,
                    const float* part_lse, const RoundedSum& out, const Matrix& lse);

// The documents of a batch as cuDNN reads them, found on the GPU in each pass, so that a recorded
// graph serves every batch.

inline constexpr std::int64_t kMostDocuments = 512;  // of a sequence

// In the stream's memory. Each sequence has the same number of entries, one per document, in their
// order; the entries behind its last document have length 0. A sequence with more documents than
// entries is not served: all its entries have length 0.
struct DocumentIndex {
  static constexpr int kOffsets = 5;  // operands with strides of their own
  std::int32_t* lengths;              // [sequences, documents]: tokens of each document
  std::int32_t* served;               // [sequences]: 1, or 0 for a sequence that is not served
  // [pieces, sequences of a piece * documents + 1] each: elements from the first row of the piece
  // to the first of each document in operands with those strides (elements from row to row), and to
  // the end of the piece.
  std::int64_t* offsets[kOffsets];
  std::int64_t strides[kOffsets];
};

// Queues the kernel that fills `to` from shape.begins. A piece is sequences_of_piece sequences,
// which divides shape.sequences; documents: entries of a sequence, at most kMostDocuments.
void IndexDocuments(const device::Stream& stream, const AttentionShape& shape,
                    std::int64_t documents, std::int64_t sequences_of_piece,
                    const DocumentIndex& to);

}  // namespace trireme::kernels::cuda
