// RunRecord: writes parts of run.json, reads it, and compares a deck with it.
#include "trireme/app/run_record.hpp"

#include <fmt/ranges.h>
#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string_view>
#include <variant>

#include "trireme/base/error.hpp"
#include "trireme/base/program.hpp"
#include "trireme/deck/json_text.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::app {

namespace {

// Most tokens of a training split in run.json: sums of windows then fit 63 bits.
constexpr std::int64_t kMostTrainTokens = std::int64_t{1} << 50;
constexpr std::int64_t kMostRecordedDeckBytes = std::int64_t{1} << 20;
constexpr std::int64_t kMostProductsBytes = std::int64_t{16} << 20;
constexpr std::size_t kMostScales = 1'000'000;
constexpr std::int64_t kMostVersionBytes = 100;
constexpr std::int64_t kFormat = 1;  // latest format that this program reads; absent: 1

// A value of run.json as a deck would write it.
std::string DeckText(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (value.is_number_integer()) return fmt::format("{}", value.get<std::int64_t>());
  if (value.is_number()) return fmt::format("{}", value.get<double>());
  return value.dump();
}

// Adds keys that older versions of run.json lack, with the values that those versions implied:
// biases of queries, keys and values like the others, a decoder, no norms of heads, plain rotation,
// no muP.
nlohmann::json WithLaterKeys(nlohmann::json model) {
  if (!model.contains("bias")) return model;
  const auto add = [&](const char* name, const nlohmann::json& value) {
    if (!model.contains(name)) model[name] = value;
  };
  add("qkv_bias", model.at("bias"));
  add("kind", "decoder");
  const nlohmann::json plain = ModelJson({});
  for (const model::Setting& setting : model::SettingsOf({})) {
    if (setting.of_rotation || setting.name == "qk_norm" || setting.name == "parametrization" ||
        setting.name.starts_with("mup_")) {
      add(setting.name.c_str(), plain.at(setting.name));
    }
  }
  return model;
}

// The recorded model: the object "model" or, from an older version, the recorded deck's keys.
nlohmann::json ModelOf(const deck::Schema& schema, const RunRecord& record) {
  if (record.json.contains("model")) {
    static_cast<void>(deck::JsonObject(record.json, record.path).Object("model"));
    return WithLaterKeys(record.json.at("model"));
  }
  if (record.deck.empty()) return nlohmann::json::object();
  deck::Deck deck = deck::Deck::Parse(schema, record.deck, record.path + ": deck", {});
  model::Resolve(deck);
  return ModelJson(model::Read(deck));
}

// Whether two texts denote the same value, like "1e-3" and "0.001".
bool SameValue(const std::string& a, const std::string& b) {
  if (a == b) return true;
  try {
    std::size_t read_a = 0, read_b = 0;
    const double x = std::stod(a, &read_a), y = std::stod(b, &read_b);
    return read_a == a.size() && read_b == b.size() && x == y;
  } catch (const std::exception&) {
    return false;
  }
}

// The deck's value of a model key. Automatic values (0) are derived from the checkpoint's keys.
std::string Stated(const deck::Deck& deck, const nlohmann::json& model, const std::string& name) {
  const auto values = deck.Section("model");
  const auto found = std::find_if(values.begin(), values.end(),
                                  [&](const auto& value) { return value.first == name; });
  const std::string text = found == values.end() ? std::string() : found->second;
  if (model.at(name).is_boolean()) {
    return text == "yes" || text == "true" || text == "on" ? "yes" : "no";
  }
  if (text != "0") return text;
  if (name == "kv_heads" && model.contains("heads")) return DeckText(model.at("heads"));
  if (name == "encoder_layers" && model.contains("layers")) return DeckText(model.at("layers"));
  if (name != "head_dim" || !model.contains("dim") || !model.contains("heads")) return text;
  const nlohmann::json &dim = model.at("dim"), &heads = model.at("heads");
  if (!dim.is_number_integer() || !heads.is_number_integer()) return text;
  const std::int64_t by = heads.get<std::int64_t>();
  return by <= 0 ? text : std::to_string(dim.get<std::int64_t>() / by);
}

std::optional<std::int64_t> MaybeInteger(
    const deck::JsonObject& run, const std::string& name, std::int64_t least = 0,
    std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
  return run.Has(name) ? std::optional(run.Integer(name, least, most)) : std::nullopt;
}

std::string MaybeText(const deck::JsonObject& run, const std::string& name,
                      std::int64_t most = deck::kMaxJsonText) {
  return run.Has(name) ? run.Text(name, most) : std::string();
}

// Refuses a run.json of a later format, before its members are read by this version's rules.
void CheckFormat(const deck::JsonObject& run, const std::string& path) {
  const std::int64_t format = run.Has("format") ? run.Integer("format", 1) : kFormat;
  if (format <= kFormat) return;
  const std::string writer = run.Has("trireme") ? run.Text("trireme", kMostVersionBytes) : "";
  throw InputError(
      fmt::format("{}: written by {} in format {}; this is Trireme {}, which reads format {}", path,
                  writer.empty() ? "a later Trireme" : "Trireme " + deck::Shown(writer), format,
                  Version(), kFormat),
      writer.empty() ? "Use the version of Trireme that wrote it, or a later one."
                     : fmt::format("Use Trireme {} or a later version.", deck::Shown(writer)));
}

// The object "validation": the validation set whose loss decides on the best checkpoint.

std::string Describe(const Decider& decider) {
  return fmt::format(
      "{}{} ({} tokens, sha256 {:.12})",
      decider.windows > 0
          ? fmt::format("{} window{} of ", decider.windows, decider.windows == 1 ? "" : "s")
          : "",
      decider.set.empty() ? "the valid split" : "the set " + deck::Shown(decider.set),
      decider.tokens, deck::Shown(decider.sha256));
}

// The list "mixture": the training files of a run, and how far each was used.

constexpr double kLargestShare = 1e9;  // of weight or epochs, as in data.mixture

// Reads the list "mixture" into record.mixture and the files' places into record.origin; does
// nothing if there is none. Throws InputError that names path and member.
void ParseMixture(const nlohmann::json& run, const std::string& path, RunRecord& record) {
  if (!run.contains("mixture")) return;
  const nlohmann::json& list = deck::JsonObject(run, path).List("mixture");
  if (list.empty() || list.size() > data::kMostMixtureFiles) {
    throw InputError(fmt::format("{}: mixture: 1 to {} files expected, {} found", path,
                                 data::kMostMixtureFiles, list.size()));
  }
  for (const nlohmann::json& each : list) {
    const deck::JsonObject file(each, path + ": mixture");
    data::Proportion proportion;
    if (file.Has("epochs")) {
      proportion.epochs = file.Real("epochs", 1 / kLargestShare, kLargestShare);
    } else {
      proportion.weight = file.Real("weight", 1 / kLargestShare, kLargestShare);
    }
    record.mixture.push_back(
        {.file = file.Text("file"),
         .sha256 = file.Text("source_sha256"),
         .source = {file.Integer("train_tokens", 2, kMostTrainTokens), proportion}});
    const data::SourcePlace place{file.Integer("windows_used"), file.Integer("tokens")};
    if (record.origin) record.origin->sources.push_back(place);
  }
  const bool by_epochs = record.mixture.front().source.proportion.epochs > 0;
  for (const RunRecord::Source& file : record.mixture) {
    if ((file.source.proportion.epochs > 0) == by_epochs) continue;
    throw InputError(fmt::format("{}: mixture: weights and epochs in one list", path));
  }
}

double ShareOf(const data::Proportion& proportion) {
  return proportion.epochs > 0 ? proportion.epochs : proportion.weight;
}

// The list "mixture" as a deck would write it.
std::string TextOf(const std::vector<RunRecord::Source>& files) {
  std::string text;
  for (const auto& [file, sha256, source] : files) {
    text += fmt::format("{}{}{}{:.6g}", text.empty() ? "" : ", ", file,
                        source.proportion.epochs > 0 ? '*' : ':', ShareOf(source.proportion));
  }
  return text.empty() ? "not set" : text;
}

// The contents and shares of the files, without their names. Mixtures with equal identities have
// the same order of windows.
std::vector<std::string> IdentityOf(const RunRecord& run) {
  if (run.mixture.empty()) return {run.source_sha256};
  double sum = 0;
  for (const RunRecord::Source& file : run.mixture) sum += ShareOf(file.source.proportion);
  std::vector<std::string> identity;
  for (const RunRecord::Source& file : run.mixture) {
    const bool epochs = file.source.proportion.epochs > 0;
    std::string& of_file = identity.emplace_back(file.sha256);
    if (run.mixture.size() == 1 && !epochs) continue;
    of_file += fmt::format(" {}{:.9g}", epochs ? '*' : ':',
                           ShareOf(file.source.proportion) / (epochs ? 1 : sum));
  }
  return identity;
}

// A sentence on how the mixture differs between two runs; empty: it does not.
std::string MixtureChange(const RunRecord& was, const nlohmann::json& run) {
  RunRecord now;
  now.source_sha256 = deck::TextOf(run, "source_sha256");
  ParseMixture(run, was.path, now);
  if (was.mixture.empty() && now.mixture.empty()) return {};
  if (IdentityOf(was) == IdentityOf(now)) return {};
  const std::string then = TextOf(was.mixture), text = TextOf(now.mixture);
  if (then == text) {
    return fmt::format(
        "data.mixture = {}: a file has other contents than when the checkpoint was "
        "written, and starts at its beginning",
        deck::Shown(text));
  }
  return fmt::format(
      "data.mixture is {} now and was {} when the checkpoint was written: each file "
      "goes on at its own place",
      deck::Shown(text), deck::Shown(then));
}

}  // namespace

