// Names of categories, phases and slices, as the trace file has them.
#include <array>
#include <cstddef>

#include "trireme/device/slice.hpp"

namespace trireme::device {

const char* NameOf(SliceCategory category) {
  constexpr std::array<const char*, kCategories> kTexts = {
      "step", "compute", "data", "wait", "transfer", "checkpoint", "validation", "kernel"};
  return kTexts.at(static_cast<std::size_t>(category));
}

const char* NameOf(Phase phase) {
  constexpr std::array<const char*, kPhases> kTexts = {
      "",          "forward", "backward", "input gradient", "weight gradient",
      "recompute", "update",  "evaluate"};
  return kTexts.at(static_cast<std::size_t>(phase));
}

const char* NameOf(SliceName name) {
  constexpr std::array<const char*, kNames> kTexts = {
      "step",          "load batch", "gradients",  "await gradients", "sum gradients",
      "count targets", "norm",       "agreement",  "update",          "task",
      "layer",         "embedding",  "head",       "recompute",       "transfer",
      "wait",          "bubble",     "checkpoint", "validation",      "histograms"};
  return kTexts.at(static_cast<std::size_t>(name));
}

}  // namespace trireme::device
