// run.canonical: what the deck asks for, and whether the layout and the model suit it.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <string>
#include <utility>

#include "trireme/training/training_state.hpp"

namespace trireme::training {

namespace {

constexpr const char* kKey = "run.canonical";
constexpr std::int64_t kLeafTokens = 4096;  // of an automatic leaf

// "4x2" as two numbers; 0 where it is none.
std::pair<int, int> Parse(const std::string& text) {
  int groups = 0, slices = 0;
  const char *begin = text.data(), *end = begin + text.size();
  const auto [middle, first] = std::from_chars(begin, end, groups);
  if (first != std::errc() || middle == end || *middle != 'x') return {0, 0};
  const auto [last, second] = std::from_chars(middle + 1, end, slices);
  if (second != std::errc() || last != end) return {0, 0};
  return {groups, slices};
}

bool PowerOfTwo(int value) {
  return value > 0 && std::has_single_bit(static_cast<unsigned>(value));
}

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
  if (!PowerOfTwo(ranks)) return {};
  return fmt::format(", or {} = {}x{}", kKey, groups, slices);
}

void CheckGrid(const input::Deck& deck, const comm::GridShape& grid, int groups, int slices) {
  const std::string value = deck.Text(kKey);
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

void DeclareCanonical(input::Schema& schema) {
  schema.Text(
      kKey, "none",
      "DxT, powers of two: the same bits in every layout whose grid.data divides D and "
      "grid.tensor divides T, whatever the pipeline, sharding, micro-batch and number of "
      "threads. Needs grid.context = 1 and costs some speed. none: the same up to rounding.");
  schema.Integer(
      "run.canonical_leaf", 0, input::AtLeast(0), "sequences",
      "With run.canonical: sequences that are always computed together; data.micro_batch "
      "is a multiple. 0: about 4,096 tokens, but no more than a D-th of data.batch.");
}

parallel::Canonical ReadCanonical(const input::Deck& deck, const model::Options& options,
                                  const comm::GridShape& grid, std::int64_t batch,
                                  std::int64_t length) {
  const std::string value = deck.Text(kKey);
  if (value == "none") {
    if (deck.Integer("run.canonical_leaf") == 0) return {};
    throw deck.Complain("run.canonical_leaf", "run.canonical is none",
                        "What fits: run.canonical = 1x1 or more, or leave the leaf out.");
  }
  const auto [groups, slices] = Parse(value);
  if (!PowerOfTwo(groups) || !PowerOfTwo(slices)) {
    throw deck.Complain(kKey, fmt::format("\"{}\" is not DxT with powers of two D and T", value),
                        "What fits: none, or for example 4x2: up to 4 data and 2 tensor ranks.");
  }
  CheckGrid(deck, grid, groups, slices);
  if (deck.Text("run.precision") == "bf16") {
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
  std::int64_t leaf = deck.Integer("run.canonical_leaf");
  if (leaf == 0) {
    leaf = std::min(CeilDivide(batch, groups), std::max<std::int64_t>(1, kLeafTokens / length));
  }
  return {groups, slices, std::min(leaf, batch)};
}

void CheckLeaves(const input::Deck& deck, const parallel::Canonical& canonical) {
  const std::int64_t given = deck.Integer("data.micro_batch"), leaf = canonical.leaf;
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
