// All tasks of a job, the choice among them, and the answer to -v with grid.ranks.
#ifndef TRIREME_TASKS_TASKS_HPP_
#define TRIREME_TASKS_TASKS_HPP_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/tasks/options.hpp"
#include "trireme/app/job.hpp"
#include "trireme/model/parallel_model.hpp"
#include "trireme/report/page.hpp"

namespace trireme::tasks {

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

#endif  // TRIREME_TASKS_TASKS_HPP_
