// Generator: runs the turns and processes the tokens that they give.
#include "generator.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include "root.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/deck/json_text.hpp"

namespace trireme::tasks {

Generator::Generator(Setup setup)
    : setup_(std::move(setup)), active_(static_cast<std::size_t>(setup_.slots)) {}

// Assigns the replica's next prompts to free slots.
void Generator::Fill() {
  const auto step = static_cast<std::size_t>(setup_.model.Grid().Shape().data);
  for (std::size_t slot = 0; slot < active_.size() && next_ < prompts_.size(); ++slot) {
    if (active_[slot] != nullptr) continue;
    const Prompt& prompt = prompts_[next_];
    active_[slot] = std::make_unique<Sequence>(
        Sequence{.prompt = &prompt, .place = next_, .slot = static_cast<std::int32_t>(slot)});
    Sequence* const sequence = active_[slot].get();
    if (prompt.options.start_with_eos) {
      sequence->ids.push_back(static_cast<std::int32_t>(setup_.tokens.Words().eos));
    }
    sequence->ids.insert(sequence->ids.end(), prompt.ids.begin(), prompt.ids.end());
    sequence->shown = on_text_ && next_ == 0;
    if (sequence->shown || !prompt.options.stop.empty()) {
      sequence->text.emplace(setup_.tokens, prompt.ids, prompt.options.stop);
    }
    next_ += step;
  }
}

// Whether the model must read a sequence anew: it is not cached, or longer than the model takes.
bool Generator::IsWhole(const Sequence& sequence) const {
  return sequence.kept == 0 || std::ssize(sequence.ids) > setup_.model.Plan().length;
}

// An entry with the last tokens of some sequences, padded to the longest.
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
  EachStagesPart(setup_.model.Grid(), one, [&](std::span<Sequence* const> some) {
    std::vector<std::int32_t> tokens, positions;
    for (const Sequence* sequence : some) {
      tokens.push_back(sequence->ids.back());
      positions.push_back(static_cast<std::int32_t>(std::ssize(sequence->ids) - 1));
    }
    AddEntry(turn, setup_.model.Inference().ContinuedEntry(tokens, positions), some);
  });
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

void Generator::RunTurn(Turn& turn, std::int64_t entries) {
  model::ParallelModel& model = setup_.model;
  const auto vocabulary = static_cast<std::size_t>(model.Plan().options.vocabulary);
  // The head may have padding rows, which are no tokens.
  const std::size_t words = setup_.tokens.Words().words.size();
  std::vector<Chosen> chosen(turn.order.size());
  RunPasses(model, entries, turn,
            [&](const std::vector<double>& logits, std::size_t first, std::size_t rows) {
#pragma omp parallel for num_threads(model.Stream().threads) schedule(dynamic) if (rows > 1)
              for (std::size_t row = 0; row < rows; ++row) {
                chosen[first + row] = ChosenFor(*turn.order[first + row],
                                                std::span(logits).subspan(row * vocabulary, words));
              }
            });
  ShareChoices(model.Grid(), chosen.data(), std::ssize(chosen) * (sizeof(Chosen) / sizeof(double)));
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    Sequence& sequence = *turn.order[i];
    sequence.kept = std::min(std::ssize(sequence.ids), model.Plan().length);
    Append(sequence, chosen[i]);
  }
}

// A turn without a cache: whole windows, one sequence at a time. With sharded values, ranks with
// fewer sequences add dummy passes, because the others wait for them.
void Generator::RunAlone(std::int64_t turns) {
  model::ParallelModel& model = setup_.model;
  std::vector<Sequence*> order;
  for (const auto& sequence : active_) {
    if (sequence != nullptr) order.push_back(sequence.get());
  }
  for (Sequence* const sequence : order) {
    const data::Entry entry = WholeEntry({&sequence, 1});
    Append(*sequence, ChosenFor(*sequence, model.Inference().Logits(entry, entry.length - 1)));
  }
  if (!model.Units().ValuesSharded()) return;
  data::Entry none;
  none.sequences = none.length = 1;
  none.inputs = {0};
  none.targets = {data::kMasked};
  none.ordinals = {0};
  for (std::int64_t turn = std::ssize(order); turn < turns; ++turn)
    model.Inference().Logits(none, 0);
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
  if (sequence.shown) on_text_(sequence.text->Take(true));
  if (!sequence.text) {
    sequence.text.emplace(setup_.tokens, sequence.prompt->ids, sequence.prompt->options.stop);
    sequence.text->Add(std::span(sequence.added).first(sequence.added.size() - (end == End::kEos)));
  }
  results_[sequence.place] = Continuation{.tokens = std::move(sequence.added),
                                          .text = sequence.text->Text(),
                                          .log_probability = sequence.log_probability,
                                          .end = end};
  active_[static_cast<std::size_t>(sequence.slot)].reset();
}

