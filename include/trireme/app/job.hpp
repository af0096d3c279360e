// A job and its parts: what was asked for, the ranks, the device, the checkpoint to start from, the
// token files; and what tasks do with them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/app/batch_job.hpp"
#include "trireme/app/placement.hpp"
#include "trireme/app/sources.hpp"
#include "trireme/checkpoint/options.hpp"
#include "trireme/comm/flight_recorder.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/comm/runtime.hpp"
#include "trireme/data/options.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/device/signals.hpp"
#include "trireme/kernels/libraries.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/tools/preflight.hpp"
#include "trireme/train/options.hpp"
#include "trireme/train/plan.hpp"

namespace trireme::app {

// The time within which a rank of a healthy job comes forward: beyond it, the watchdogs end the
// job.

// Set-up, and whatever no step has been measured for: reading tokens, building the model, the first
// step with its libraries' preparations.
constexpr double kSetUpBound = 600;  // seconds
// Steps differ: a file system that stalls, a processor that others use, memory that is moved. No
// healthy step takes so many times the longest one before it.
constexpr double kStepsABound = 20;
constexpr double kLeastBound = 300;  // seconds; rank 0 writes records in between
// How many times its expected time, measured or estimated from its bytes, a validation or a
// checkpoint may take.
constexpr double kLongBound = 3;
// Least bound of a checkpoint: a file system that changes servers answers again after minutes.
constexpr double kDiskBound = 900;  // seconds

// Seconds without a call entered or left, in each part of a job. stated: run.hang_timeout; 0: from
// what `longest` has measured. Of a stated one too, a checkpoint has the time that its bytes need.
double HangBound(comm::Phase phase, double stated, const Deadline& longest);

// From here on the watchdogs await what a set-up takes. stated: run.hang_timeout.
void ArmSetUp(const comm::Runtime& runtime, double stated);

// The [job] section, and the options of all sections together, read once for a job.

enum class Task {
  kTrain,
  kEvaluate,
  kGenerate,
  kTokenize,
  kVerify,
  kImport,
  kExport,
  kPreflight,
  kScaling,
  kPlan
};

struct Options {
  Task task = Task::kTrain;
  std::string name = "run";   // of the run
  std::string output;         // run folder; runs/<name> unless the deck names one
  bool output_given = false;  // by the deck or the command line
};

// Options of every section that a job reads; [generate] belongs to its task.
struct DeckOptions : train::DeckOptions {
  Options job;
  data::TokenizeOptions tokenize;
  checkpoint::Options checkpoint;
  report::Options monitor;
  train::SafeguardOptions training;
};

void Declare(deck::Schema& schema);  // [job]

// Gives job.output its value from job.name if the deck leaves it out.
void Resolve(deck::Deck& deck);

Options Read(const deck::Deck& deck);

// True for the tasks that turn weights or texts into others and compute nothing.
constexpr bool OnlyConverts(Task task) {
  return task == Task::kTokenize || task == Task::kImport || task == Task::kExport;
}

// True for the tasks that take windows from the training split.
constexpr bool ReadsTraining(Task task) { return task == Task::kTrain || task == Task::kScaling; }

// Every section of DeckOptions. Throws InputError with the deck's line for values that contradict
// each other; what depends on the ranks or the token file is checked later.
DeckOptions ReadAll(const deck::Deck& deck);

// Allowance for code of the program and its libraries that is loaded after the start, and for small
// data, on a CPU (doc/benchmarks.md: 18 to 29 MiB).
inline constexpr std::int64_t kLoadedLater = std::int64_t{20} << 20;

// What the job was asked for: the values of all sections, and the texts that they come from.
struct Request : DeckOptions {
  CommandLine line;
  const deck::Schema* schema = nullptr;
  deck::Deck deck;   // resolved
  Sources sources;   // texts that the deck was made of; their start is Job::start
  double begun = 0;  // Seconds() when the job began
};

// The ranks of the job, and the signals that reach this one.
struct Ranks {
  const comm::Runtime* runtime = nullptr;
  device::StopSignals* signals = nullptr;
  const comm::Communicator& World() const { return runtime->World(); }
  const comm::Communicator& Node() const { return runtime->Node(); }
  const comm::Hosts& Hosts() const { return runtime->Hosts(); }
  comm::Watchdog& Watch() const { return runtime->Watch(); }
};

// What this rank computes on.
struct Device {
  std::unique_ptr<device::Gpu> gpu;               // null: the CPU computes
  std::unique_ptr<kernels::Libraries> libraries;  // of the GPU; gone before it and MPI are
  bool staged = false;            // some ranks share a card: transfers pass through the host
  device::Stream stream;          // of the ranks' computations
  Placement placement;            // of the stream's threads
  Dtype dtype = Dtype::kFloat32;  // of values and activations
  // MemoryInUse() of this rank before anything was planned; on CPUs with kLoadedLater.
  std::int64_t program_bytes = 0;
  const char* Precision() const;  // "fp32", "bf16", "fp8", "fp64"
};

// What all who open token files share.
struct Files {
  // Folder of the copies, chosen by InspectTokens (data.staging = node).
  std::shared_ptr<data::StagingPlace> staging = std::make_shared<data::StagingPlace>();
  // Found by InspectTokens on rank 0, used by the opening of the files.
  std::shared_ptr<data::KnownFiles> known = std::make_shared<data::KnownFiles>();
};

// All of it, for the functions of tasks.hpp; what they call takes the parts that it uses.
struct Job {
  Request request;
  Ranks ranks;
  Device device;
  Start start;
  Files files;
  tools::Findings preflight;  // of the start; whole on rank 0
  std::string ended_run;      // folder of the training run that this job has ended; or empty
};

// Collective. World rank 0 reads the deck's file and finds the checkpoint to start from, all parse
// the same texts; then the device is chosen and opened, and threads are placed. AgreedError (exit
// code 2).
Job MakeJob(const comm::Runtime& runtime, const CommandLine& line, const deck::Schema& schema,
            device::StopSignals& signals);

// Peak resident set of this rank or, on a GPU, the bytes of its card in use now.
std::int64_t MemoryInUse(const Device& device);

// Facts of the token file, or of those of a mixture, for a plan of the deck's task. shared_by:
// ranks of a node that share one copy with data.staging = shared_memory; 0: unknown, so that no
// rank's share of it is counted. known: as of CountTokens. Serial. Throws InputError as
// data::CountTokens does and, with the deck's line, for a mixture of several vocabularies, of a
// missing file or of one file twice, and for a validation set of another vocabulary.
train::TokenFacts FactsOf(const DeckOptions& options, const deck::Deck& deck, int shared_by,
                          data::KnownFiles* known = nullptr);

// Collective, of tools::LookAround, after MakeJob: the run folder, the data, cores and card of
// this job.
tools::Findings LookAround(const Request& request, const Ranks& ranks, const Device& device,
                           bool whole);

// Collective. Facts of the deck's token files, of the device, and the request for a plan. With
// data.staging = node the folder of the copies is chosen; AgreedError (exit code 2) without room.
train::TokenFacts InspectTokens(const Request& request, const Ranks& ranks, const Files& files);
// Collective. The same of a file of pairs, with the batches of `data`.
train::TokenFacts InspectPairs(const Request& request, const Ranks& ranks,
                               const data::Options& data);
// Collective. The file of pairs of a model that translates, as the deck keeps tokens.
data::PairFile OpenPairs(const Request& request, const Ranks& ranks);
train::MachineFacts FactsOf(const Device& device);
train::Request RequestOf(const Request& request, const comm::Communicator& world,
                         const Device& device, const Start& start, const train::TokenFacts& tokens);

// Position in the data at which a run that -r continues goes on: what the checkpoint says, in this
// deck's windows; each file of a mixture at its own place, known by its contents. The start of
// training for any other job.
data::Origin OriginOf(const Request& request, const Start& start, const train::TokenFacts& tokens);

// Collective. Runs `body`, which loads the first candidate of `start`; if the bytes of that one
// are damaged, again with the one before it, and so on. Notes in `start` what it passed over.
// Throws what `body` throws for any other reason; AgreedError (exit code 2) naming all damaged ones
// if the last candidate is damaged, too.
ExitCode FromNewestValid(const Request& request, const comm::Communicator& world, Start& start,
                         const std::function<ExitCode()>& body);

// Collective. Calls `read`, which is collective, with the first candidate of `start`. In a task
// that only reads, a checkpoint that its run has removed meanwhile gives way to the newest one, a
// bounded number of times. Returns the checkpoint that was read; throws what `read` throws.
std::string ReadNewest(const Request& request, const comm::Communicator& world, const Start& start,
                       const std::function<void(const std::string& checkpoint)>& read);

// Collective. Checks that a rank's planned memory is there, together with that of the ranks that
// share it. AgreedError (exit code 2) that names the terms and what would help.
void CheckMemory(const Request& request, const Ranks& ranks, const Device& device,
                 const device::MemoryTerms& planned, const comm::ProcessGrid& grid);
// Collective. Whether CheckMemory would find all of it.
bool HasMemory(const Ranks& ranks, const Device& device, const device::MemoryTerms& planned);

// Collective over the grid's world. From here on the grid moves the memory of the ranks' GPUs, if
// they compute.
void UseGpu(const Request& request, const Device& device, comm::ProcessGrid& grid);
// The same, and checks that what the communicators have left is enough for the rest of `planned`:
// their memory was estimated before. Every task that plans memory calls this one. Throws as
// World().Together does, with CheckMemory's message.
void UseGpu(const Request& request, const Device& device, const device::MemoryTerms& planned,
            comm::ProcessGrid& grid);

// Collective. AgreedError (exit code 3) if a signal has asked a rank to stop: asked between the
// phases of a training job's set-up, and within long ones.
void StopIfAsked(const Ranks& ranks);

// Collective. The deck's token file, of a mixture the first one, staged as it says; of its splits
// those that the task reads. A stream is opened on the first rank of each of the grid's replicas.
// AgreedError as of StopIfAsked.
data::TokenFile OpenTokens(const Request& request, const Ranks& ranks, const Files& files,
                           const comm::ProcessGrid& grid);
// Collective. The files that training takes windows from, in the order of data.mixture.
std::vector<data::TokenFile> OpenCorpus(const Request& request, const Ranks& ranks,
                                        const Files& files, const comm::ProcessGrid& grid);

// A set of data.validation.
struct ValidationSet {
  std::string name;
  data::TokenFile tokens;  // keeps its valid split
};
// Collective. The sets, in the order of the deck. AgreedError as of StopIfAsked.
std::vector<ValidationSet> OpenValidation(const Request& request, const Ranks& ranks,
                                          const Files& files, const comm::ProcessGrid& grid);
// Line for the screen about what data.staging = node took; empty without copies. Valid once all
// token files are open, on rank 0.
std::string StagingLine(const Files& files);
// "attention: our own (model.attention_dropout = 0.1)"; "" on a CPU.
std::string DescribeAttention(const Request& request, const Device& device);
// A valid split whose loss is computed. name: of its set; empty for the token file's own.
struct ValidSplit {
  std::string name;
  const data::TokenFile* tokens = nullptr;
};
// The sets' splits in their order, or the own one of `tokens` if there is no set; at least one, of
// which the first decides on the best checkpoint. Refers to both arguments.
std::vector<ValidSplit> ValidSplits(const data::TokenFile& tokens,
                                    std::span<const ValidationSet> sets);
// Collective, before a training writes anything. AgreedError (exit code 2) naming the file if a
// split that it validates or tests on has no target that counts.
void RequireTargets(const Request& request, const comm::Communicator& world,
                    const data::TokenFile& tokens, std::span<const ValidSplit> validation);

// The end of -v in a task that only computes.
ExitCode SayValid(const comm::Communicator& world);

}  // namespace trireme::app
