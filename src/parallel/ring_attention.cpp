// RingAttention: at step s a rank has the block of the rank s places before it. While the queries
// attend to this block, the next block is in flight; in the backward pass, so is the gradient of
// the previous block, to which each rank adds its part.
#include "trireme/parallel/ring_attention.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/kernels/elementwise.hpp"

namespace trireme::parallel {

namespace {

using kernels::AttentionShape;
using kernels::KeyValueBlock;
using kernels::Matrix;

using Flights = std::array<comm::Request, 2>;

constexpr int kBlockTag = 1, kGradientTag = 2;
constexpr std::int64_t kChunks = 8;  // parts of a step's work, between which transfers progress
constexpr std::int64_t kRingAttentionAlignment = 32;  // elements of a buffer, 128 bytes or more
constexpr int kBlocks = 2, kGradients = 3;            // numbers of buffers

// Size of the largest block if sequences of `length` positions are cut over `ranks` ranks.
struct LargestBlock {
  LargestBlock(std::int64_t length, int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      const Positions at = PositionsOf(length, rank, ranks);
      positions = std::max(positions, at.Count());
      consecutive = std::max({consecutive, at.early.Size(), at.late.Size()});
    }
  }
  std::int64_t BufferElements(const AttentionShape& shape) const {
    return RoundUp(shape.sequences * positions * 2 * shape.kv_heads * shape.head_dim,
                   kRingAttentionAlignment);
  }
  std::int64_t positions = 0;    // most positions of a sequence on one rank
  std::int64_t consecutive = 0;  // most consecutive positions on one rank
};

// The buffers and transfers of one rank in one pass.
class Trip {
 public:
  Trip(const comm::Collectives& context, std::int64_t length, const device::Stream& stream,
       const AttentionShape& shape, Dtype dtype, const Matrix& buffers)
      : context_(context), length_(length), stream_(stream), shape_(shape), dtype_(dtype) {
    const LargestBlock largest(length, context.Size());
    const std::int64_t elements = largest.BufferElements(shape);
    for (int i = 0; i < kBlocks; ++i) blocks_[i] = buffers.Columns(i * elements, elements);
    for (int i = 0; i < kGradients; ++i) {
      gradients_[i] = buffers.Columns((kBlocks + i) * elements, elements);
    }
    const std::int64_t begin = (kBlocks + kGradients) * elements;
    panels_ = buffers.Columns(begin, buffers.columns - begin);
  }

  int Steps() const { return context_.Size(); }
  const Matrix& Panels() const { return panels_; }
  Matrix KeysAndValues(const Matrix& qkv) const {
    const std::int64_t queries = shape_.heads * shape_.head_dim;
    return qkv.Columns(queries, qkv.columns - queries);
  }

  void Pack(const Matrix& qkv) const {
    kernels::Copy(stream_, KeysAndValues(qkv), Shaped(blocks_[0], 0));
  }
  KeyValueBlock Block(int step) const { return {Held(step), Shaped(blocks_[step % 2], step)}; }
  // Starts to send this step's block and to receive the next one; nothing in the last step.
  Flights ShiftBlock(int step) const {
    if (step + 1 == Steps()) return {};
    return Shift(Block(step).data, Shaped(blocks_[(step + 1) % 2], step + 1), kBlockTag);
  }

  // The gradient of this step's block: this rank's part, and the sum from the ranks before it.
  Matrix Gradient(int step) const { return Shaped(gradients_[step % 2], step); }
  Matrix Arrived(int step) const { return Shaped(gradients_[2], step); }
  Flights ShiftGradient(int step) const {
    return Shift(Gradient(step), Arrived(step + 1), kGradientTag);
  }

  // Calls compute(part) for all parts of `tasks`; each part keeps all threads busy.
  template <typename Compute>
  void InChunks(const Part& tasks, std::span<comm::Request* const> flights,
                Compute&& compute) const {
    const std::int64_t size =
        stream_.OnGpu() ? std::max<std::int64_t>(1, tasks.Size())  // one part: it is only queued
                        : std::max<std::int64_t>(
                              1, RoundUp(CeilDivide(tasks.Size(), kChunks), stream_.threads));
    for (std::int64_t begin = tasks.begin; begin < tasks.end; begin += size) {
      compute(Part{begin, std::min(begin + size, tasks.end)});
      for (comm::Request* flight : flights) flight->Test();
    }
  }

 private:
  int Owner(int step) const { return (context_.Rank() - step + Steps()) % Steps(); }
  Positions Held(int step) const { return PositionsOf(length_, Owner(step), Steps()); }
  // `buffer` as a dense matrix of the shape of this step's block.
  Matrix Shaped(const Matrix& buffer, int step) const {
    const std::int64_t width = 2 * shape_.kv_heads * shape_.head_dim;
    const std::int64_t rows = shape_.sequences * Held(step).Count();
    return {buffer.data, dtype_, rows, width, width};
  }
  Flights Shift(const Matrix& from, const Matrix& to, int tag) const {
    return context_.StartShift(from.dtype, from.data, from.Size(), to.data, to.Size(), tag);
  }

