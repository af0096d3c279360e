// The tasks besides training: tokenize, evaluate, generate.
#ifndef TRIREME_DRIVER_TASKS_HPP_
#define TRIREME_DRIVER_TASKS_HPP_

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/driver/options.hpp"
#include "trireme/job/job.hpp"

namespace trireme::driver {

input::Schema DeclareAll();  // every module's keys

// Collective. job.task: runs it to its end.
ExitCode RunTask(job::Job& job);

ExitCode RunTokenize(const job::Job& job);
ExitCode RunEvaluate(job::Job& job);
ExitCode RunGenerate(job::Job& job);
ExitCode RunTraining(job::Job& job);

// Collective. The model with the weights of -r, whose checkpoint it names, in the deck's layout;
// AgreedError (exit code 2) without one. Warns where it learned another corpus. For tasks that do
// not train.
std::unique_ptr<model::ParallelModel> LoadModel(job::Job& job, const comm::ProcessGrid& grid,
                                                const data::TokenFile& tokens,
                                                const job::DataShape& shape,
                                                std::string& checkpoint);

// Collective over the model's replica, whose ranks all pass the same prompt. Continues `prompt`
// (never empty) token by token; returns the new tokens only, the same on every rank; none at all
// where a prediction is not finite.
std::vector<std::int32_t> Continue(model::ParallelModel& model, std::vector<std::int32_t> prompt,
                                   const GenerateOptions& options);
// Collective over the grid. Continue on the first replica, the others wait, unless parameters are
// sharded, which all have to gather; RunError on all ranks where a prediction is not finite.
std::vector<std::int32_t> ContinueOnce(model::ParallelModel& model,
                                       const std::vector<std::int32_t>& prompt,
                                       const GenerateOptions& options);
// The next token from its logits: temperature, then top-k, then top-p, then a draw; `uniform` in
// (0, 1].
std::int32_t Choose(const std::vector<double>& logits, const GenerateOptions& options,
                    double uniform);

}  // namespace trireme::driver

#endif  // TRIREME_DRIVER_TASKS_HPP_
