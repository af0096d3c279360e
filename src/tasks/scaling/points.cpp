// PlanStudy: numbers of ranks, their batches and plans, and reasons to refuse them; Rooms.
#include <fmt/format.h>
#include <algorithm>
#include <cstdint>
#include <set>
#include <sstream>

#include "rows.hpp"
#include "trireme/base/program.hpp"
#include "trireme/device/cores.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::tasks {

namespace {

// `error` as an InputError that begins with the number of ranks.
Error OnRanks(int ranks, const deck::Deck& deck, const Error& error) {
  const std::string where = deck.Where("scaling.ranks");
  return InputError(
      fmt::format("{}scaling.ranks: on {}: {}", where == "default" ? "" : where + ": ",
                  report::Counted(ranks, "rank"), error.what()),
      "Name in scaling.ranks only numbers of ranks that the deck's layout fits.");
}

std::vector<int> CountsOf(const app::Request& request, const comm::Communicator& world,
                          const ScalingOptions& options) {
  if (options.ranks.empty()) {
    const comm::Options& grid = request.comm;
    const std::int64_t unit = std::int64_t{grid.tensor} * grid.context * grid.pipeline;
    return DefaultCounts(static_cast<int>(std::clamp<std::int64_t>(unit, 1, world.Size())),
                         world.Size());
  }
  if (options.ranks.back() <= world.Size()) return options.ranks;
  throw request.deck.Complain(
      "scaling.ranks",
      fmt::format("{} are more than the job's {}", options.ranks.back(), world.Size()),
      fmt::format("Start the job with {} ranks, or name fewer.", options.ranks.back()));
}

// Throws for the first number of ranks on which the deck's grid does not fit.
void CheckLayouts(const app::Request& request, const std::vector<int>& counts) {
  for (const int ranks : counts) {
    try {
      train::PlanGrid(request, request.deck, ranks);
    } catch (const Error& error) {
      throw OnRanks(ranks, request.deck, error);
    }
  }
}

Size SizeOf(const app::Request& request, const ScalingOptions& options, ScalingKind kind, int ranks,
            int base) {
  const std::int64_t batch = request.data.batch;
  const Size size{ranks, BatchOf(kind, batch, ranks, base)};
  if (size.batch > 0) return size;
  throw request.deck.Complain(
      options.base_ranks > 0 ? "scaling.base_ranks" : "scaling.ranks",
      fmt::format("data.batch = {} for {} makes no whole number of windows for {}", batch,
                  report::Counted(base, "rank"), report::Counted(ranks, "rank")),
      "Choose a data.batch that the ranks divide.");
}

// Throws unless the steps have whole batches and repeat no window (for pairs: lie within one
// epoch); otherwise their times would differ.
void CheckSteps(const app::Request& request, const ScalingOptions& options, const Size& size,
                const train::Plan& plan) {
  const std::int64_t wanted = options.warmup_steps + options.steps;
  if (plan.tokens.pairs) {
    if (wanted <= plan.StepsPerEpoch()) return;
    throw request.deck.Complain(
        "scaling.steps",
        fmt::format("{} and {} before them take more than an epoch on {}, of {}",
                    report::Counted(options.steps, "step"), options.warmup_steps,
                    report::Counted(size.ranks, "rank"),
                    report::Counted(plan.StepsPerEpoch(), "step")),
        "Lower scaling.steps, scaling.warmup_steps or data.batch_tokens, or take more pairs.");
  }
  const data::Sampler sampler(plan.training.options.samples);
  const std::int64_t whole = sampler.Windows() / size.batch;
  if (wanted <= whole) return;
  throw request.deck.Complain(
      "scaling.steps",
      fmt::format("{} and {} before them take more than an epoch on {}: {} make {} whole "
                  "batches of {}",
                  report::Counted(options.steps, "step"), options.warmup_steps,
                  report::Counted(size.ranks, "rank"), report::Counted(sampler.Windows(), "window"),
                  report::WithThousands(whole), report::WithThousands(size.batch)),
      "Lower scaling.steps, scaling.warmup_steps or data.batch, or take more text.");
}

// Data options of a point. The limit on tokens per step grows in proportion to the batch.
data::Options DataOf(const app::Request& request, const Size& size) {
  data::Options data = request.data;
  data.batch_tokens = data.batch_tokens * size.batch / data.batch;
  data.batch = size.batch;
  return data;
}

train::Plan PlanOf(const app::Request& request, const app::Device& device,
                   const train::TokenFacts& tokens, const Size& size) {
  app::DeckOptions options = request;
  options.data = DataOf(request, size);
  try {
    return train::MakePlan({.options = options,
                            .deck = request.deck,
                            .ranks = size.ranks,
                            .tokens = tokens,
                            .machine = app::FactsOf(device)});
  } catch (const Error& error) {
    throw OnRanks(size.ranks, request.deck, error);
  }
}

// Adds the lines of all kinds; lines with equal ranks and batch share a point.
void AddLines(const app::Request& request, Study& study, std::vector<Size>& sizes) {
  const int base = study.options.base_ranks > 0 ? study.options.base_ranks : study.counts.front();
  std::vector<std::pair<ScalingKind, Size>> wanted;
  for (const ScalingKind kind : study.options.kinds) {
    for (const int ranks : study.counts) {
      wanted.emplace_back(kind, SizeOf(request, study.options, kind, ranks, base));
    }
  }
  for (const auto& [kind, size] : wanted) {
    if (std::find(sizes.begin(), sizes.end(), size) == sizes.end()) sizes.push_back(size);
  }
  std::stable_sort(sizes.begin(), sizes.end(),
                   [](const Size& a, const Size& b) { return a.ranks < b.ranks; });
  for (const auto& [kind, size] : wanted) {
    const auto place = std::find(sizes.begin(), sizes.end(), size) - sizes.begin();
    study.lines.push_back({kind, static_cast<std::size_t>(place)});
  }
}

}  // namespace

