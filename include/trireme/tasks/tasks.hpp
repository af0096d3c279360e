// RunTask runs the task that the deck names. Also the plan that -v with grid.ranks prints.
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

// Whether to keep a second copy of the weights, arranged for products of several texts at once.
enum class PackWeights { kNo, kYes, kAuto };

struct GenerateOptions {
  std::string prompt;  // text to continue; empty: generation starts after an <eos>; "-": stdin
  std::int64_t tokens = 100;           // tokens to add
  double temperature = 0.8;            // 0: greedy
  std::int64_t top_k = 0;              // 0: all
  double top_p = 1;                    // nucleus (Holtzman et al. 2020)
  std::uint32_t seed = 1;              // seed of the random draws
  double repetition_penalty = 1;       // Keskar et al. 2019
  std::vector<std::string> stop = {};  // strings that end a text
  bool stop_at_eos = false;
  bool start_with_eos = true;          // put an <eos> before the prompt
  std::string file = {}, output = {};  // JSONL files of prompts and of texts; empty: none
  std::int64_t batch = 1;              // prompts that a data rank continues at once
  std::int64_t texts = 8;              // generate.batch: the same for a file, or in an evaluation
  PackWeights pack_weights = PackWeights::kAuto;
  bool translates = false;  // true for encoder-decoders: prompts are source texts
  // For encoder-decoders only.
  std::int64_t beams = 1;
  double length_penalty = 0.6;
};

void DeclareGenerate(deck::Schema& schema);  // [generate]

GenerateOptions ReadGenerate(const deck::Deck& deck);  // throws InputError for bad values

// Throws InputError with the deck's line for keys of the other kind of model (`translates`).
void CheckGenerate(const GenerateOptions& options, const deck::Deck& deck);

// Splits a list at |; the escapes \n, \t, \\ and \| stand for a newline, a tab, a backslash and a
// bar. nullopt for any other escape or an empty string.
std::optional<std::vector<std::string>> ReadStops(const std::string& list);

deck::Schema DeclareAll();  // every module's keys

// Handles without MPI: -v with grid.ranks (prints the plan for that many ranks), -v with job.task =
// plan, and job.task=plan on the command line. Returns the exit code; nullopt for other command
// lines. Prints a refusal of the plan to standard error; InputError for a deck that cannot be read.
std::optional<ExitCode> AnswerWithPlan(const app::CommandLine& line, const deck::Schema& schema);

// Collective. Runs the task that job.task names.
ExitCode RunTask(app::Job& job);

// The report page of the training run that the task has ended; on world rank 0, if the deck wants
// one. It is made after MPI has ended, so that no rank waits for it.
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

// Collective over a replica; all its ranks pass the same prompt, never empty. Continues it token by
// token. Returns only the new tokens, the same on every rank; empty if a prediction is not finite.
std::vector<std::int32_t> Continue(model::ParallelModel& model, std::vector<std::int32_t> prompt,
                                   const GenerateOptions& options);
// Collective over the grid. Runs Continue on the first replica while the others wait; on all
// replicas if parameters are sharded. AgreedError on all ranks if a prediction is not finite.
std::vector<std::int32_t> ContinueOnce(model::ParallelModel& model,
                                       const std::vector<std::int32_t>& prompt,
                                       const GenerateOptions& options);
// Chooses the next token from its logits: temperature, then top-k, then top-p, then a draw.
// uniform: random number in (0, 1].
std::int32_t Choose(std::span<const double> logits, const GenerateOptions& options, double uniform);

}  // namespace trireme::tasks
