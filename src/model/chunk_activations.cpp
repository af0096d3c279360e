// ChunkActivations: how large a slot is, and how memory is cut into slots and frames.
#include <algorithm>

#include "trireme/base/error.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/update.hpp"
#include "trireme/model/model.hpp"
#include "trireme/model/pass.hpp"

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

// LeafGradients: which ranges of the gradients a task adds to, and their sums over leaves.

// Flat ranges of the gradients that a phase of a unit's tasks adds to.
std::vector<Part> LeafGradients::RangesOf(int unit, Phase phase) const {
  const Part whole = registry_.Units()[static_cast<std::size_t>(unit)].range;
  if (phase == Phase::kWhole) return {whole};
  if (phase == Phase::kHead) {
    const Part second = registry_.SecondRange();
    return {second.Size() > 0 ? second : whole};
  }
  std::vector<Part> ranges;
  const auto& parameters = registry_.Parameters();
  for (std::size_t id = 0; id < parameters.size(); ++id) {
    const kernels::Parameter& parameter = parameters[id];
    if (registry_.UnitOf(static_cast<kernels::ParameterId>(id)) != unit) continue;
    if (!parameter.Held() || parameter.early != (phase == Phase::kEarly)) continue;
    ranges.push_back({parameter.offset, parameter.offset + parameter.LocalSize()});
  }
  return ranges;
}

// Level `to` += level `from`, which becomes zero.
void LeafGradients::Merge(const std::vector<Part>& ranges, int from, int to) const {
  for (const Part& range : ranges) {
    const Dtype type = registry_.SumType();
    void* source = ElementAt(registry_.GradientLevel(from), type, range.begin);
    kernels::Accumulate(stream_, type, range.Size(), source,
                        ElementAt(registry_.GradientLevel(to), type, range.begin));
    device::SetZero(stream_, source, range.Size() * static_cast<std::int64_t>(SizeOf(type)));
  }
}

void LeafGradients::Enter(int unit, Phase phase, std::int64_t group) {
  if (!canonical_) return;
  const auto [at, added] = trackers_.try_emplace({unit, phase});
  Tracker& tracker = at->second;
  if (added) tracker.ranges = RangesOf(unit, phase);
  const int level =
      tracker.sums.Enter(group, [&](int from, int to) { Merge(tracker.ranges, from, to); });
  registry_.BindGradientLevel(unit, level);
}

void LeafGradients::Finish() {
  for (auto& [key, tracker] : trackers_) {
    const std::vector<Part>& ranges = tracker.ranges;
    tracker.sums.Finish([&](int from, int to) { Merge(ranges, from, to); });
    registry_.BindGradientLevel(key.first, 0);
  }
}

void LeafGradients::AddSecond() const {
  const kernels::ParameterId id = registry_.SecondOf();
  if (id == kernels::kNoParameter) return;
  const kernels::Owned to = registry_.OwnedOf(id);
  const kernels::Parameter& parameter = registry_.Parameters().at(static_cast<std::size_t>(id));
  for (const kernels::Piece& piece : registry_.Owns().pieces) {
    if (piece.range.begin < registry_.SecondRange().begin || piece.own.Size() == 0) continue;
    if (piece.own.begin - registry_.Size() != to.flat.begin - parameter.offset ||
        piece.own.Size() < to.flat.Size()) {
      throw RunError("the two gradients of a tied table are owned differently",
                     "This is a bug in Trireme.");
    }
    const Dtype type = registry_.SumType();
    kernels::Accumulate(stream_, type, to.flat.Size(),
                        ElementAt(registry_.Gradients(), type, piece.gradient),
                        ElementAt(registry_.Gradients(), type, to.gradient));
  }
}

}  // namespace trireme::model