nlohmann::json ProgramJson(const std::string& host) {
  return {{"format", kFormat},
          {"trireme", Version()},
          {"commit", Commit()},
          {"compiler", Compiler()},
          {"host", host}};
}

std::string DateNow(const comm::Communicator& world) { return world.Broadcast(report::UtcNow()); }

nlohmann::json ModelJson(const model::Options& options) {
  nlohmann::json json = nlohmann::json::object();
  for (const model::Setting& setting : model::SettingsOf(options)) {
    std::visit([&](const auto& value) { json[setting.name] = value; }, setting.value);
  }
  return json;
}

nlohmann::json SectionJson(const deck::Deck& deck, const std::string& section) {
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, value] : deck.Section(section)) json[name] = value;
  return json;
}

nlohmann::json VocabularyJson(const data::TokenFile& tokens) {
  nlohmann::json json = {{"size", tokens.VocabularySize()},
                         {"sha256", tokens.VocabularySha256()},
                         {"tokenizer", tokens.Tokenizer()}};
  if (std::string sha256 = tokens.TokenizerSha256(); !sha256.empty()) {
    json["tokenizer_sha256"] = std::move(sha256);
  }
  return json;
}

nlohmann::json MixtureJson(const std::vector<data::MixtureFile>& files, const data::Corpus& corpus,
                           const data::Sampler& sampler, std::int64_t step) {
  const std::vector<data::SourcePlace> places = sampler.Places(step);
  nlohmann::json list = nlohmann::json::array();
  for (std::size_t i = 0; i < files.size(); ++i) {
    const data::TokenFile& file = corpus.Of(static_cast<int>(i));
    const data::Proportion& proportion = files[i].proportion;
    list.push_back({{"file", files[i].path},
                    {proportion.epochs > 0 ? "epochs" : "weight", ShareOf(proportion)},
                    {"source_sha256", file.SourceSha256()},
                    {"train_tokens", file.Size(data::Split::kTrain)},
                    {"windows", sampler.WindowsOf(static_cast<std::int64_t>(i))},
                    {"windows_used", places[i].windows},
                    {"tokens", places[i].targets}});
  }
  return list;
}

