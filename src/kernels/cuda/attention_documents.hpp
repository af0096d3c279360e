// The documents of a batch as cuDNN reads them, found on the GPU in each pass, so that a recorded
// graph serves every batch.
#ifndef TRIREME_SRC_KERNELS_CUDA_ATTENTION_DOCUMENTS_HPP_
#define TRIREME_SRC_KERNELS_CUDA_ATTENTION_DOCUMENTS_HPP_

#include <cstdint>

#include "trireme/kernels/attention.hpp"

namespace trireme::kernels::cuda {

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

#endif  // TRIREME_SRC_KERNELS_CUDA_ATTENTION_DOCUMENTS_HPP_