std::vector<std::optional<Continuation>> Generator::Run(std::span<const Prompt> prompts,
                                                        const OnText& on_text) {
  const comm::ProcessGrid& grid = setup_.model.Grid();
  prompts_ = prompts;
  on_text_ = grid.World().IsRoot() ? on_text : OnText();
  results_.assign(prompts.size(), std::nullopt);
  next_ = static_cast<std::size_t>(grid.Coordinates().data);
  for (auto& sequence : active_) sequence.reset();
  Turn turn;
  const auto make = [&] {
    Fill();
    if (!Caches())
      return std::ranges::count_if(active_, [](const auto& each) { return each != nullptr; });
    turn = MakeTurn();
    return std::ssize(turn.entries);
  };
  const auto run = [&](std::int64_t passes) {
    if (Caches()) {
      RunTurn(turn, passes);
    } else {
      RunAlone(passes);
    }
  };
  stopped_ = RunTurns(setup_.model, setup_.stopped, finite_, make, run);
  return std::move(results_);
}

// GrowingText decodes from the prompt on, because a word's form may depend on the word before it.

std::size_t WholeCharacters(const std::string& text) {
  constexpr std::size_t kLongest = 4;  // bytes of a character
  for (std::size_t back = 1; back <= std::min(kLongest, text.size()); ++back) {
    const std::size_t begin = text.size() - back;
    if (ContinuesCharacter(text[begin])) continue;
    return CharacterBytes(text[begin]) > back ? begin : text.size();
  }
  return text.size();
}

namespace {

// Length of the longest end of `text` that is the beginning of a stop string, in bytes.
std::size_t MaybeStop(const std::string& text, const std::vector<std::string>& stops) {
  std::size_t most = 0;
  for (const std::string& stop : stops) {
    for (std::size_t part = std::min(stop.size() - 1, text.size()); part > most; --part) {
      if (text.compare(text.size() - part, part, stop, 0, part) == 0) most = part;
    }
  }
  return most;
}

constexpr std::int64_t kMostLine = std::int64_t{16} << 20;  // bytes of a prompt's line
constexpr std::array kMembers = {"prompt", "id",   "tokens", "temperature",       "top_k",
                                 "top_p",  "seed", "stop",   "repetition_penalty"};

void CheckMembers(const nlohmann::json& value, const std::string& where, bool translates) {
  const auto known = std::span(kMembers).first(translates ? 2 : kMembers.size());
  for (const auto& [name, member] : value.items()) {
    if (std::ranges::find(known, name) != known.end()) continue;
    throw InputError(fmt::format("{}: unknown member {}", where, deck::Shown(name)),
                     translates
                         ? "A text to translate has prompt and id."
                         : "A prompt has prompt, id, tokens, temperature, top_k, top_p, seed, "
                           "stop, repetition_penalty.");
  }
}

std::vector<std::string> StopsOf(const nlohmann::json& value, const std::string& where) {
  std::vector<std::string> stops;
  const auto add = [&](const nlohmann::json& stop) {
    if (!stop.is_string() || stop.get_ref<const std::string&>().empty()) {
      throw InputError(fmt::format("{}: stop: a string or a list of strings expected, {} found",
                                   where, deck::Brief(stop)),
                       "No string may be empty.");
    }
    stops.push_back(stop.get<std::string>());
  };
  if (value.is_array()) {
    for (const nlohmann::json& stop : value) add(stop);
  } else {
    add(value);
  }
  return stops;
}

Prompt PromptOf(const nlohmann::json& value, const std::string& where,
                const GenerateOptions& options) {
  constexpr double kTiny = std::numeric_limits<double>::min();
  const deck::JsonObject object(value, where);
  CheckMembers(value, where, options.translates);
  Prompt prompt{
      .where = where, .text = object.Text("prompt", kMostLine), .id = {}, .options = options};
  GenerateOptions& own = prompt.options;
  if (object.Has("id")) {
    prompt.id = value.at("id");
    if (!prompt.id.is_string() && !prompt.id.is_number_integer()) {
      throw InputError(fmt::format("{}: id: a string or an integer expected, {} found", where,
                                   deck::Brief(prompt.id)));
    }
  }
  if (object.Has("tokens")) own.tokens = object.Integer("tokens", 1);
  if (object.Has("temperature")) own.temperature = object.Real("temperature", 0);
  if (object.Has("top_k")) own.top_k = object.Integer("top_k", 0);
  if (object.Has("top_p")) own.top_p = object.Real("top_p", kTiny, 1);
  if (object.Has("seed")) {
    own.seed = static_cast<std::uint32_t>(
        object.Integer("seed", 0, std::numeric_limits<std::uint32_t>::max()));
  }
  if (object.Has("repetition_penalty")) {
    own.repetition_penalty = object.Real("repetition_penalty", kTiny);
  }
  if (object.Has("stop")) own.stop = StopsOf(value.at("stop"), where);
  return prompt;
}

}  // namespace