nlohmann::json DeciderJson(const Decider& decider) {
  return {{"set", decider.set},
          {"source_sha256", decider.sha256},
          {"tokens", decider.tokens},
          {"windows", decider.windows},
          {"since", decider.since}};
}

bool SameSet(const Decider& a, const Decider& b) {
  return a.set == b.set && a.sha256 == b.sha256 && a.tokens == b.tokens && a.windows == b.windows;
}

std::string DeciderChange(const RunRecord& record, const Decider& now) {
  if (!record.decider || SameSet(*record.decider, now)) return {};
  return fmt::format(
      "the best checkpoint is chosen by {} now and was by {}: its loss begins anew, and the next "
      "validation takes checkpoints/best over",
      Describe(now), Describe(*record.decider));
}

RunRecord ParseRunRecord(const nlohmann::json& json, const std::string& path) {
  constexpr std::int64_t kMostSeed = std::numeric_limits<std::uint32_t>::max();
  RunRecord record;
  record.path = path;
  record.json = json;
  const deck::JsonObject run(record.json, path);
  CheckFormat(run, path);
  record.step = run.Integer("step");
  if (run.Has("next_sample") && run.Has("tokens")) {
    record.origin = {.step = record.step,
                     .sample = run.Integer("next_sample"),
                     .targets = run.Integer("tokens")};
  }
  ParseMixture(record.json, path, record);
  if (run.Has("validation")) {
    const deck::JsonObject decider = run.Object("validation");
    record.decider = {.set = decider.Text("set"),
                      .sha256 = decider.Text("source_sha256"),
                      .tokens = decider.Integer("tokens", 0, kMostTrainTokens),
                      .windows = MaybeInteger(decider, "windows").value_or(0),
                      .since = decider.Integer("since")};
  }
  record.train_tokens = MaybeInteger(run, "train_tokens", 2, kMostTrainTokens);
  record.seed = MaybeInteger(run, "seed", 0, kMostSeed);
  record.length = MaybeInteger(run, "sequence_length");
  record.stride = MaybeInteger(run, "stride");
  record.batch = MaybeInteger(run, "batch");
  record.source_sha256 = MaybeText(run, "source_sha256");
  record.precision = MaybeText(run, "precision");
  record.canonical = MaybeText(run, "canonical");
  if (run.Has("best_loss")) record.best_loss = run.Real("best_loss");
  if (run.Has("planned")) {
    const deck::JsonObject planned = run.Object("planned");
    record.planned = {.epochs = planned.Real("epochs"),
                      .steps = planned.Integer("steps", 1),
                      .ramp = {.steps = MaybeInteger(planned, "batch_ramp").value_or(0),
                               .start = MaybeInteger(planned, "batch_start").value_or(1)}};
  }
  if (run.Has("validation_due")) record.validation_due = run.Truth("validation_due");
  record.products = MaybeText(run, "products", kMostProductsBytes);
  if (run.Has("fp8_scales")) {
    const nlohmann::json& scales = run.List("fp8_scales");
    if (scales.size() > kMostScales) {
      throw InputError(fmt::format("{}: fp8_scales: {} are too many", path, scales.size()));
    }
    for (const nlohmann::json& scale : scales) {
      // Refuses all but finite fp32 numbers: an infinite scale makes all its products infinite.
      const double value = scale.is_number() ? scale.get<double>() : INFINITY;
      if (std::abs(value) > std::numeric_limits<float>::max()) {
        throw InputError(
            fmt::format("{}: fp8_scales: numbers in single precision expected, {} found", path,
                        deck::Brief(scale)));
      }
      record.fp8_scales.push_back(static_cast<float>(value));
    }
  }
  record.deck = MaybeText(run, "deck", kMostRecordedDeckBytes);
  return record;
}

