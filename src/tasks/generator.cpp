// Generator: the turns, and what becomes of their tokens.
#include "generator.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sampling.hpp"
#include "trireme/base/error.hpp"
#include "trireme/tasks/tasks.hpp"

namespace trireme::tasks {

// A prompt that is being continued.
struct Generator::Sequence {
  const Prompt* prompt = nullptr;
  std::size_t place = 0;  // among the results
  std::int32_t slot = 0;
  std::vector<std::int32_t> ids;  // all that the model has to see, the newest last
  std::int64_t kept = 0;          // positions in the cache
  std::vector<std::int32_t> added;
  double log_probability = 0;
  std::optional<GrowingText> text;  // if it has stop strings or is shown
  bool shown = false;
};

Generator::Generator(Setup setup)
    : setup_(std::move(setup)), active_(static_cast<std::size_t>(setup_.slots)) {}

Generator::~Generator() = default;

// Free slots take the replica's next prompts.
void Generator::Fill() {
  const comm::ProcessGrid& grid = setup_.model.Grid();
  const auto step = static_cast<std::size_t>(grid.Shape().data);
  for (std::size_t slot = 0; slot < active_.size() && next_ < prompts_.size(); ++slot) {
    if (active_[slot] != nullptr) continue;
    auto sequence = std::make_unique<Sequence>();
    const Prompt& prompt = prompts_[next_];
    sequence->prompt = &prompt;
    sequence->place = next_;
    sequence->slot = static_cast<std::int32_t>(slot);
    if (prompt.options.start_with_eos) {
      sequence->ids.push_back(static_cast<std::int32_t>(setup_.tokens.Words().eos));
    }
    sequence->ids.insert(sequence->ids.end(), prompt.ids.begin(), prompt.ids.end());
    sequence->shown = on_text_ && next_ == 0;
    if (sequence->shown || !prompt.options.stop.empty()) {
      sequence->text.emplace(setup_.tokens, prompt.ids, prompt.options.stop);
    }
    next_ += step;
    active_[slot] = std::move(sequence);
  }
}

// Whether the model has to see all of the sequence.
bool Generator::IsWhole(const Sequence& sequence) const {
  return sequence.kept == 0 || std::ssize(sequence.ids) > setup_.model.Plan().length;
}

// The last tokens of some sequences, padded to the longest.
data::Entry Generator::WholeEntry(std::span<Sequence* const> sequences) const {
  const std::int64_t most = setup_.model.Plan().length;
  data::Entry entry;
  entry.sequences = std::ssize(sequences);
  for (const Sequence* sequence : sequences) {
    entry.length = std::max(entry.length, std::min(most, std::ssize(sequence->ids)));
  }
  for (const Sequence* sequence : sequences) {
    const std::int64_t seen = std::min(entry.length, std::ssize(sequence->ids));
    entry.inputs.insert(entry.inputs.end(), sequence->ids.end() - seen, sequence->ids.end());
    entry.inputs.resize(entry.inputs.size() + static_cast<std::size_t>(entry.length - seen));
  }
  entry.targets.assign(entry.inputs.size(), data::kMasked);
  entry.ordinals.assign(sequences.size(), 0);
  return entry;
}

void Generator::AddEntry(Turn& turn, data::Entry entry,
                         std::span<Sequence* const> sequences) const {
  model::CachedPlaces& places = turn.places.emplace_back();
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const std::int64_t size = std::ssize(sequences[i]->ids);
    const bool whole = IsWhole(*sequences[i]);
    const std::int64_t seen = whole ? std::min(size, setup_.model.Plan().length) : 1;
    places.slots.push_back(sequences[i]->slot);
    places.firsts.push_back(whole ? 0 : static_cast<std::int32_t>(size - 1));
    places.asked.push_back(static_cast<std::int64_t>(i) * entry.length + seen - 1);
    turn.order.push_back(sequences[i]);
  }
  turn.entries.push_back(std::move(entry));
}

Generator::Turn Generator::MakeTurn() {
  std::vector<Sequence*> whole, one;
  for (const auto& sequence : active_) {
    if (sequence != nullptr) (IsWhole(*sequence) ? whole : one).push_back(sequence.get());
  }
  Turn turn;
  const auto most = static_cast<std::size_t>(setup_.model.Plan().micro_batch);
  for (std::size_t begin = 0; begin < whole.size(); begin += most) {
    const auto some = std::span(whole).subspan(begin, std::min(most, whole.size() - begin));
    AddEntry(turn, WholeEntry(some), some);
  }
  // One entry for each stage of a pipeline, so that all of them work.
  const int stages = setup_.model.Grid().Shape().pipeline;
  for (int stage = 0; stage < stages; ++stage) {
    const Part part = PartOf(std::ssize(one), stage, stages);
    if (part.Size() == 0) continue;
    const auto some = std::span(one).subspan(static_cast<std::size_t>(part.begin),
                                             static_cast<std::size_t>(part.Size()));
    std::vector<std::int32_t> tokens, positions;
    for (const Sequence* sequence : some) {
      tokens.push_back(sequence->ids.back());
      positions.push_back(static_cast<std::int32_t>(std::ssize(sequence->ids) - 1));
    }
    AddEntry(turn, setup_.model.ContinuedEntry(tokens, positions), some);
  }
  return turn;
}

