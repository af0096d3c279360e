// All tasks of a job, the choice among them, and the answer to -v with grid.ranks.
#ifndef TRIREME_DRIVER_TASKS_HPP_
#define TRIREME_DRIVER_TASKS_HPP_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/driver/options.hpp"
#include "trireme/job/job.hpp"
#include "trireme/model/parallel_model.hpp"
#include "trireme/monitor/page.hpp"

namespace trireme::driver {

input::Schema DeclareAll();  // every module's keys

// -v with grid.ranks, which prints the plan for that many ranks, and job.task=plan on the command
// line: returns the exit code; nothing for any other command line. Starts no MPI. A refused layout
// goes to standard error; a deck that cannot be read is an InputError.
std::optional<ExitCode> AnswerWithPlan(const job::CommandLine& line, const input::Schema& schema);

// Collective. job.task: runs it to its end.
ExitCode RunTask(job::Job& job);

// The page of the training run that the task has ended: on world rank 0, unless the deck wants
// none. Made after MPI has ended, so that no rank waits for it.
std::optional<monitor::PageOrder> OrderPage(const job::Job& job);

ExitCode RunTokenize(const job::Job& job);
ExitCode RunEvaluate(job::Job& job);
ExitCode RunGenerate(job::Job& job);
ExitCode RunTraining(job::Job& job);
ExitCode RunImport(job::Job& job);
ExitCode RunExport(job::Job& job);
ExitCode RunPreflight(job::Job& job);
ExitCode RunPlan(const job::Job& job);
ExitCode RunCalibration(const job::Job& job);  // --calibrate

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

}  // namespace trireme::driver

#endif  // TRIREME_DRIVER_TASKS_HPP_
