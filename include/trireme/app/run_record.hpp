// RunRecord: the contents of run.json, which describes the run that wrote a checkpoint.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/json.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/data/windows.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/model/options.hpp"

namespace trireme::app {

// The object "model" of run.json: all keys of the architecture with their effective values.
nlohmann::json ModelJson(const model::Options& options);
// The members of run.json about its format and the program that writes it. host: that of rank 0.
nlohmann::json ProgramJson(const std::string& host);
// The time on rank 0, for "date" in run.json: "2026-11-24T10:28:09Z". Collective.
std::string DateNow(const comm::Communicator& world);
// An object with a section's keys and their values as in the deck.
nlohmann::json SectionJson(const deck::Deck& deck, const std::string& section);
// The object "vocabulary": size, hash of the words, tokenizer.
nlohmann::json VocabularyJson(const data::TokenFile& tokens);
// The list "mixture": how much of each file is used before step `step`. files: as in the deck, or
// data.file alone if it was part of a mixture before.
nlohmann::json MixtureJson(const std::vector<data::MixtureFile>& files, const data::Corpus& corpus,
                           const data::Sampler& sampler, std::int64_t step);

// The validation set whose loss decides on the best checkpoint.
struct Decider {
  std::string set;  // name in data.validation; empty: the valid split of the (first) training file
  std::string sha256;       // source_sha256 of its file
  std::int64_t tokens = 0;  // in the valid split
  // Most windows of a validation (monitor.validate_windows); 0: all. Losses of different samples
  // cannot be compared.
  std::int64_t windows = 0;
  std::int64_t since = 0;  // step after which this set decides
};
bool SameSet(const Decider& a, const Decider& b);
// The object "validation" of run.json.
nlohmann::json DeciderJson(const Decider& decider);

// run.json, checked. Members that older versions did not write are empty or nullopt.
struct RunRecord {
  std::string path;     // of run.json, for messages
  nlohmann::json json;  // as read
  std::int64_t step = 0;
  std::optional<data::Origin> origin;  // position in the data
  std::optional<std::int64_t> seed, length, stride, batch;
  std::string source_sha256, precision, canonical;
  std::optional<std::int64_t> train_tokens;  // if one file: tokens of its training split
  // A file of the mixture. How far it was used is in `origin`.
  struct Source {
    std::string file, sha256;  // path as in the deck; source_sha256
    data::Source source;
  };
  std::vector<Source> mixture;      // empty: one file that was never part of a mixture
  std::optional<double> best_loss;  // validation, nats per token
  std::optional<Decider> decider;   // the set of best_loss
  // The length of a run that has gone back after a loss spike (run.on_spike). The run keeps its
  // number of steps, although it skips samples.
  struct Planned {
    double epochs = 0;
    std::int64_t steps = 0;
    data::BatchRamp ramp = {};
  };
  std::optional<Planned> planned;
  bool validation_due = false;  // a stop skipped the validation at this step
  std::string products;         // chosen algorithms of matrix products on a GPU
  std::vector<float> fp8_scales;
  std::string deck;  // the resolved deck
};

// Members of run.json with the names of run and session, which identify local checkpoints.
inline constexpr const char* kRunName = "run_id";
inline constexpr const char* kSessionName = "session";

// The member of run.json about products in bf16 on CPUs, and its value for fp32 ones of rounded
// operands.
inline constexpr const char* kBf16Products = "bf16_products";
inline constexpr const char* kByFp32 = "fp32";
inline constexpr const char* kNative = "native";

// Parses run.json. Throws InputError with path, member, and what was expected and found.
RunRecord ParseRunRecord(const nlohmann::json& run, const std::string& path);

// Throws InputError unless both records have the same model.
void RequireSameModel(const RunRecord& was, const RunRecord& now);

// Sets model keys that the deck leaves out to the values of the checkpoint's model, which are in
// the object "model" or, for older versions, in the recorded deck. Throws InputError (exit code 2)
// that lists each key with another value in the deck, if that key changes the function that the
// model computes (model::Setting). weights_alone: a new run begins with the weights, and may change
// keys of rotary positions.
void TakeModel(const deck::Schema& schema, const RunRecord& record, bool weights_alone,
               deck::Deck& deck);

// Takes over a model to import, likewise. model: keys and values; path: its configuration file.
void TakeModel(const deck::Schema& schema, const nlohmann::json& model, const std::string& path,
               deck::Deck& deck);

// Throws InputError if the tokens have another vocabulary than the model was trained with, or
// another tokenizer than an imported model that has tokenizer files.
void CheckVocabulary(const RunRecord& record, const data::TokenFile& tokens);

// The object "imported" of an imported model's run.json: hashes of the tokenizers whose files are
// in `folder`, computed like TokenFile::TokenizerSha256.
nlohmann::json ImportedJson(const std::string& folder);

// A sentence on how the deciding validation set has changed; empty: unchanged or not recorded.
std::string DeciderChange(const RunRecord& record, const Decider& now);

// The values that a continued run changes, one line each: "optimizer.beta1 is 0.8 now and was 0.9
// when the checkpoint was written". A key of [optimizer] or [schedule] that only one side has is
// "not set" on the other.
std::vector<std::string> Changes(const RunRecord& record, const nlohmann::json& now);
// Changes of the layout, which affect only rounding: "ranks 4 after 2; grid ..."; empty: none.
std::string LayoutChange(const RunRecord& record, const nlohmann::json& now);

}  // namespace trireme::app
