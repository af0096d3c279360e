// BeamSearch; Translator: its turns, and the cache slots that hold the beams of each text.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <tuple>

#include "trireme/base/error.hpp"
#include "trireme/tasks/evaluate.hpp"

namespace trireme::tasks {

BeamSearch::BeamSearch(const Options& options) : options_(options) {}

double BeamSearch::Penalty(std::int64_t tokens) const {
  return std::pow((5.0 + static_cast<double>(tokens)) / 6.0, options_.length_penalty);
}

// Considers a text that ended or was cut off as the best; of equal scores the earlier one stays.
void BeamSearch::Offer(const Beam& beam, bool ended) {
  const double score = beam.log_probability / Penalty(std::ssize(beam.tokens));
  if (best_ && (best_->ended && !ended)) return;
  const bool completes = best_ && ended && !best_->ended;
  if (best_ && !completes && best_->score >= score) return;
  best_ = Result{beam.tokens, beam.log_probability, score, ended};
}

void BeamSearch::Advance(std::span<const Candidate> candidates) {
  // A text extended by one token: sum of log-probabilities, its beam, the token.
  struct Longer {
    double sum = 0;
    std::size_t beam = 0;
    std::int32_t token = 0;
  };
  std::vector<Longer> all;
  const auto width = static_cast<std::size_t>(options_.beams);
  for (std::size_t i = 0; i < beams_.size() * width; ++i) {
    const Candidate& candidate = candidates[i];
    if (candidate.token < 0) continue;
    const std::size_t beam = i / width;
    all.push_back(
        {beams_[beam].log_probability + candidate.log_probability, beam, candidate.token});
  }
  const auto kept = static_cast<std::ptrdiff_t>(std::min(width, all.size()));
  std::partial_sort(
      all.begin(), all.begin() + kept, all.end(), [](const Longer& a, const Longer& b) {
        return std::tuple(-a.sum, a.beam, a.token) < std::tuple(-b.sum, b.beam, b.token);
      });
  all.resize(static_cast<std::size_t>(kept));
  std::vector<Beam> next;
  for (const Longer& longer : all) {
    Beam beam{static_cast<std::int64_t>(longer.beam), beams_[longer.beam].tokens, longer.sum};
    beam.tokens.push_back(longer.token);
    if (longer.token == options_.eos) {
      Offer(beam, true);
    } else {
      next.push_back(std::move(beam));
    }
  }
  beams_ = std::move(next);
  if (beams_.empty()) return;
  if (std::ssize(beams_.front().tokens) == options_.longest) {
    for (const Beam& beam : beams_) Offer(beam, false);
    return beams_.clear();
  }
  // Sums only fall: no text can beat the first beam's sum with the penalty of the longest text.
  const double most = beams_.front().log_probability / Penalty(options_.longest);
  if (best_ && best_->score >= most) beams_.clear();
}

void LikeliestTokens(std::span<const double> logits, std::int64_t count,
                     std::span<BeamSearch::Candidate> candidates) {
  const auto wanted = static_cast<std::size_t>(count);
  if (candidates.size() < wanted) throw RunError("no room for the likeliest tokens");
  std::size_t found = 0;
  for (std::size_t id = 0; id < logits.size() && wanted > 0; ++id) {
    const double logit = logits[id];
    if (found == wanted && !(logit > candidates[found - 1].log_probability)) continue;
    if (found < wanted) ++found;
    std::size_t place = found - 1;
    for (; place > 0 && candidates[place - 1].log_probability < logit; --place) {
      candidates[place] = candidates[place - 1];
    }
    candidates[place] = {static_cast<std::int32_t>(id), logit};
  }
  const double sum = LogSumOfExponentials(logits);
  for (std::size_t i = 0; i < found; ++i) candidates[i].log_probability -= sum;
  for (std::size_t i = found; i < wanted; ++i) candidates[i] = {};
}

namespace {

constexpr double kNotFinite = -2;  // in place of a row's first token: its logits are not finite

}  // namespace

Translator::Translator(Setup setup) : setup_(std::move(setup)) {
  const model::ModelPlan& plan = setup_.model.Plan();
  const std::int64_t places = plan.cache_slots / setup_.search.beams;
  if (!plan.options.Translates() || places == 0) {
    throw RunError("a model without a cache for translations", "This is a bug in Trireme.");
  }
  setup_.search.longest = std::min(setup_.search.longest, plan.length);
  active_.resize(static_cast<std::size_t>(places));
}

void Translator::Fill() {
  for (std::size_t place = 0; place < active_.size() && next_ < order_.size(); ++place) {
    if (active_[place] != nullptr) continue;
    const std::size_t number = order_[next_++];
    active_[place] = std::make_unique<Text>(Text{.place = number,
                                                 .source = &sources_[number],
                                                 .search = BeamSearch(setup_.search),
                                                 .slots = std::vector<std::int32_t>(Width()),
                                                 .has_source = std::vector<bool>(Width()),
                                                 .held = {0}});
    Text& text = *active_[place];
    std::iota(text.slots.begin(), text.slots.end(), static_cast<std::int32_t>(place * Width()));
    text.has_source[0] = true;
  }
}

// Adds an entry with new source texts, padded to the longest, and the eos that begins translations.
void Translator::AddFresh(Turn& turn, std::span<Text* const> texts) const {
  data::Entry& entry = turn.entries.emplace_back();
  model::CachedPlaces& places = turn.places.emplace_back();
  entry.sequences = std::ssize(texts);
  entry.length = 1;
  for (const Text* text : texts) {
    entry.source_length = std::max(entry.source_length, std::ssize(*text->source));
  }
  for (Text* const text : texts) {
    entry.sources.insert(entry.sources.end(), text->source->begin(), text->source->end());
    places.asked.push_back(std::ssize(places.slots));
    places.slots.push_back(text->slots[0]);
    places.source_lasts.push_back(text->LastSource());
    entry.sources.resize(places.slots.size() * static_cast<std::size_t>(entry.source_length));
    entry.source_lengths.push_back(text->LastSource() + 1);
    turn.rows.push_back({text, 0});
    text->begun = true;
  }
  places.firsts.assign(texts.size(), 0);
  entry.inputs.assign(texts.size(), setup_.search.eos);
  entry.targets.assign(texts.size(), data::kMasked);
  entry.ordinals.assign(texts.size(), 0);
  entry.target_lengths.assign(texts.size(), 1);
  entry.positions = PositionsOf(1, 0, 1);
}

void Translator::AddContinued(Turn& turn, std::span<const Row> rows) const {
  model::CachedPlaces places;
  std::vector<std::int32_t> tokens;
  for (const Row& row : rows) {
    Text& text = *row.text;
    const BeamSearch::Beam& beam = text.search.Beams()[row.beam];
    tokens.push_back(beam.tokens.back());
    places.asked.push_back(std::ssize(places.slots));
    places.slots.push_back(text.slots[text.held[row.beam]]);
    places.firsts.push_back(static_cast<std::int32_t>(beam.tokens.size()));
    places.source_lasts.push_back(text.LastSource());
    places.copies.insert(places.copies.end(), text.copies.begin(), text.copies.end());
    text.copies.clear();
    turn.rows.push_back(row);
  }
  turn.entries.push_back(setup_.model.Inference().ContinuedEntry(tokens, places.firsts));
  turn.places.push_back(std::move(places));
}

Translator::Turn Translator::MakeTurn() {
  std::vector<Text*> fresh;
  std::vector<Row> rows;
  for (const auto& text : active_) {
    if (text == nullptr) continue;
    if (!text->begun) fresh.push_back(text.get());
    for (std::size_t i = 0; text->begun && i < text->search.Beams().size(); ++i) {
      rows.push_back({text.get(), i});
    }
  }
  std::ranges::stable_sort(fresh, std::greater(),
                           [](const Text* text) { return text->source->size(); });
  Turn turn;
  for (auto rest = std::span(fresh); !rest.empty();) {
    // Number of texts that fit into one entry; the first text is the longest.
    const std::int64_t most =
        std::min(setup_.model.Plan().micro_batch,
                 setup_.model.LocalPlan().tokens / std::ssize(*rest.front()->source));
    const auto count =
        static_cast<std::size_t>(std::clamp<std::int64_t>(most, 1, std::ssize(rest)));
    AddFresh(turn, rest.first(count));
    rest = rest.subspan(count);
  }
  EachStagesPart(setup_.model.Grid(), rows,
                 [&](std::span<const Row> some) { AddContinued(turn, some); });
  return turn;
}

// logits: [rows, vocabulary]; choices: [rows, beams, 2], filled with the likeliest tokens of each
// row and their log-probabilities.
void Translator::Choose(std::span<const double> logits, std::span<double> choices) const {
  const auto vocabulary = static_cast<std::size_t>(setup_.model.Plan().options.vocabulary);
  const auto types = static_cast<std::size_t>(setup_.types);
  const auto count = static_cast<std::int64_t>(logits.size() / vocabulary);
#pragma omp parallel for num_threads(setup_.model.Stream().threads) schedule(dynamic) if (count > 1)
  for (std::int64_t i = 0; i < count; ++i) {
    const auto row = static_cast<std::size_t>(i);
    const std::span<const double> all = logits.subspan(row * vocabulary, types);
    const std::span<double> to = choices.subspan(row * 2 * Width(), 2 * Width());
    if (!AllFinite(all)) {
      to[0] = kNotFinite;
      continue;
    }
    std::vector<BeamSearch::Candidate> likeliest(Width());
    LikeliestTokens(all, setup_.search.beams, likeliest);
    for (std::size_t k = 0; k < Width(); ++k) {
      to[2 * k] = likeliest[k].token;
      to[2 * k + 1] = likeliest[k].log_probability;
    }
  }
}

void Translator::RunTurn(Turn& turn, std::int64_t entries) {
  model::ParallelModel& model = setup_.model;
  std::vector<double> choices(turn.rows.size() * 2 * Width());
  RunPasses(model, entries, turn,
            [&](const std::vector<double>& logits, std::size_t first, std::size_t) {
              Choose(logits, std::span(choices).subspan(first * 2 * Width()));
            });
  ShareChoices(model.Grid(), choices.data(), std::ssize(choices));
  for (std::size_t first = 0, end = 0; first < turn.rows.size(); first = end) {
    while (end < turn.rows.size() && turn.rows[end].text == turn.rows[first].text) ++end;
    Advance(std::span(turn.rows).subspan(first, end - first),
            std::span(choices).subspan(first * 2 * Width(), (end - first) * 2 * Width()));
  }
}

// Advances a text's search. rows: all rows of the text; choices: as filled by Choose.
void Translator::Advance(std::span<const Row> rows, std::span<const double> choices) {
  Text& text = *rows.front().text;
  std::vector<BeamSearch::Candidate> candidates;
  for (std::size_t i = 0; i < choices.size(); i += 2) {
    if (choices[i] == kNotFinite) {
      finite_ = false;
      return;
    }
    candidates.push_back({static_cast<std::int32_t>(choices[i]), choices[i + 1]});
  }
  text.search.Advance(candidates);
  if (!text.search.Done()) return MoveBeams(text);
  results_[text.place] = text.search.Best();
  std::ranges::find_if(active_, [&](const auto& each) { return each.get() == &text; })->reset();
}

// The first child of a beam keeps its parent's slot; others get copies in free slots.
void Translator::MoveBeams(Text& text) const {
  const std::vector<BeamSearch::Beam>& beams = text.search.Beams();
  std::vector<bool> taken(Width());
  std::vector<std::size_t> held(beams.size(), Width());
  for (std::size_t i = 0; i < beams.size(); ++i) {
    const std::size_t slot = text.held[static_cast<std::size_t>(beams[i].parent)];
    if (taken[slot]) continue;
    taken[slot] = true;
    held[i] = slot;
  }
  std::size_t free = 0;
  for (std::size_t i = 0; i < beams.size(); ++i) {
    if (held[i] < Width()) continue;
    while (taken[free]) ++free;
    taken[free] = true;
    held[i] = free;
    text.copies.push_back(
        {.from = text.slots[text.held[static_cast<std::size_t>(beams[i].parent)]],
         .to = text.slots[free],
         .positions = std::ssize(beams[i].tokens),
         .source_positions = text.has_source[free] ? 0 : std::ssize(*text.source)});
    text.has_source[free] = true;
  }
  text.held = std::move(held);
}

std::vector<std::optional<BeamSearch::Result>> Translator::Run(std::span<const Ids> sources) {
  const comm::ProcessGrid& grid = setup_.model.Grid();
  sources_ = sources;
  results_.assign(sources.size(), std::nullopt);
  order_.clear();
  for (auto i = static_cast<std::size_t>(grid.Coordinates().data); i < sources.size();
       i += static_cast<std::size_t>(grid.Shape().data)) {
    order_.push_back(i);
  }
  std::ranges::stable_sort(order_, std::greater(),
                           [&](std::size_t i) { return sources[i].size(); });
  next_ = 0;
  for (auto& text : active_) text.reset();
  Turn turn;
  const auto make = [&] {
    Fill();
    turn = MakeTurn();
    return std::ssize(turn.entries);
  };
  stopped_ = RunTurns(setup_.model, setup_.stopped, finite_, make,
                      [&](std::int64_t passes) { RunTurn(turn, passes); });
  return std::move(results_);
}

Translator::Setup SetupOf(model::ParallelModel& model, const data::PairFile& pairs,
                          const GenerateOptions& options, std::function<bool()> stopped) {
  const data::TokenFile& targets = pairs.Of(data::Side::kTarget);
  return {.model = model,
          .search = {.beams = options.beams,
                     .length_penalty = options.length_penalty,
                     .longest = options.tokens,
                     .eos = static_cast<std::int32_t>(targets.Words().eos)},
          .types = targets.VocabularySize(),
          .stopped = std::move(stopped)};
}

bool LeadsReplica(const comm::ProcessGrid& grid) {
  const comm::GridShape& at = grid.Coordinates();
  return at.pipeline == 0 && at.context == 0 && at.tensor == 0;
}

void RunPasses(model::ParallelModel& model, std::int64_t passes, TurnPasses& turn,
               ChooseRows choose) {
  const comm::ProcessGrid& grid = model.Grid();
  if (model.Units().ValuesSharded()) {
    turn.entries.resize(static_cast<std::size_t>(passes));
    turn.places.resize(static_cast<std::size_t>(passes));
  }
  const bool chooses = grid.LastStage() && grid.Coordinates().tensor == 0;
  const auto most = static_cast<std::size_t>(model.LocalPlan().evaluation_entries);
  std::size_t first = 0;
  for (std::size_t begin = 0; begin < turn.entries.size(); begin += most) {
    const std::size_t count = std::min(most, turn.entries.size() - begin);
    const auto places = std::span(turn.places).subspan(begin, count);
    std::size_t rows = 0;
    for (const model::CachedPlaces& place : places) rows += place.asked.size();
    const std::vector<double>& logits =
        model.Inference().CachedLogits(std::span(turn.entries).subspan(begin, count), places);
    if (chooses) choose(logits, first, rows);
    first += rows;
  }
}

void ShareChoices(const comm::ProcessGrid& grid, void* choices, std::int64_t numbers) {
  if (grid.LastStage()) {
    grid.Over(comm::Group::kTensor).OnHost().Broadcast(Dtype::kFloat64, choices, numbers, 0);
  }
  grid.Over(comm::Group::kPipeline)
      .OnHost()
      .Broadcast(Dtype::kFloat64, choices, numbers, grid.Shape().pipeline - 1);
}

bool RunTurns(const model::ParallelModel& model, const std::function<bool()>& stopped,
              const bool& finite, FunctionRef<std::int64_t()> make,
              FunctionRef<void(std::int64_t passes)> run) {
  // A rank's wish. One maximum over ranks finds the largest or, without any, the most passes.
  enum Wish : std::int64_t { kNone = 0, kStop = 1, kNotFinite = 2 };
  constexpr std::int64_t kUnit = std::int64_t{1} << 40;
  while (true) {
    const std::int64_t own = make();
    const std::int64_t wish = !finite ? kNotFinite : stopped && stopped() ? kStop : kNone;
    const std::int64_t all = model.Grid().World().Max(wish * kUnit + own);
    const std::int64_t passes = all % kUnit;
    if (all / kUnit == kNotFinite) {
      throw AgreedError(ExitCode::kFailed, "the model's prediction is not finite",
                        "Its weights are damaged.");
    }
    if (all / kUnit == kStop) return true;
    if (passes == 0) return false;
    if (own > 0 || model.Units().ValuesSharded()) run(passes);
  }
}

}  // namespace trireme::tasks
