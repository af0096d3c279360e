// Launchers for rows of logits: statistics, losses and gradients of the vocabulary head on the GPU.
#pragma once

#include <cstdint>

#include "trireme/kernels/vocabulary_loss.hpp"

namespace trireme::kernels::cuda {

// Arguments that all rows share. targets: [rows] on the GPU, < 0: masked; first: first token of
// this slice; vocabulary: tokens of all slices; parts: number of slices.
struct VocabularyRows {
  const std::int32_t* targets = nullptr;
  std::int32_t first = 0;
  std::int64_t vocabulary = 0;
  double smoothing = 0;
  int parts = 1;
};

// statistics: [rows, kSoftmaxStatistics] of this slice, overwritten. logits: [rows, slice].
void LogitStatistics(const device::Stream& stream, const Matrix& logits, const VocabularyRows& rows,
                     double* statistics);
// The same for a slice that is the whole vocabulary (rows.parts = 1); also turns logits into d loss
// / d logits. A block's shared memory must hold a row (gpu::kLogitsOfBlock).
void LogitStatisticsAndGradients(const device::Stream& stream, const Matrix& logits,
                                 const VocabularyRows& rows, double* statistics);
// losses: [rows], overwritten; statistics: [parts, count, kSoftmaxStatistics].
void LogitLosses(const device::Stream& stream, std::int64_t count, const VocabularyRows& rows,
                 const double* statistics, double* losses);
// Turns logits into d loss / d logits.
void LogitGradients(const device::Stream& stream, const Matrix& logits, const VocabularyRows& rows,
                    const double* statistics);

}  // namespace trireme::kernels::cuda