namespace {

// A model that a deck takes over: its file, what supplies the deck's values, and words for errors.
struct Other {
  std::string path, origin;
  const char *has, *hint;
};

// Supplies the model's values for keys that the deck leaves out. Throws InputError with a line for
// each key that has another value in the deck and changes the function that the model computes.
// any_rotation: keys of rotary positions may differ.
void TakeKeys(const deck::Schema& schema, const nlohmann::json& model, const Other& other,
              bool any_rotation, deck::Deck& deck) {
  // Candidates to supply: all keys except those that the deck's preset has set.
  std::vector<std::pair<std::string, std::string>> values;
  for (const auto& [name, value] : model.items()) {
    const std::string key = "model." + name;
    if (schema.Find(key) == nullptr || deck.Where(key).starts_with("preset ")) continue;
    values.emplace_back(name, DeckText(value));
  }
  model::Supply(deck, values, other.origin);
  std::vector<std::string> problems;
  model::Options every;
  every.kind = model::Kind::kEncoderDecoder;  // has all settings
  for (const model::Setting& setting : model::SettingsOf(every)) {
    const std::string key = "model." + setting.name;
    if (!setting.of_function || !model.contains(setting.name)) continue;
    if (setting.of_rotation && any_rotation) continue;
    const std::string was = DeckText(model.at(setting.name));
    const std::string now = Stated(deck, model, setting.name);
    if (SameValue(now, was)) continue;
    problems.push_back(fmt::format("{}: {} = {}, but {} {} = {}", deck.Where(key), key,
                                   deck::Shown(now), other.has, key, deck::Shown(was)));
  }
  if (problems.empty()) return;
  throw InputError(fmt::format("{}: another model than the deck's\n  {}", other.path,
                               fmt::join(problems, "\n  ")),
                   other.hint);
}

}  // namespace