Generator::Chosen Generator::ChosenFor(const Sequence& sequence,
                                       std::span<const double> logits) const {
  if (!AllFinite(logits)) return {0, 0, 0};
  const GenerateOptions& options = sequence.prompt->options;
  std::vector<double> penalised;
  std::span<const double> from = logits;
  if (options.repetition_penalty != 1) {
    penalised.assign(logits.begin(), logits.end());
    Penalise(sequence.ids, options.repetition_penalty, penalised);
    from = penalised;
  }
  const std::int32_t token = Choose(
      from, options, DrawOf(options.seed, sequence.prompt->number, std::ssize(sequence.added)));
  return {static_cast<double>(token), on_text_ ? 0 : LogProbability(logits, token), 1};
}

void Generator::RunTurn(const Turn& made, std::int64_t entries) {
  Turn turn = made;
  model::ParallelModel& model = setup_.model;
  const auto vocabulary = static_cast<std::size_t>(model.Plan().options.vocabulary);
  // Rows of the head without a token are no choice.
  const std::size_t words = setup_.tokens.Words().words.size();
  std::vector<Chosen> chosen(turn.order.size());
  RunPasses(model, entries, turn,
                      [&](const std::vector<double>& logits, std::size_t first, std::size_t rows) {
#pragma omp parallel for num_threads(model.Stream().threads) schedule(dynamic) if (rows > 1)
                        for (std::size_t row = 0; row < rows; ++row) {
                          chosen[first + row] =
                              ChosenFor(*turn.order[first + row],
                                        std::span(logits).subspan(row * vocabulary, words));
                        }
                      });
  ShareChoices(model.Grid(), chosen.data(),
                         std::ssize(chosen) * (sizeof(Chosen) / sizeof(double)));
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    Sequence& sequence = *turn.order[i];
    sequence.kept = std::min(std::ssize(sequence.ids), model.Plan().length);
    Append(sequence, chosen[i]);
  }
}

// A turn without a cache: whole windows, one sequence after the other. Ranks with fewer repeat one
// that no result follows from.
void Generator::RunAlone(std::int64_t turns) {
  model::ParallelModel& model = setup_.model;
  std::vector<Sequence*> order;
  for (const auto& sequence : active_) {
    if (sequence != nullptr) order.push_back(sequence.get());
  }
  for (Sequence* const sequence : order) {
    const data::Entry entry = WholeEntry({&sequence, 1});
    Append(*sequence, ChosenFor(*sequence, model.Logits(entry, entry.length - 1)));
  }
  if (!model.Units().ValuesSharded()) return;
  data::Entry none;
  none.sequences = none.length = 1;
  none.inputs = {0};
  none.targets = {data::kMasked};
  none.ordinals = {0};
  for (std::int64_t turn = std::ssize(order); turn < turns; ++turn) model.Logits(none, 0);
}

void Generator::Append(Sequence& sequence, const Chosen& chosen) {
  if (chosen.finite == 0) {
    finite_ = false;
    return;
  }
  const auto token = static_cast<std::int32_t>(chosen.token);
  const GenerateOptions& options = sequence.prompt->options;
  sequence.ids.push_back(token);
  sequence.added.push_back(token);
  sequence.log_probability += chosen.log_probability;
  if (options.stop_at_eos && token == setup_.tokens.Words().eos) {
    return Finish(sequence, End::kEos);
  }
  if (sequence.text && sequence.text->Add({&token, 1})) return Finish(sequence, End::kStop);
  if (std::ssize(sequence.added) == options.tokens) return Finish(sequence, End::kLength);
  if (sequence.shown) on_text_(sequence.text->Take(false));
}

void Generator::Finish(Sequence& sequence, End end) {
  Continuation result;
  if (sequence.text) {
    if (sequence.shown) on_text_(sequence.text->Take(true));
    result.text = sequence.text->Text();
  } else {
    GrowingText text(setup_.tokens, sequence.prompt->ids, sequence.prompt->options.stop);
    std::vector<std::int32_t> ids = sequence.added;
    if (end == End::kEos) ids.pop_back();
    text.Add(ids);
    result.text = text.Text();
  }
  result.tokens = std::move(sequence.added);
  result.log_probability = sequence.log_probability;
  result.end = end;
  results_[sequence.place] = std::move(result);
  active_[static_cast<std::size_t>(sequence.slot)].reset();
}

std::vector<std::optional<Continuation>> Generator::Run(std::span<const Prompt> prompts,
                                                        const OnText& on_text) {
  const comm::ProcessGrid& grid = setup_.model.Grid();
  prompts_ = prompts;
  on_text_ = grid.World().IsRoot() ? on_text : OnText();
  results_.assign(prompts.size(), std::nullopt);
  next_ = static_cast<std::size_t>(grid.Coordinates().data);
  stopped_ = false;
  for (auto& sequence : active_) sequence.reset();
  while (true) {
    Fill();
    const Turn turn = Caches() ? MakeTurn() : Turn();
    std::int64_t passes = std::ssize(turn.entries);
    if (!Caches()) {
      passes = std::ranges::count_if(active_, [](const auto& each) { return each != nullptr; });
    }
    const std::int64_t own = passes;
    const Verdict verdict =
        AgreeOnTurn(grid.World(), setup_.stopped && setup_.stopped(), finite_, passes);
    stopped_ = verdict == Verdict::kStopped;
    if (verdict != Verdict::kGoOn) break;
    if (own == 0 && !setup_.model.Units().ValuesSharded()) continue;
    if (Caches()) {
      RunTurn(turn, passes);
    } else {
      RunAlone(passes);
    }
  }
  return std::move(results_);
}

}  // namespace trireme::tasks
