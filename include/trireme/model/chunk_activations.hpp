// The activations that micro-batches leave for their backward passes on one chunk of a stage, and
// the slots of memory that they lie in.
#ifndef TRIREME_MODEL_CHUNK_ACTIVATIONS_HPP_
#define TRIREME_MODEL_CHUNK_ACTIVATIONS_HPP_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/device/arena.hpp"
#include "trireme/model/block.hpp"
#include "trireme/parallel/pipeline_program.hpp"

namespace trireme::model {

// Slots of three lifetimes (parallel::Slots), each of the size of the largest micro-batch.
// If weight gradients are tasks of their own and nothing is recomputed, memory rotates: instead of
// the input and backward slots each kept block has a frame, and one frame is spare. A block's
// backward pass writes what its weight gradient needs to the spare frame; the frame of its forward
// pass, now dead, is the next spare.
class ChunkActivations {
 public:
  // Matrices that one entry of a micro-batch leaves.
  struct Live {
    std::vector<Matrix> residuals;     // [blocks + 1] of [rows, dim]: the residual stream
    std::vector<Block::Saved> blocks;  // [blocks]
    std::vector<int> frames;           // [blocks]: of the memory that rotates
    // Of models that translate: residuals are the source stream of blocks of the encoder, the
    // target stream of others, and the encoder's last block writes `encoded`.
    Matrix encoded, memory;  // [source rows, dim]: before and after the encoder's norm
    NormLayer::Saved encoder_norm;
  };
  // Memory of a task's results for later tasks. backward is null unless the weight gradients are a
  // task of their own.
  struct Arenas {
    device::Arena *input = nullptr, *weight = nullptr, *backward = nullptr;
  };

  // blocks must outlive this. entries: of a micro-batch.
  ChunkActivations(const std::vector<Block>& blocks, const parallel::Slots& slots, int entries,
                   bool recomputes);

  // Planning: measuring arenas, in which the tasks of the largest micro-batch run once without
  // memory.
  Arenas BeginMeasuring();
  void EndMeasuring();
  std::int64_t Bytes() const;  // of all slots
  char* Cut(char* memory);     // into slots; returns the end of what it took

  // The slots of a micro-batch. split: its weight gradients are a task of their own.
  Arenas At(const parallel::Slots& slots, bool split);
  Live& LiveAt(int weight_slot, int entry) {
    return live_[static_cast<std::size_t>(weight_slot * entries_ + entry)];
  }
  // Saved matrices of evaluation, which keeps nothing beyond a block: [blocks].
  std::vector<Block::Saved>& Passing() { return passing_; }

  bool Rotates() const { return rotates_; }
  device::Arena& Frame(const Live& live, std::size_t block) {
    return frames_[static_cast<std::size_t>(live.frames[block])];
  }
  device::Arena& SpareFrame() { return frames_[static_cast<std::size_t>(spare_)]; }
  void SwapSpare(Live& live, std::size_t block) { std::swap(live.frames[block], spare_); }

 private:
  std::vector<Block::Saved> MakeSaved() const;
  void MakeLive(int weight_slots);

  const std::vector<Block>& blocks_;
  parallel::Slots slots_;
  int entries_;
  bool rotates_;
  std::int64_t input_bytes_ = 0, weight_bytes_ = 0, backward_bytes_ = 0,
               frame_bytes_ = 0;  // of one
  std::vector<device::Arena> input_, weight_, backward_;
  std::vector<device::Arena> frames_;  // [live blocks], and the spare
  int spare_ = 0;
  std::vector<Live> live_;  // [weight slots, entries]
  std::vector<Block::Saved> passing_;
};

}  // namespace trireme::model

#endif  // TRIREME_MODEL_CHUNK_ACTIVATIONS_HPP_