void TakeModel(const deck::Schema& schema, const RunRecord& record, bool weights_alone,
               deck::Deck& deck) {
  TakeKeys(schema, ModelOf(schema, record),
           {record.path, "the checkpoint's " + record.path, "the checkpoint was trained with",
            "Leave these keys out: the model comes from the checkpoint."},
           weights_alone, deck);
}

void TakeModel(const deck::Schema& schema, const nlohmann::json& model, const std::string& path,
               deck::Deck& deck) {
  TakeKeys(schema, model,
           {path, path, "the folder's model has",
            "Leave these keys and model.preset out: the model comes from hf.path."},
           false, deck);
}

// Refuses tokens of another tokenizer than the imported model's. Accepts any tokens if the model
// was not imported or has no tokenizer files.
static void CheckImportedTokenizer(const RunRecord& record, const data::TokenFile& tokens) {
  if (!record.json.contains("imported")) return;
  const deck::JsonObject run(record.json, record.path);
  const nlohmann::json& hashes = run.Object("imported").List("tokenizers");
  if (hashes.empty() ||
      std::find(hashes.begin(), hashes.end(), tokens.TokenizerSha256()) != hashes.end()) {
    return;
  }
  throw InputError(
      fmt::format("{}: made by the tokenizer {}, not by the imported model's own, whose files lie "
                  "in the run's hf folder",
                  tokens.Path(), tokens.Tokenizer()),
      "Make the tokens anew with job.task = tokenize and tokenize.tokenizer = RUN/hf.");
}

void CheckVocabulary(const RunRecord& record, const data::TokenFile& tokens) {
  CheckImportedTokenizer(record, tokens);
  if (!record.json.contains("vocabulary")) return;
  const deck::JsonObject was = deck::JsonObject(record.json, record.path).Object("vocabulary");
  const std::string sha256 = was.Text("sha256");
  if (sha256 == tokens.VocabularySha256() && was.Text("tokenizer") == tokens.Tokenizer()) {
    if (!record.json.at("vocabulary").contains("tokenizer_sha256")) return;
    const std::string files = was.Text("tokenizer_sha256");
    if (files == tokens.TokenizerSha256()) return;
    throw InputError(
        fmt::format("{}: its /tokenizer is not the checkpoint's: sha256 {:.12}; {} has {:.12}",
                    tokens.Path(), tokens.TokenizerSha256(), record.path, deck::Shown(files)),
        "Give a data.file that was made with the same tokenizer.");
  }
  throw InputError(
      fmt::format("{}: its vocabulary is not the checkpoint's: {} words by the tokenizer {}, "
                  "sha256 {:.12}; {} has {} words by the tokenizer {}, sha256 {:.12}",
                  tokens.Path(), tokens.VocabularySize(), tokens.Tokenizer(),
                  tokens.VocabularySha256(), record.path, was.Integer("size"),
                  deck::Shown(was.Text("tokenizer")), deck::Shown(sha256)),
      "Give a data.file that was made with the same vocabulary.");
}

