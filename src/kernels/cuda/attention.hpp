// Attention by our own GPU kernels, which handle every shape and also serve to check cuDNN; and the
// conversions that cuDNN needs.
#pragma once

#include <cstdint>
#include <string>

#include "backends.hpp"

namespace trireme::kernels::cuda {

// "cuDNN 9.13.0 (frontend 1.18.0)"; "" if the build has no cuDNN.
std::string CudnnName();
// Whether cuDNN computes this pass for such a shape, without dropout. Takes as long as
// AttentionScratch (seconds on the first call for a shape).
bool CudnnServes(const device::Stream& stream, const AttentionShape& shape, Dtype dtype,
                 bool backward);

// A pass by our own kernels. RunError if head_dim is above 256.
void OwnAttention(const AttentionPass& pass);
// The same without the sequences for which served[sequence] != 0, of which nothing is touched.
// served: [sequences] on the GPU, or null.
void OwnAttentionOfRest(const AttentionPass& pass, const std::int32_t* served);

// Merging cuDNN's result of attention to one block of keys into those of earlier blocks
// (kernels/attention.hpp), in bf16.

// Some rows and heads of some sequences, within larger matrices.
struct AttentionWindow {
  std::int64_t sequences = 0;
  std::int64_t sequence_rows = 0;  // rows in memory from one sequence to the next
  std::int64_t rows = 0;           // rows of a sequence that are in the window
  std::int64_t heads = 0, head_dim = 0;
};
inline AttentionWindow WholeWindow(const AttentionShape& s) {
  return {s.sequences, s.length, s.length, s.heads, s.head_dim};
}

// The matrices below begin at the window's first row and head. Dense operands: part_lse,
// [sequences, heads, rows]: log-sum-exp of the window's rows; part, [sequences * rows, heads *
// head_dim].

// Copy the window of lse ([., heads], fp32) to or from `packed`, [sequences, heads, rows].
void PackLse(const device::Stream& stream, const AttentionWindow& window, const Matrix& lse,
             float* packed);
void UnpackLse(const device::Stream& stream, const AttentionWindow& window, const float* packed,
               const Matrix& lse);

// The sum over blocks (out or dquery) before rounding to bf16, in the scratch of parts: [rows,
// heads * head_dim], fp32, dense. Whoever adds to the sum must read this, not the bf16 copy.
Matrix ExactSum(const AttentionShape& shape, const Matrix& scratch);

// A sum over blocks: `stored`, bf16, only written; `exact`, fp32, before rounding. Rows aligned to
// 16 bytes.
struct RoundedSum {
  Matrix stored, exact;
};

// Merges `part` (attention to some keys, with log-sum-exp part_lse) into `out` and `lse`, as in
// kernels::AttentionPartForward. With part_lse null: adds `part` (the queries' gradient from some
// keys) to `out`; lse is not read.
void MergeAttention(const device::Stream& stream, const AttentionWindow& window, const Matrix& part,
                    const float* part_lse, const RoundedSum& out, const Matrix& lse);

// The documents of a batch as cuDNN reads them. The GPU finds them in each pass, so that one
// recorded graph serves all batches.

inline constexpr std::int64_t kMostDocuments = 512;  // per sequence

// In the stream's memory. Every sequence has the same number of entries, one per document in order;
// entries after its last document have length 0. A sequence with more documents than entries is not
// served by cuDNN: all its entries have length 0.
struct DocumentIndex {
  static constexpr int kOffsets = 5;  // number of operands with strides of their own
  std::int32_t* lengths;              // [sequences, documents]: tokens of each document
  std::int32_t* served;               // [sequences]: 1; 0 if the sequence is not served
  // Each [pieces, sequences of a piece * documents + 1], for operands whose rows are `strides`
  // elements apart: elements from the piece's first row to each document, and to the piece's end.
  std::int64_t* offsets[kOffsets];
  std::int64_t strides[kOffsets];
};

// Queues the kernel that fills `to` from shape.begins. sequences_of_piece: sequences per piece, a
// divisor of shape.sequences; documents: entries per sequence, at most kMostDocuments.
void IndexDocuments(const device::Stream& stream, const AttentionShape& shape,
                    std::int64_t documents, std::int64_t sequences_of_piece,
                    const DocumentIndex& to);

}  // namespace trireme::kernels::cuda
