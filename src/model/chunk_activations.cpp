// ChunkActivations: how large a slot is, and how memory is cut into slots and frames.
#include "trireme/model/chunk_activations.hpp"

#include <algorithm>

namespace trireme::model {

ChunkActivations::ChunkActivations(const std::vector<Block>& blocks, const parallel::Slots& slots,
                                   int entries, bool recomputes)
    : blocks_(blocks),
      slots_(slots),
      entries_(entries),
      rotates_(slots.backward > 0 && !recomputes),
      passing_(MakeSaved()) {}

std::vector<Block::Saved> ChunkActivations::MakeSaved() const {
  std::vector<Block::Saved> saved;
  for (const Block& block : blocks_) saved.push_back(block.MakeSaved());
  return saved;
}

// Frames 0, 1, ... belong to the first live entry's blocks, and so on; the last is the spare.
void ChunkActivations::MakeLive(int weight_slots) {
  live_.clear();
  spare_ = 0;
  for (int entry = 0; entry < weight_slots * entries_; ++entry) {
    Live& live = live_.emplace_back();
    live.residuals.resize(blocks_.size() + 1);
    live.blocks = MakeSaved();
    for (std::size_t block = 0; block < blocks_.size(); ++block) live.frames.push_back(spare_++);
  }
}

ChunkActivations::Arenas ChunkActivations::BeginMeasuring() {
  MakeLive(1);
  for (std::vector<device::Arena>* arenas : {&input_, &weight_, &backward_}) {
    arenas->push_back(device::Arena::Measuring());
  }
  for (int frame = 0; frame <= spare_; ++frame) frames_.push_back(device::Arena::Measuring());
  return At({}, slots_.backward > 0);
}

void ChunkActivations::EndMeasuring() {
  input_bytes_ = input_.front().Peak();
  weight_bytes_ = weight_.front().Peak();
  backward_bytes_ = backward_.front().Peak();
  for (const device::Arena& frame : frames_) frame_bytes_ = std::max(frame_bytes_, frame.Peak());
  for (std::vector<device::Arena>* arenas : {&input_, &weight_, &backward_, &frames_}) {
    arenas->clear();
  }
  MakeLive(slots_.weight);
}

std::int64_t ChunkActivations::Bytes() const {
  return slots_.input * input_bytes_ + slots_.weight * weight_bytes_ +
         slots_.backward * backward_bytes_ + (rotates_ ? (spare_ + 1) * frame_bytes_ : 0);
}

char* ChunkActivations::Cut(char* memory) {
  const auto cut = [&memory](std::vector<device::Arena>& arenas, int count, std::int64_t size) {
    for (int slot = 0; slot < count; ++slot, memory += size) arenas.emplace_back(memory, size);
  };
  cut(input_, slots_.input, input_bytes_);
  cut(weight_, slots_.weight, weight_bytes_);
  cut(backward_, slots_.backward, backward_bytes_);
  if (rotates_) cut(frames_, spare_ + 1, frame_bytes_);
  return memory;
}

ChunkActivations::Arenas ChunkActivations::At(const parallel::Slots& slots, bool split) {
  return {&input_[static_cast<std::size_t>(slots.input)],
          &weight_[static_cast<std::size_t>(slots.weight)],
          split ? &backward_[static_cast<std::size_t>(slots.backward)] : nullptr};
}

}  // namespace trireme::model