  const comm::Collectives& context_;
  std::int64_t length_;
  const device::Stream& stream_;
  const AttentionShape& shape_;
  Dtype dtype_;                   // of the blocks; buffers may have a wider one
  Matrix blocks_[kBlocks];        // of even steps, of odd steps
  Matrix gradients_[kGradients];  // of even steps, of odd steps; received
  Matrix panels_;
};

void WaitAll(std::span<comm::Request* const> flights) {
  const double since = Seconds();
  for (comm::Request* flight : flights) flight->Wait(since);
}

void RingAttentionCheck(const AttentionShape& shape, const Positions& own) {
  if (shape.length == own.Count()) return;
  throw RunError(fmt::format("ring attention: {} positions of a sequence where this rank holds {}",
                             shape.length, own.Count()));
}

}  // namespace

RingAttention::RingAttention(const comm::Collectives& context, std::int64_t length)
    : context_(context),
      length_(length),
      own_(PositionsOf(length, context.Rank(), context.Size())) {}

std::int64_t RingAttention::BufferElements(const device::Stream& stream,
                                           const AttentionShape& shape, Dtype dtype,
                                           bool dropout) const {
  if (!Active()) return kernels::AttentionScratch(stream, shape, dtype, dropout);
  const LargestBlock largest(length_, Size());
  AttentionShape own = shape;
  own.positions = own_;
  return (kBlocks + kGradients) * largest.BufferElements(shape) +
         kernels::AttentionPartScratch(stream, own, largest.consecutive, dtype, dropout);
}

void RingAttention::Forward(const device::Stream& stream, const AttentionShape& shape,
                            const Matrix& qkv, const kernels::Dropout& dropout, const Matrix& out,
                            const Matrix& lse, const Matrix& buffers) const {
  if (!Active()) {
    return kernels::AttentionForward(stream, shape, qkv, dropout, out, lse, buffers);
  }
  RingAttentionCheck(shape, own_);
  const Trip trip(context_, length_, stream, shape, qkv.dtype, buffers);
  kernels::AttentionPartStart(stream, out, lse);
  trip.Pack(qkv);
  for (int step = 0; step < trip.Steps(); ++step) {
    auto [send, receive] = trip.ShiftBlock(step);
    comm::Request* const flights[] = {&receive, &send};
    const KeyValueBlock block = trip.Block(step);
    trip.InChunks({0, kernels::AttentionPartTasks(shape)}, flights, [&](const Part& tasks) {
      kernels::AttentionPartForward(stream, shape, tasks, qkv, block, dropout, out, lse,
                                    trip.Panels());
    });
    WaitAll(flights);
  }
}

void RingAttention::Backward(const device::Stream& stream, const AttentionShape& shape,
                             const Matrix& qkv, const kernels::Dropout& dropout, const Matrix& out,
                             const Matrix& dout, const Matrix& lse, const Matrix& dqkv,
                             const Matrix& buffers) const {
  if (!Active()) {
    return kernels::AttentionBackward(stream, shape, qkv, dropout, out, dout, lse, dqkv, buffers);
  }
  RingAttentionCheck(shape, own_);
  const Trip trip(context_, length_, stream, shape, qkv.dtype, buffers);
  Flights block_flights, gradient_flights;  // each: send, receive
  comm::Request* const flights[] = {&block_flights[1], &block_flights[0], &gradient_flights[1],
                                    &gradient_flights[0]};
  const auto compute = [&](const Part& part, const KeyValueBlock& block, const Matrix& dblock) {
    trip.InChunks(part, flights, [&](const Part& tasks) {
      kernels::AttentionPartBackward(stream, shape, tasks, qkv, block, dropout, out, dout, lse,
                                     dqkv, dblock, trip.Panels());
    });
    WaitAll(flights);
  };
  kernels::AttentionPartStartBackward(stream, shape, dqkv, trip.Panels());
  trip.Pack(qkv);
  // Work on the rank's own block is split: the first part hides the arrival of the first block, the
  // second part the return of this rank's gradient.
  const KeyValueBlock own = {own_, trip.KeysAndValues(qkv)};
  const Matrix own_gradient = trip.KeysAndValues(dqkv);
  const std::int64_t all = kernels::AttentionPartTasks(shape);
  const std::int64_t first = kernels::AttentionPartHalf(stream, shape);
  for (int step = 0; step < trip.Steps(); ++step) {
    block_flights = trip.ShiftBlock(step);
    if (step == 0) {
      compute({0, first}, own, own_gradient);
      continue;
    }
    compute({0, all}, trip.Block(step), trip.Gradient(step));
    if (step > 1) kernels::Add(stream, trip.Arrived(step), trip.Gradient(step));
    gradient_flights = trip.ShiftGradient(step);
  }
  compute({first, all}, own, own_gradient);
  kernels::Add(stream, trip.Arrived(trip.Steps()), own_gradient);
}

}  // namespace trireme::parallel
