// Results of attention to one block of keys by a library, merged into those of the blocks before
// (kernels/attention_part.hpp), in bf16.
#ifndef TRIREME_SRC_KERNELS_CUDA_ATTENTION_MERGE_HPP_
#define TRIREME_SRC_KERNELS_CUDA_ATTENTION_MERGE_HPP_

#include <cstdint>

#include "trireme/device/stream.hpp"
#include "trireme/kernels/matrix.hpp"

namespace trireme::kernels::cuda {

// Some rows and heads of some sequences, within matrices of more.
struct AttentionWindow {
  std::int64_t sequences = 0;
  std::int64_t sequence_rows = 0;  // in memory, from one sequence to the next
  std::int64_t rows = 0;           // of a sequence in the window
  std::int64_t heads = 0, head_dim = 0;
};

// Matrices below begin at the window's first row and head. Dense operands: statistics
// [sequences, heads, rows], the log-sum-exp of the window's rows; part [sequences * rows,
// heads * head_dim].

// Copies the window of lse, [., heads] in fp32, to `statistics`.
void PackStatistics(const device::Stream& stream, const AttentionWindow& window,
                    const Matrix& lse, float* statistics);

// A sum over blocks: as it is stored in bf16, and before it was rounded (fp32), which counts where
// it rounds to what is stored. Rows on boundaries of 16 bytes.
struct RoundedSum {
  Matrix stored, exact;
};

// Merges `part`, attention to some keys, and its statistics into `out` and `lse`: as
// kernels::AttentionPartForward.
void MergeAttention(const device::Stream& stream, const AttentionWindow& window,
                    const Matrix& part, const float* statistics, const RoundedSum& out,
                    const Matrix& lse);
// Adds `part`, the queries' gradient by some keys, to `dquery`.
void AddQueryGradient(const device::Stream& stream, const AttentionWindow& window,
                      const Matrix& part, const RoundedSum& dquery);

}  // namespace trireme::kernels::cuda

#endif  // TRIREME_SRC_KERNELS_CUDA_ATTENTION_MERGE_HPP_
