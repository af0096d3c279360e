// DescribeRun: the description that goes with a run's device.
#include <fmt/format.h>

#include <algorithm>

#include "trireme/predict/machine.hpp"

namespace trireme::predict {

namespace {

struct Card {
  const char* word;          // in the card's name
  std::int64_t least_bytes;  // of its memory
  const char* description;
};
constexpr std::int64_t kGiB = std::int64_t{1} << 30;
// The first whose word and memory fit.
constexpr Card kCards[] = {{"GB200", 0, "gb200"},
                           {"H200", 0, "h200"},
                           {"H100", 0, "h100"},
                           {"A100", 60 * kGiB, "a100_80"},
                           {"A100", 0, "a100_40"}};

std::string NameOfCard(const device::GpuContext& card) {
  for (const Card& each : kCards) {
    if (card.name.find(each.word) != std::string::npos && card.memory_bytes >= each.least_bytes) {
      return each.description;
    }
  }
  return {};
}

}  // namespace

Described DescribeRun(const std::string& name, const train::MachineFacts& facts,
                      const std::string& shared) {
  std::string chosen = name;
  if (name == kAutoMachine) {
    if (facts.stream.gpu == nullptr) return {{}, "no description of these CPUs was named"};
    chosen = NameOfCard(*facts.stream.gpu);
    if (chosen.empty()) return {{}, "there is no description of a " + facts.stream.gpu->name};
    // A program that was copied without its files trains all the same.
    const std::vector<std::string> names = MachineNames(shared);
    if (std::ranges::find(names, chosen) == names.end()) {
      return {{}, fmt::format("input/machines/{}.in is not beside the program", chosen)};
    }
  }
  Machine machine = ReadMachine(chosen, shared);
  if (machine.gpu != facts.stream.OnGpu()) {
    return {{}, fmt::format("{} describes {}", chosen, machine.gpu ? "GPUs" : "CPUs")};
  }
  if (machine.Of(facts.dtype, facts.stream.fp8).peak <= 0) {
    return {{}, chosen + " states no speed of such products"};
  }
  return {std::move(machine), {}};
}

}  // namespace trireme::predict