namespace {

// Keys that end a session and do not affect what a run computes.
bool EndsSession(const std::string& section, const std::string& name) {
  return section == "schedule" && (name == "stop_at" || name == "walltime_minutes");
}

// A member's value; "not set" if it is absent, like schedule.steps if schedule.epochs is set.
std::string TextOfMember(const nlohmann::json& section, const std::string& name) {
  return section.contains(name) ? DeckText(section.at(name)) : "not set";
}

// "data.file holds another text: 2500 train tokens, was 2000"; empty: it has not changed. The
// contents of a mixture are compared elsewhere (MixtureChange).
std::string TextChange(const nlohmann::json& was, const nlohmann::json& now) {
  const auto differs = [&](const char* name) {
    return was.contains(name) && now.contains(name) &&
           !SameValue(DeckText(was.at(name)), DeckText(now.at(name)));
  };
  const bool mixed = was.contains("mixture") || now.contains("mixture");
  const bool tokens = differs("train_tokens"), text = !mixed && differs("source_sha256");
  if (!tokens && !text) return {};
  return fmt::format(
      "data.file holds another text: {} train tokens{}",
      deck::Shown(DeckText(now.value("train_tokens", nlohmann::json()))),
      tokens ? ", was " + deck::Shown(DeckText(was.at("train_tokens"))) : ", as many as before");
}

}  // namespace

std::vector<std::string> Changes(const RunRecord& record, const nlohmann::json& now) {
  std::vector<std::string> changes;
  const auto change = [&](const std::string& name, const std::string& was, const std::string& is) {
    if (SameValue(was, is)) return;
    changes.push_back(fmt::format("{} is {} now and was {} when the checkpoint was written",
                                  deck::Shown(name), deck::Shown(is), deck::Shown(was)));
  };
  // Members of the record, and the deck's keys that they come from.
  constexpr std::pair<const char*, const char*> kMembers[] = {
      {"seed", "run.seed"},
      {"sequence_length", "data.sequence_length"},
      {"stride", "data.stride"},
      {"batch", "data.batch"},
      {"batch_tokens", "data.batch_tokens"},
      {"precision", "run.precision"},
      {kBf16Products, "run.bf16_products"},
      {"canonical", "run.canonical"}};
  if (std::string text = TextChange(record.json, now); !text.empty()) {
    changes.push_back(std::move(text));
  }
  for (const auto& [member, key] : kMembers) {
    if (record.json.contains(member) && now.contains(member)) {
      change(key, DeckText(record.json.at(member)), DeckText(now.at(member)));
    }
  }
  // Versions that do not record this member had no document masks.
  const auto masked = [](const nlohmann::json& run) {
    return run.contains("document_mask") ? DeckText(run.at("document_mask")) : "no";
  };
  change("data.document_mask", masked(record.json), masked(now));
  if (std::string mixture = MixtureChange(record, now); !mixture.empty()) {
    changes.push_back(std::move(mixture));
  }
  for (const char* section : {"model", "optimizer", "schedule"}) {
    if (!record.json.contains(section) || !record.json.at(section).is_object()) continue;
    const nlohmann::json &was = record.json.at(section), &is = now.at(section);
    std::set<std::string> names;
    for (const nlohmann::json* side : {&was, &is}) {
      for (const auto& [name, value] : side->items()) names.insert(name);
    }
    for (const std::string& name : names) {
      if (EndsSession(section, name)) continue;
      // A key that only one model has came with a later version: not a change.
      const bool on_both = was.contains(name) && is.contains(name);
      if (!on_both && section == std::string_view("model")) continue;
      change(fmt::format("{}.{}", section, name), TextOfMember(was, name), TextOfMember(is, name));
    }
  }
  return changes;
}

void RequireSameModel(const RunRecord& was, const RunRecord& now) {
  if (was.json.value("model", nlohmann::json()) == now.json.value("model", nlohmann::json())) {
    return;
  }
  throw InputError(fmt::format("{}: another model than that of {}", now.path, was.path),
                   "Name one checkpoint with -r.");
}

std::string LayoutChange(const RunRecord& record, const nlohmann::json& now) {
  std::string changes;
  for (const char* name : {"ranks", "grid", "sharding"}) {
    if (!record.json.contains(name) || !now.contains(name)) continue;
    const nlohmann::json &was = record.json.at(name), &is = now.at(name);
    if (was == is) continue;
    const auto text = [](const nlohmann::json& value) {
      return value.is_string() ? value.get<std::string>() : value.dump();
    };
    changes +=
        fmt::format("{}{} {} after {}", changes.empty() ? "" : "; ", name, text(is), text(was));
  }
  return changes;
}

}  // namespace trireme::app