GrowingText::GrowingText(const data::TokenFile& tokens, std::vector<std::int32_t> before,
                         const std::vector<std::string>& stops)
    : tokens_(tokens),
      ids_(std::move(before)),
      stops_(stops),
      prompt_bytes_(tokens.Decode(ids_).size()) {}

bool GrowingText::Add(std::span<const std::int32_t> tokens) {
  ids_.insert(ids_.end(), tokens.begin(), tokens.end());
  const std::string all = tokens_.Decode(ids_);
  text_ = all.substr(std::min(prompt_bytes_, all.size()));
  std::size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, text_.find(stop));
  if (end == std::string::npos) return false;
  text_.resize(end);
  return true;
}

std::string GrowingText::Take(bool end) {
  std::size_t upto = text_.size();
  if (!end) upto = std::min(WholeCharacters(text_), upto - MaybeStop(text_, stops_));
  if (upto <= taken_) return {};
  const std::string piece = text_.substr(taken_, upto - taken_);
  taken_ = upto;
  return piece;
}

const char* NameOf(End end) {
  return end == End::kLength ? "length" : end == End::kStop ? "stop" : "eos";
}

std::vector<Prompt> ParsePrompts(std::string_view text, const std::string& path,
                                 const GenerateOptions& options) {
  std::vector<Prompt> prompts;
  deck::EachJsonLine(text, path, kMostLine, [&](const deck::JsonLine& line) {
    prompts.push_back(PromptOf(line.value, line.where, options));
    prompts.back().number = std::ssize(prompts) - 1;
  });
  return prompts;
}

std::vector<Prompt> ReadPrompts(const app::Request& request, const comm::Communicator& world,
                                const GenerateOptions& options) {
  const std::string text = FromRoot(world, [&] {
    std::ifstream file(options.file, std::ios::binary);
    std::ostringstream whole;
    if (file) whole << file.rdbuf();
    if (!file) {
      throw request.deck.Complain("generate.file", "cannot be read: " + ErrorText(errno),
                                  "It holds one JSON object per line.");
    }
    return whole.str();
  });
  std::vector<Prompt> prompts;
  world.Together([&] {
    prompts = ParsePrompts(text, options.file, options);
    if (!prompts.empty()) return;
    throw request.deck.Complain("generate.file", "there is no prompt in it",
                                "It holds one JSON object per line: {\"prompt\": \"...\"}.");
  });
  return prompts;
}

void Generator::Encode(Prompt& prompt) const {
  try {
    prompt.ids = setup_.tokens.Encode(prompt.text);
  } catch (const Error& error) {
    throw Error(error.Code(), fmt::format("{}: {}", prompt.where, error.what()));
  }
  if (!prompt.ids.empty() || prompt.options.start_with_eos) return;
  throw InputError(fmt::format("{}: nothing to continue", prompt.where),
                   "Give it text, or use generate.start_with_eos = yes.");
}

std::string LineOf(const Prompt& prompt, const Continuation& continuation) {
  constexpr double kDigits = 1e6;  // log-probabilities are rounded: layouts differ in last bits
  nlohmann::ordered_json line;
  if (!prompt.id.is_null()) line["id"] = prompt.id;
  line["prompt"] = prompt.text;
  line["text"] = continuation.text;
  line["tokens"] = continuation.tokens;
  line["reason"] = NameOf(continuation.end);
  line["log_probability"] = std::round(continuation.log_probability * kDigits) / kDigits;
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace trireme::tasks
