// RunRecord: the contents of run.json, about the run that wrote a checkpoint.
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

// The object "model" of run.json: every key of the architecture and its effective value.
nlohmann::json ModelJson(const model::Options& options);
// The members of run.json about its format and the program that writes it. host: of rank 0.
nlohmann::json ProgramJson(const std::string& host);
// Collective. The time of rank 0, as "date" in run.json: "2026-11-24T10:28:09Z".
std::string DateNow(const comm::Communicator& world);
// An object of a section's keys and their values as the deck has them.
nlohmann::json SectionJson(const deck::Deck& deck, const std::string& section);
// The object "vocabulary": its size, the hash of its words, its tokenizer.
nlohmann::json VocabularyJson(const data::TokenFile& tokens);
// The list "mixture": what is used of each file before a step. files: as in the deck; one, for
// data.file that was part of a mixture before.
nlohmann::json MixtureJson(const std::vector<data::MixtureFile>& files, const data::Corpus& corpus,
                           const data::Sampler& sampler, std::int64_t step);

// Validation set whose loss decides on the best checkpoint.
struct Decider {
  std::string set;     // of data.validation; empty: the valid split of the training's (first) file
  std::string sha256;  // of its source
  std::int64_t tokens = 0;  // of the valid split
  // Windows of a validation at most (monitor.validate_windows); 0: all. A sample of them has
  // another loss than another sample.
  std::int64_t windows = 0;
  std::int64_t since = 0;  // step after which it decides
};
bool SameSet(const Decider& a, const Decider& b);
// The object "validation".
nlohmann::json DeciderJson(const Decider& decider);

// run.json, checked. Members that older versions did not write are empty or none.
struct RunRecord {
  std::string path;     // of run.json, for messages
  nlohmann::json json;  // as read
  std::int64_t step = 0;
  std::optional<data::Origin> origin;  // the position in the data
  std::optional<std::int64_t> seed, length, stride, batch;
  std::string source_sha256, precision, canonical;
  std::optional<std::int64_t> train_tokens;  // of the only file's training split
  // A file of the mixture. Its place in the data is in `origin`.
  struct Source {
    std::string file, sha256;  // as in the deck; of its source
    data::Source source;
  };
  std::vector<Source> mixture;      // empty: one file that was never part of a mixture
  std::optional<double> best_loss;  // validation, nats per token
  std::optional<Decider> decider;   // of best_loss
  // Length of a run that has gone back over steps (run.on_spike): it keeps the steps with which it
  // began, whatever samples it left out.
  struct Planned {
    double epochs = 0;
    std::int64_t steps = 0;
  };
  std::optional<Planned> planned;
  bool validation_due = false;  // the one at this step was skipped by a stop
  std::string products;         // algorithms of matrix products on a GPU
  std::vector<float> fp8_scales;
  std::string deck;  // resolved
};

// Members of run.json by which a run knows its local checkpoints: names of the run and of the
// session that wrote it.
inline constexpr const char* kRunName = "run_id";
inline constexpr const char* kSessionName = "session";

// Throws InputError naming path, member, what was expected and what was found.
RunRecord ParseRunRecord(const nlohmann::json& run, const std::string& path);

// Throws InputError unless both are of the same model.
void RequireSameModel(const RunRecord& was, const RunRecord& now);

// Gives the model's keys that the deck leaves out the values of the checkpoint's model, from the
// object "model" or, of an older version, from the recorded deck. Throws InputError (exit code 2)
// for each key of the function (model::Setting) that the deck gives another value, with both.
// weights_alone: a new run begins with the weights, which may be given other rotary positions.
void TakeModel(const deck::Schema& schema, const RunRecord& record, bool weights_alone,
               deck::Deck& deck);

// The same for the model of a folder to import. model: keys and values; path: of its configuration.
void TakeModel(const deck::Schema& schema, const nlohmann::json& model, const std::string& path,
               deck::Deck& deck);

// Throws InputError if the tokens' vocabulary is not the one that the model was trained with, or
// their tokenizer not that of an imported model with tokenizer files.
void CheckVocabulary(const RunRecord& record, const data::TokenFile& tokens);

// The object "imported" of an imported model's run.json: hashes of the tokenizers whose files lie
// in its folder, as TokenFile::TokenizerSha256 makes them.
nlohmann::json ImportedJson(const std::string& folder);

// Difference of the deciding validation set, in a sentence; empty: none, or it was not recorded.
std::string DeciderChange(const RunRecord& record, const Decider& now);

// Values that a continued run has and that the recorded run had not: a line each, "optimizer.beta1
// is 0.8 now and was 0.9 when the checkpoint was written". Keys of [optimizer] and [schedule] that
// one side alone has are "not set" on the other.
std::vector<std::string> Changes(const RunRecord& record, const nlohmann::json& now);
// "ranks 4 after 2, grid ...": what is another layout, which changes no number; "" for the same.
std::string LayoutChange(const RunRecord& record, const nlohmann::json& now);

}  // namespace trireme::app
