// Checks of run.canonical against grid, model and arithmetic, and its automatic leaf.
#include "canonical.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string>

namespace trireme::train {

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

// ", or run.canonical = 8x2", which would admit these ranks; empty if nothing does.
std::string OrMore(int ranks, int groups, int slices) {
  if (ranks < 1 || !std::has_single_bit(static_cast<unsigned>(ranks))) return {};
  return fmt::format(", or {} = {}x{}", kKey, groups, slices);
}

void CheckGrid(const deck::Deck& deck, const comm::GridShape& grid, int groups, int slices) {
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

void CheckArithmetic(const Request& request, const std::string& value) {
  if (request.machine.stream.OnGpu()) {
    throw request.deck.Complain(kKey, "is arithmetic of the CPU: GPUs have none",
                                "Use run.device = cpu, or run.canonical = none.");
  }
  if (request.options.machine.precision == device::Precision::kBf16) {
    throw request.deck.Complain(
        "run.precision", fmt::format("{} = {} is built for fp32 and fp64 products", kKey, value),
        fmt::format("What fits: run.precision = fp32, or {} = none.", kKey));
  }
}

}  // namespace

parallel::Canonical MakeCanonical(const Request& request, const model::Options& model,
                                  const comm::GridShape& grid, std::int64_t batch) {
  const parallel::CanonicalOptions& asked = request.options.parallel.canonical;
  if (!asked.On()) return {};
  const int groups = asked.data_groups, slices = asked.slices;
  CheckGrid(request.deck, grid, groups, slices);
  CheckArithmetic(request, fmt::format("{}x{}", groups, slices));
  if (model.qk_norm && slices > 1) {
    throw request.deck.Complain(
        kKey, "gradients of model.qk_norm = yes have no fixed order of slices",
        fmt::format("What fits: {} = {}x1, or model.qk_norm = no.", kKey, groups));
  }
  const std::int64_t most = std::min({model.heads, model.kv_heads, model.ffn, model.vocabulary});
  if (slices > most) {
    throw request.deck.Complain(
        kKey,
        fmt::format("{} slices, but model.kv_heads = {}, model.heads = {}, "
                    "model.ffn = {}, vocabulary {}: each slice needs one of each",
                    slices, model.kv_heads, model.heads, model.ffn, model.vocabulary),
        fmt::format("What fits: {} = {}x{}.", kKey, groups,
                    std::bit_floor(static_cast<unsigned>(most))));
  }
  const std::int64_t length = request.options.data.sequence_length;
  std::int64_t leaf = asked.leaf;
  if (leaf == 0) {
    leaf = std::min(CeilDivide(batch, groups), std::max<std::int64_t>(1, kLeafTokens / length));
  }
  return {groups, slices, std::min(leaf, batch)};
}

void CheckLeaves(const Request& request, const parallel::Canonical& canonical) {
  const std::int64_t leaf = canonical.leaf, given = request.options.data.micro_batch;
  if (!canonical.On() || given % leaf == 0) return;
  const std::int64_t lower = std::max(leaf, given / leaf * leaf);
  throw request.deck.Complain(
      "data.micro_batch", fmt::format("it is no multiple of the leaf, {} sequences", leaf),
      fmt::format("What fits: data.micro_batch = {} or {}.", lower, lower + leaf));
}

}  // namespace trireme::train
