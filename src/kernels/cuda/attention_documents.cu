// The documents of a batch as cuDNN reads them: how long each is, and where it begins in each
// operand. Everything is overwritten.
#include "attention_documents.hpp"

#include "reduce.cuh"
#include "trireme/base/partition.hpp"
#include "trireme/device/cuda/launch.cuh"

namespace trireme::kernels::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / kWarpLanes;

struct IndexOperands {
  const std::int32_t* begins;  // [sequences, length]: AttentionShape::begins
  DocumentIndex to;
  int length, documents, sequences_of_piece;
};

// firsts[i] = row of the first token of document i of the sequence, for the first `documents` of
// them. Returns how many documents there are. All threads of the block take part and have met.
__device__ int FindDocuments(const std::int32_t* begins, int length, int documents, int* firsts) {
  __shared__ int counts[kWarps];
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpLanes, lane = thread % kWarpLanes;
  int found = 0;
  for (int first = 0; first < length; first += kThreads) {
    const int row = first + thread;
    const bool begins_here = row < length && (row == 0 || begins[row] != begins[row - 1]);
    const unsigned in_warp = __ballot_sync(kAllLanes, begins_here);
    if (lane == 0) counts[warp] = __popc(in_warp);
    __syncthreads();
    int before = found + __popc(in_warp & ((1u << lane) - 1));
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) before += counts[w];
      found += counts[w];
    }
    if (begins_here && before < documents) firsts[before] = row;
    __syncthreads();  // counts are read, firsts are written
  }
  return found;
}

// A block has a sequence.
__global__ void __launch_bounds__(kThreads) DocumentIndexKernel(const IndexOperands o) {
  __shared__ int firsts[kMostDocuments];
  const int sequence = static_cast<int>(blockIdx.x);
  const int found =
      FindDocuments(o.begins + std::int64_t{sequence} * o.length, o.length, o.documents, firsts);
  const bool served = found <= o.documents;
  const int piece = sequence / o.sequences_of_piece, place = sequence % o.sequences_of_piece;
  const std::int64_t first_entry = std::int64_t{place} * o.documents;
  const std::int64_t of_piece = std::int64_t{o.sequences_of_piece} * o.documents + 1;
  // The entry behind the last of a piece is its end.
  const bool last = place == o.sequences_of_piece - 1;
  for (int i = static_cast<int>(threadIdx.x); i < o.documents + (last ? 1 : 0); i += kThreads) {
    const bool real = served && i < found;
    const int row = real ? firsts[i] : served || i == o.documents ? o.length : 0;
    for (int operand = 0; operand < DocumentIndex::kOffsets; ++operand) {
      std::int64_t* const offsets = o.to.offsets[operand] + piece * of_piece + first_entry;
      offsets[i] = (std::int64_t{place} * o.length + row) * o.to.strides[operand];
    }
    if (i == o.documents) continue;
    const int end = real && i + 1 < found ? firsts[i + 1] : o.length;
    o.to.lengths[std::int64_t{sequence} * o.documents + i] = real ? end - row : 0;
  }
  if (threadIdx.x == 0) o.to.served[sequence] = served ? 1 : 0;
}

}  // namespace

void IndexDocuments(const device::Stream& stream, const AttentionShape& shape,
                    std::int64_t documents, std::int64_t sequences_of_piece,
                    const DocumentIndex& to) {
  if (shape.sequences == 0) return;
  const IndexOperands operands = {shape.begins, to, static_cast<int>(shape.length),
                                  static_cast<int>(documents),
                                  static_cast<int>(sequences_of_piece)};
  device::cuda::Launch(device::cuda::Queue(stream), &DocumentIndexKernel,
                       dim3(static_cast<unsigned>(shape.sequences)), dim3(kThreads), 0, operands);
}

}  // namespace trireme::kernels::cuda
