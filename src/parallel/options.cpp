// The keys of [pipeline], of canonical sums, and of transfers of gradients and parameters.
#include "trireme/parallel/options.hpp"

#include <fmt/format.h>

#include <bit>
#include <charconv>
#include <tuple>
#include <utility>

#include "trireme/deck/keys.hpp"

namespace trireme::parallel {

namespace {

constexpr deck::Names<4> kSchedules = {"gpipe", "1f1b", "interleaved", "zero_bubble"};
constexpr int kMostChunks = 1024;  // far beyond any number of layers per stage
constexpr int kMostPrefetch = 64;

// Reads a text like "4x2" as two numbers; zeros if it has another form.
std::pair<int, int> ParsePair(const std::string& text) {
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

// Reads run.canonical into `canonical`; InputError if it is wrong or a leaf is given without it.
void ReadCanonical(const std::string& text, const deck::Deck& deck, Canonical& canonical) {
  if (text == "none") {
    if (canonical.leaf == 0) return;
    throw deck.Complain("run.canonical_leaf", "run.canonical is none",
                        "What fits: run.canonical = 1x1 or more, or leave the leaf out.");
  }
  std::tie(canonical.data_groups, canonical.slices) = ParsePair(text);
  if (PowerOfTwo(canonical.data_groups) && PowerOfTwo(canonical.slices)) return;
  throw deck.Complain("run.canonical",
                      fmt::format("\"{}\" is not DxT with powers of two D and T", text),
                      "What fits: none, or for example 4x2: up to 4 data and 2 tensor ranks.");
}

// Options as the deck gives them, with the text of run.canonical.
struct Asked : Options {
  std::string canonical_text = "none";
};

void Bind(deck::Keys keys, Asked& o) {
  keys.Real("grid.bucket_mib", o.bucket_mib, {1.0 / 1024, 1024}, "MiB",
            "Gradients are summed over the data group in pieces of this size, each as soon as the "
            "backward pass has finished it; on GPUs 32 MiB unless the deck says otherwise. With "
            "grid.sharding = gradients or parameters the pieces are layers instead.")
      .Integer("grid.prefetch", o.prefetch, deck::Between(0, kMostPrefetch), "layers",
               "With grid.sharding = parameters: how many layers ahead of the one that computes "
               "are gathered. More hide a slower network, but each takes the memory of a whole "
               "layer. 0: each layer is gathered when it is needed, which hides nothing.")
      .Switch("grid.overlap", o.overlap,
              "yes: transfers of gradients and gathered parameters run while the model computes. "
              "no: the rank waits for each where it starts, to measure what overlap gains; the "
              "results are the same, bit for bit.")
      .Text("run.canonical", o.canonical_text,
            "DxT, both powers of two: the same bits in every layout whose grid.data divides D and "
            "whose grid.tensor divides T, whatever the pipeline, sharding, micro-batch and number "
            "of threads. Needs a CPU, fp32 or fp64, and grid.context = 1, and costs some speed. "
            "none: layouts agree up to rounding.")
      .Integer("run.canonical_leaf", o.canonical.leaf, deck::AtLeast(0), "sequences",
               "With run.canonical: sequences that are always computed together; data.micro_batch "
               "must be a multiple. 0: about 4,096 tokens, but at most data.batch / D.")
      .Section("pipeline", "The order of forward and backward passes over grid.pipeline stages.")
      .Choice(
          "pipeline.schedule", o.schedule, kSchedules,
          "gpipe: all forward passes, then all backward passes. 1f1b: takes as long as gpipe, but "
          "keeps the activations of no more micro-batches than there are stages. interleaved: "
          "every stage holds several parts of the model; shorter idle times, more messages and "
          "activations. zero_bubble: weight gradients fill the idle times; every stage keeps as "
          "many activations as 1f1b's first. With one stage there is nothing to schedule.")
      .Integer("pipeline.chunks", o.chunks, {1, kMostChunks}, "",
               "Parts of the model on each stage: 2 or more if interleaved, else 1.");
}

}  // namespace

const char* NameOf(ScheduleKind kind) { return kSchedules.at(static_cast<std::size_t>(kind)); }

void Declare(deck::Schema& schema) { deck::Declare(schema, Bind); }

Options Read(const deck::Deck& deck) {
  Asked options = deck::Read(deck, Bind);
  options.schedule_given = deck.Given("pipeline.schedule");
  options.bucket_given = deck.Given("grid.bucket_mib");
  ReadCanonical(options.canonical_text, deck, options.canonical);
  return options;
}

PipelineShape MakePipelineShape(const Options& options, const deck::Deck& deck, int stages) {
  const PipelineShape shape{.kind = options.schedule, .stages = stages, .chunks = options.chunks};
  const bool interleaved = shape.kind == ScheduleKind::kInterleaved;
  if (interleaved && stages == 1) {
    throw deck.Complain("pipeline.schedule", "one stage has nothing to interleave with",
                        "Set grid.pipeline to 2 or more, or choose another schedule.");
  }
  if (interleaved && shape.chunks == 1) {
    throw deck.Complain("pipeline.chunks", "interleaved needs several parts of the model per stage",
                        "Choose 2 or more.");
  }
  if (!interleaved && shape.chunks > 1) {
    throw deck.Complain(
        "pipeline.chunks",
        fmt::format("schedule {} has one part of the model per stage", NameOf(shape.kind)),
        "Choose pipeline.schedule = interleaved, or leave pipeline.chunks out.");
  }
  return shape;
}

}  // namespace trireme::parallel
