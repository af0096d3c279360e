// A training state and a step to save it beside, for the benchmark of checkpoints.
#ifndef TRIREME_TEST_BENCHMARK_CHECKPOINT_STATE_HPP_
#define TRIREME_TEST_BENCHMARK_CHECKPOINT_STATE_HPP_

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/clock.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/comm/communicator.hpp"

namespace trireme::benchmark {

inline constexpr double kStepSeconds = 0.05;

// A model and its moments: of each three large tensors cut over the ranks, and small ones that are
// whole on one rank each.
class Memory {
 public:
  Memory(const comm::Communicator& world, std::int64_t mib) {
    const std::int64_t elements = (mib << 20) / static_cast<std::int64_t>(sizeof(float));
    for (std::vector<kernels::StateBlock>* list : {&state_.model, &state_.optimizer}) {
      constexpr std::int64_t kSmall = 16384, kLarge = 3;  // elements of a small one; number
      const std::int64_t all = elements / 2, small = all / 4 / kSmall;
      const std::int64_t large = (all - small * kSmall) / kLarge;
      for (std::int64_t i = 0; i < kLarge; ++i) {
        const std::int64_t rank = world.Rank(), size = world.Size();
        Add(*list, fmt::format("large.{}", i), large, large * rank / size,
            large * (rank + 1) / size);
      }
      for (std::int64_t i = 0; i < small; ++i) {
        const bool here = i % world.Size() == world.Rank();
        Add(*list, fmt::format("small.{}", i), kSmall, 0, here ? kSmall : 0);
      }
    }
  }
  const checkpoint::State& State() const { return state_; }
  std::int64_t Bytes() const {
    return checkpoint::CopyBytes(state_.model) + checkpoint::CopyBytes(state_.optimizer);
  }

 private:
  void Add(std::vector<kernels::StateBlock>& list, const std::string& name, std::int64_t count,
           std::int64_t begin, std::int64_t end) {
    auto& data = memory_.emplace_back(static_cast<std::size_t>(end - begin));
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i % 8191);
    list.push_back({.name = name,
                    .shape = {count},
                    .dtype = Dtype::kFloat32,
                    .begin = begin,
                    .end = end,
                    .data = data.empty() ? nullptr : data.data()});
  }

  std::vector<std::vector<float>> memory_;
  checkpoint::State state_;
};

// Arithmetic that takes kStepSeconds on an idle core.
class Step {
 public:
  Step() {
    const double start = Seconds();
    while (Seconds() - start < kStepSeconds) Work(1), ++rounds_;
  }
  void operator()() { Work(rounds_); }

 private:
  void Work(std::int64_t rounds) {
    for (std::int64_t i = 0; i < rounds * 4096; ++i) value_ = value_ * 1.0000001 + 1e-9;
  }
  volatile double value_ = 1;
  std::int64_t rounds_ = 0;
};

}  // namespace trireme::benchmark

#endif  // TRIREME_TEST_BENCHMARK_CHECKPOINT_STATE_HPP_
