// Micro-batches of numbers that say where they belong, and what of them has arrived on a GPU.
#ifndef TRIREME_TEST_UNIT_DRIVER_CUDA_STAGED_TESTING_HPP_
#define TRIREME_TEST_UNIT_DRIVER_CUDA_STAGED_TESTING_HPP_

#include <cstdint>
#include <vector>

#include "trireme/device/memory.hpp"
#include "trireme/model/staged_batches.hpp"

namespace trireme::test {

using Batches = std::vector<data::Entry>;

// sequences: of each entry; 0: an empty one, whose arrays are an older batch's.
inline Batches NumberedBatches(std::int32_t number, const std::vector<std::int64_t>& sequences,
                               std::int64_t length = 13) {
  Batches batches;
  for (const std::int64_t count : sequences) {
    data::Entry& batch = batches.emplace_back();
    batch.sequences = count;
    batch.length = length;
    const auto rows = static_cast<std::size_t>(count == 0 ? 3 : count);
    const auto tokens = rows * static_cast<std::size_t>(length);
    for (std::size_t i = 0; i < tokens; ++i) {
      batch.inputs.push_back(number * 100'000 + static_cast<std::int32_t>(i));
      batch.targets.push_back(-batch.inputs.back());
    }
    for (std::size_t i = 0; i < rows; ++i) {
      batch.ordinals.push_back((std::uint64_t{1} << 40) +
                               static_cast<std::uint64_t>(number) * 1000 + i);
    }
    number += 7;
  }
  return batches;
}

// Room for all that the tests stage.
inline constexpr model::StagedBatches::Limits kStagedLimits{
    .entries = 8, .sequences = 8, .length = 13};

// The batches are in place for what is queued next.
inline void Use(model::StagedBatches& staged, const Batches& batches) {
  staged.Open(staged.Take(staged.Stage(batches)));
}

// Whether the computation sees these batches, those with something in them.
inline bool Sees(const device::Stream& stream, const model::StagedBatches& staged,
                 const Batches& batches) {
  const auto same = [&](const auto& wanted, const auto* there) {
    auto got = wanted;
    const auto bytes = static_cast<std::int64_t>(got.size() * sizeof got[0]);
    device::CopyOut(stream, there, got.data(), bytes);
    return got == wanted;
  };
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const data::Entry& batch = batches[i];
    if (batch.sequences == 0) continue;
    const model::StagedBatches::Entry entry = staged.At(i);
    if (!same(batch.inputs, entry.inputs) || !same(batch.targets, entry.targets) ||
        !same(batch.ordinals, entry.ordinals)) {
      return false;
    }
  }
  return true;
}

}  // namespace trireme::test

#endif  // TRIREME_TEST_UNIT_DRIVER_CUDA_STAGED_TESTING_HPP_