std::vector<int> DefaultCounts(int unit, int world) {
  std::vector<int> counts;
  for (std::int64_t ranks = unit; ranks < world; ranks *= 2) {
    counts.push_back(static_cast<int>(ranks));
  }
  counts.push_back(world);
  return counts;
}

std::int64_t BatchOf(ScalingKind kind, std::int64_t batch, int ranks, int base) {
  if (kind == ScalingKind::kStrong) return batch;
  return batch * ranks % base == 0 ? batch * ranks / base : 0;
}

Study PlanStudy(const app::Request& request, const app::Ranks& ranks, const app::Device& device,
                const app::Files& files, const ScalingOptions& options) {
  Study study{.options = options, .counts = {}, .points = {}, .lines = {}};
  std::vector<Size> sizes;
  ranks.World().Together([&] {
    study.counts = CountsOf(request, ranks.World(), options);
    CheckLayouts(request, study.counts);
    AddLines(request, study, sizes);
    if (!ranks.World().IsRoot()) return;
    study.machine = predict::DescribeRun(request.plan.machine, app::FactsOf(device),
                                         SharedFolder(ProgramFile()));
  });
  std::vector<train::TokenFacts> tokens;
  for (const Size& size : sizes) {
    if (request.model.Translates()) {
      tokens.push_back(app::InspectPairs(request, ranks, DataOf(request, size)));
    } else {
      tokens.push_back(tokens.empty() ? app::InspectTokens(request, ranks, files) : tokens.front());
    }
  }
  ranks.World().Together([&] {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      study.points.push_back({.size = sizes[i],
                              .room = {},
                              .plan = PlanOf(request, device, tokens[i], sizes[i]),
                              .rounds = {}});
      CheckSteps(request, options, sizes[i], study.points.back().plan);
    }
  });
  const Rooms rooms(ranks, device);
  for (Point& point : study.points) point.room = rooms.Of(point.size.ranks);
  return study;
}

// Rooms: a node's ranks exchange what they may use; totals are summed over nodes.

namespace {

// Text with this rank's number, its threads, and its cores or card.
std::string Pack(const app::Ranks& ranks, const app::Device& device) {
  if (device.gpu != nullptr)
    return fmt::format("{} 1 {}", ranks.World().Rank(), device.gpu->Context().address);
  std::string text = fmt::format("{} {}", ranks.World().Rank(), device.stream.threads);
  for (const device::HardwareThread& thread :
       device::DescribeThreads(ranks.signals->UsableCores())) {
    text += fmt::format(" {}", thread.core);
  }
  return text;
}

}  // namespace

Rooms::Rooms(const app::Ranks& ranks, const app::Device& device)
    : world_(ranks.World()), first_(ranks.Node().IsRoot()), threads_(device.stream.threads) {
  for (const std::string& text : ranks.Node().Gather(Pack(ranks, device))) {
    std::istringstream words(text);
    Neighbour neighbour;
    words >> neighbour.rank >> neighbour.threads;
    for (std::string place; words >> place;) neighbour.places.push_back(place);
    node_.push_back(std::move(neighbour));
  }
}

Room Rooms::Of(int ranks) const {
  std::set<std::string> places;
  std::int64_t threads = 0;
  for (const Neighbour& neighbour : node_) {
    if (neighbour.rank >= ranks) continue;
    threads += neighbour.threads;
    places.insert(neighbour.places.begin(), neighbour.places.end());
  }
  const auto cores = static_cast<std::int64_t>(places.size());
  const bool counts = first_ && threads > 0;
  Room room;
  room.nodes = static_cast<int>(world_.Sum(std::int64_t{counts}));
  room.threads = static_cast<int>(world_.Max(std::int64_t{world_.Rank() < ranks ? threads_ : 0}));
  room.cores = static_cast<int>(world_.Sum(counts ? cores : 0));
  room.oversubscribed = world_.Max(std::int64_t{threads > cores}) > 0;
  return room;
}

}  // namespace trireme::tasks
