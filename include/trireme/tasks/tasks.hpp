// All tasks of a job, the choice among them, and the answer to -v with grid.ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/app/job.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/model/parallel_model.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::tasks {

// The [generate] section.

// Whether weights lie in memory a second time, in the order in which several texts read them.
enum class PackWeights { kNo, kYes, kAuto };

struct GenerateOptions {
  std::string prompt;  // text to continue; empty: generation starts after an <eos>; "-": stdin
  std::int64_t tokens = 100;           // to add
  double temperature = 0.8;            // 0: greedy
  std::int64_t top_k = 0;              // 0: all
  double top_p = 1;                    // nucleus (Holtzman et al. 2020)
  std::uint32_t seed = 1;              // of the draws
  double repetition_penalty = 1;       // Keskar et al. 2019
  std::vector<std::string> stop = {};  // strings that end a text
  bool stop_at_eos = false;
  bool start_with_eos = true;          // the model sees an <eos> before the prompt
  std::string file = {}, output = {};  // JSONL of prompts and of texts; empty: none
  std::int64_t batch = 1;              // prompts that a data rank continues at once
  std::int64_t texts = 8;              // that it translates at once in an evaluation
  PackWeights pack_weights = PackWeights::kAuto;
  bool translates = false;  // prompts are source texts
  // For models that translate.
  std::int64_t beams = 1;
  double length_penalty = 0.6;
};

void DeclareGenerate(deck::Schema& schema);  // [generate]

GenerateOptions ReadGenerate(const deck::Deck& deck);  // InputError for a bad generate.stop

// Throws InputError with the deck's line for keys of the other kind of model (`translates`).
void CheckGenerate(const GenerateOptions& options, const deck::Deck& deck);

// Strings of a list with | between them; \n, \t, \\ and \| stand for a newline, a tab, a backslash
// and a bar. Nothing if another letter follows a backslash, or a string is empty.
std::optional<std::vector<std::string>> ReadStops(const std::string& list);

deck::Schema DeclareAll();  // every module's keys

// -v with grid.ranks, which prints the plan for that many ranks, and job.task=plan on the command
// line: returns the exit code; nothing for any other command line. Starts no MPI. A refused layout
// goes to standard error; a deck that cannot be read is an InputError.
std::optional<ExitCode> AnswerWithPlan(const app::CommandLine& line, const deck::Schema& schema);

// Collective. job.task: runs it to its end.
ExitCode RunTask(app::Job& job);

// The page of the training run that the task has ended: on world rank 0, unless the deck wants
// none. Made after MPI has ended, so that no rank waits for it.
std::optional<report::PageOrder> OrderPage(const app::Job& job);

ExitCode RunTokenize(const app::Job& job);
ExitCode RunEvaluate(app::Job& job);
ExitCode RunGenerate(app::Job& job);
ExitCode RunTraining(app::Job& job);
ExitCode RunImport(app::Job& job);
ExitCode RunExport(app::Job& job);
ExitCode RunPreflight(app::Job& job);
ExitCode RunPlan(const app::Job& job);
ExitCode RunCalibration(const app::Job& job);  // --calibrate

// Collective over the model's replica, whose ranks all pass the same prompt. Continues `prompt`
// (never empty) token by token. Returns the new tokens only, the same on every rank; empty if a
// prediction is not finite.
std::vector<std::int32_t> Continue(model::ParallelModel& model, std::vector<std::int32_t> prompt,
                                   const GenerateOptions& options);
// Collective over the grid. Runs Continue on the first replica while others wait; on all replicas
// if parameters are sharded. AgreedError on all ranks if a prediction is not finite.
std::vector<std::int32_t> ContinueOnce(model::ParallelModel& model,
                                       const std::vector<std::int32_t>& prompt,
                                       const GenerateOptions& options);
// The next token from its logits: temperature, then top-k, then top-p, then a draw; `uniform` in
// (0, 1].
std::int32_t Choose(std::span<const double> logits, const GenerateOptions& options, double uniform);

}  // namespace trireme::tasks
