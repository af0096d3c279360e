// run.canonical: what the deck asks for, and whether the layout and the model suit it.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string>

#include "trireme/training/training_state.hpp"

namespace trireme::training {

namespace {

constexpr const char* kKey = "run.canonical";
constexpr std::int64_t kLeafTokens = 4096;  // of an automatic leaf

// "1, 2 or 4": the powers of two up to one of them.
std::string PowersUpTo(std::int64_t most) {
  std::string text;
  for (std::int64_t power = 1; power <= most; power *= 2) {
    text += fmt::format("{}{}", power == 1 ? "" : power == most ? " or " : ", ", power);
  }
  return text;
}

// ", or run.canonical = 8x2", which would admit these ranks; empty where nothing does.
std::string OrMore(int ranks, int groups, int slices) {
  if (ranks < 1 || !std::has_single_bit(static_cast<unsigned>(ranks))) return {};
  return fmt::format(", or {} = {}x{}", kKey, groups, slices);
}

void CheckGrid(const input::Deck& deck, const comm::GridShape& grid, int groups, int slices) {
  const std::string value = fmt::format("{}x{}", groups, slices);
  if (grid.context > 1) {
    throw deck.Complain("grid.context",
                        fmt::format("a ring adds up attention in an order of its own, but {} = {} "
                                    "asks for the same bits in every layout",
                                    kKey, value),
                        fmt::format("What fits: grid.context = 1, or {} = none.", kKey));
  }
  if (groups % grid.data != 0) {
    throw deck.Complain("grid.data",
                        fmt::format("{} data ranks do not divide the {} of {} = {}", grid.data,
                                    groups, kKey, value),
                        fmt::format("What fits: {} data rank{}{}.", PowersUpTo(groups),
                                    groups == 1 ? "" : "s", OrMore(grid.data, grid.data, slices)));
  }
  if (slices % grid.tensor != 0) {
    throw deck.Complain("grid.tensor",
                        fmt::format("{} tensor ranks do not divide the {} of {} = {}", grid.tensor,
                                    slices, kKey, value),
                        fmt::format("What fits: grid.tensor = {}{}.", PowersUpTo(slices),
                                    OrMore(grid.tensor, groups, grid.tensor)));
  }
}

}  // namespace

model::Canonical ReadCanonical(const input::Deck& deck, const plan::DeckOptions& asked,
                               const model::Options& options, const comm::GridShape& grid,
                               std::int64_t batch, std::int64_t length) {
  const parallel::CanonicalOptions& canonical = asked.parallel.canonical;
  if (!canonical.On()) return {};
  const int groups = canonical.data_groups, slices = canonical.slices;
  const std::string value = fmt::format("{}x{}", groups, slices);
  CheckGrid(deck, grid, groups, slices);
  if (asked.machine.precision == machine::Precision::kBf16) {
    throw deck.Complain("run.precision",
                        fmt::format("{} = {} is built for fp32 and fp64 products", kKey, value),
                        fmt::format("What fits: run.precision = fp32, or {} = none.", kKey));
  }
  const std::int64_t most =
      std::min({options.heads, options.kv_heads, options.ffn, options.vocabulary});
  if (slices > most) {
    throw deck.Complain(
        kKey,
        fmt::format("{} slices, but model.kv_heads = {}, model.heads = {}, "
                    "model.ffn = {}, vocabulary {}: each slice needs one of each",
                    slices, options.kv_heads, options.heads, options.ffn, options.vocabulary),
        fmt::format("What fits: {} = {}x{}.", kKey, groups,
                    std::bit_floor(static_cast<unsigned>(most))));
  }
  std::int64_t leaf = canonical.leaf;
  if (leaf == 0) {
    leaf = std::min(CeilDivide(batch, groups), std::max<std::int64_t>(1, kLeafTokens / length));
  }
  return {groups, slices, std::min(leaf, batch)};
}

void CheckLeaves(const input::Deck& deck, std::int64_t given, const model::Canonical& canonical) {
  const std::int64_t leaf = canonical.leaf;
  if (!canonical.On() || given % leaf == 0) return;
  const std::int64_t lower = std::max(leaf, given / leaf * leaf);
  throw deck.Complain("data.micro_batch",
                      fmt::format("it is no multiple of the leaf, {} sequences", leaf),
                      fmt::format("What fits: data.micro_batch = {} or {}.", lower, lower + leaf));
}

void CheckInstructionSets(const comm::Communicator& world) {
  const std::vector<std::string> sets = world.Gather(device::InstructionSet());
  const auto other = std::find_if(sets.begin(), sets.end(),
                                  [&](const std::string& set) { return set != sets.front(); });
  if (other == sets.end()) return;
  throw AgreedError(
      ExitCode::kBadInput,
      fmt::format("{}: rank 0 has {}, but rank {} has {}: the bits would depend on who "
                  "computes what",
                  kKey, sets.front(), other - sets.begin(), *other),
      fmt::format("Use nodes of one kind, or {} = none.", kKey));
}

}  // namespace trireme::training
