// A job and its parts (the request, the ranks, the device, the checkpoint to start from, the token
// files), and functions on them that several tasks use.
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

// Limits on the time that a rank may take without progress; beyond them, watchdogs end the job.

// The limit until a step has been measured: for reading tokens, building the model, and the first
// step, in which libraries prepare themselves.
constexpr double kSetUpBound = 600;  // seconds
// Limit of a step, as a multiple of the longest step so far. Steps vary (a file system stalls,
// other programs use the processor), but no healthy step takes so much longer.
constexpr double kStepsABound = 20;
constexpr double kLeastBound = 300;  // seconds; least limit of a step with its records
// A validation or checkpoint may take this many times its expected (measured or estimated) time.
constexpr double kLongBound = 3;
// Least limit of a checkpoint: a file system may need minutes to switch to another server.
constexpr double kDiskBound = 900;  // seconds

// Seconds for which a rank may make no progress in this phase (comm::Watchdog). stated:
// run.hang_timeout; 0: derived from `longest`. Even if it is stated, a checkpoint gets at least
// kLongBound times its expected time.
double HangBound(comm::Phase phase, double stated, const Deadline& longest);

// Arms the watchdogs with the bound of a set-up. stated: run.hang_timeout.
void ArmSetUp(const comm::Runtime& runtime, double stated);

// The [job] section, and the options of all sections, read once per job.

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
  std::string name = "run";   // of the run (job.name)
  std::string output;         // run folder; runs/<name> by default
  bool output_given = false;  // output is in the deck or on the command line
};

// The options of all sections except [generate], which the task of that name reads.
struct DeckOptions : train::DeckOptions {
  Options job;
  data::TokenizeOptions tokenize;
  checkpoint::Options checkpoint;
  report::Options monitor;
  train::SafeguardOptions training;
};

void Declare(deck::Schema& schema);  // [job]

// Sets job.output to runs/<job.name> if the deck leaves it out.
void Resolve(deck::Deck& deck);

Options Read(const deck::Deck& deck);

// True for tasks that only convert weights or texts into other formats.
constexpr bool OnlyConverts(Task task) {
  return task == Task::kTokenize || task == Task::kImport || task == Task::kExport;
}

// True for tasks that take windows from the training split.
constexpr bool ReadsTraining(Task task) { return task == Task::kTrain || task == Task::kScaling; }

// Reads every section of DeckOptions. Throws InputError with the deck's line if values contradict
// each other; what depends on the ranks or the token file is checked later.
DeckOptions ReadAll(const deck::Deck& deck);

// Bytes allowed on a CPU for code that is loaded after the start, and for small data
// (doc/benchmarks.md: 18 to 29 MiB).
inline constexpr std::int64_t kLoadedLater = std::int64_t{20} << 20;

// What the job is asked to do: the values of all sections, and the texts they come from.
struct Request : DeckOptions {
  CommandLine line;
  const deck::Schema* schema = nullptr;
  deck::Deck deck;   // the resolved deck
  Sources sources;   // texts of the deck; their `start` has moved to Job::start
  double begun = 0;  // Seconds() when the job began
};

// The ranks of the job, and the signals that reach this rank.
struct Ranks {
  const comm::Runtime* runtime = nullptr;
  device::StopSignals* signals = nullptr;
  const comm::Communicator& World() const { return runtime->World(); }
  const comm::Communicator& Node() const { return runtime->Node(); }
  const comm::Hosts& Hosts() const { return runtime->Hosts(); }
  comm::Watchdog& Watch() const { return runtime->Watch(); }
};

// The device on which this rank computes.
struct Device {
  std::unique_ptr<device::Gpu> gpu;               // null: the CPU computes
  std::unique_ptr<kernels::Libraries> libraries;  // the GPU's; destroyed before gpu and MPI
  bool staged = false;            // ranks share a GPU: transfers pass through the host
  device::Stream stream;          // for this rank's computations
  Placement placement;            // of this rank's threads
  Dtype dtype = Dtype::kFloat32;  // of values and activations
  // MemoryInUse() of this rank before anything was planned; on CPUs plus kLoadedLater.
  std::int64_t program_bytes = 0;
  // Why bf16 products are fp32 products of rounded operands; empty: they are not.
  std::string why_fp32;
  // FLOP/s of this rank's products (kernels::MeasureRoof); 0: not measured yet.
  double roof_flops = 0;
  const char* Precision() const;  // "fp32", "bf16", "fp8", "fp64"
};

// State shared by everything that opens token files.
struct Files {
  // The folder of copies on the node, chosen by InspectTokens (data.staging = node).
  std::shared_ptr<data::StagingPlace> staging = std::make_shared<data::StagingPlace>();
  // What InspectTokens found out on rank 0; used when files are opened.
  std::shared_ptr<data::KnownFiles> known = std::make_shared<data::KnownFiles>();
};

// The whole job, for the functions of tasks.hpp. Other functions take only the parts they use.
struct Job {
  Request request;
  Ranks ranks;
  Device device;
  Start start;
  Files files;
  tools::Findings preflight;  // found at the start; complete on rank 0
  std::string ended_run;      // folder of the training run that this job finished; or empty
};

// Makes the job. Collective over the world. World rank 0 reads the deck and finds the checkpoint to
// start from, and all ranks parse the same texts; then the device is chosen and opened, and threads
// are placed. Throws AgreedError (exit code 2).
Job MakeJob(const comm::Runtime& runtime, const CommandLine& line, const deck::Schema& schema,
            device::StopSignals& signals);

// Bytes of this rank's peak resident set or, on a GPU, of the GPU's memory in use now.
std::int64_t MemoryInUse(const Device& device);

// Facts about the token file, or the files of a mixture, for a plan of the deck's task. shared_by:
// ranks per node that share one copy (data.staging = shared_memory); 0: unknown, and the copy is
// not counted. known: as in data::CountTokens. Not collective. Throws InputError like
// data::CountTokens and, with the deck's line, if a mixture has different vocabularies, a missing
// file or one file twice, or if a validation set has another vocabulary.
train::TokenFacts FactsOf(const DeckOptions& options, const deck::Deck& deck, int shared_by,
                          data::KnownFiles* known = nullptr);

// Runs tools::LookAround on run folder, data, cores and GPU. Collective; called after MakeJob.
tools::Findings LookAround(const Request& request, const Ranks& ranks, const Device& device,
                           bool whole);

// Facts about the deck's token files, equal on all ranks. Collective. With data.staging = node,
// also chooses the folder of copies. Throws AgreedError (exit code 2) without room.
train::TokenFacts InspectTokens(const Request& request, const Ranks& ranks, const Files& files);
// Facts about a file of pairs, likewise, with the batches that `data` describes. Collective.
train::TokenFacts InspectPairs(const Request& request, const Ranks& ranks,
                               const data::Options& data);
// Opens an encoder-decoder's file of pairs, staged as the deck says. Collective.
data::PairFile OpenPairs(const Request& request, const Ranks& ranks);
train::MachineFacts FactsOf(const Device& device);
train::Request RequestOf(const Request& request, const comm::Communicator& world,
                         const Device& device, const Start& start, const train::TokenFacts& tokens);

// The position in the data at which a run continues (-r): the checkpoint's position, in this deck's
// windows. Each file of a mixture, recognised by its contents, continues at its own place. For any
// other job: the start of training.
data::Origin OriginOf(const Request& request, const Start& start, const train::TokenFacts& tokens);

// Runs `body`, which loads the first candidate of `start`. If that candidate's bytes are damaged,
// notes it in `start` and runs `body` again with the next older one, and so on. Collective. Throws
// any other error of `body`; AgreedError (exit code 2) that names all damaged candidates if the
// last one is damaged, too.
ExitCode FromNewestValid(const Request& request, const comm::Communicator& world, Start& start,
                         const std::function<ExitCode()>& body);

// Calls `read` with the first candidate of `start`. Both are collective. If the running training
// has removed that checkpoint meanwhile, a task that only reads tries the newest one instead, a
// bounded number of times. Returns the checkpoint that was read; throws what `read` throws.
std::string ReadNewest(const Request& request, const comm::Communicator& world, const Start& start,
                       const std::function<void(const std::string& checkpoint)>& read);

// Checks that this rank's planned memory is available, together with that of other ranks on the
// node or GPU. Collective. Throws AgreedError (exit code 2) with the terms and what would help.
void CheckMemory(const Request& request, const Ranks& ranks, const Device& device,
                 const device::MemoryTerms& planned, const comm::ProcessGrid& grid);
// Whether CheckMemory would pass. Collective.
bool HasMemory(const Ranks& ranks, const Device& device, const device::MemoryTerms& planned);

// If GPUs compute, prepares `grid` for transfers of their memory. Collective over the grid's world.
void UseGpu(const Request& request, const Device& device, comm::ProcessGrid& grid);
// The same, then checks that the memory left beside the communicators, whose size was only
// estimated, suffices for the rest of `planned`. Every task that plans memory calls this one.
// Throws like CheckMemory.
void UseGpu(const Request& request, const Device& device, const device::MemoryTerms& planned,
            comm::ProcessGrid& grid);

// Throws AgreedError (exit code 3) if a signal has asked a rank to stop. Collective. Called between
// the phases of a training job's set-up, and within long ones.
void StopIfAsked(const Ranks& ranks);

// Opens the deck's token file (of a mixture, the first one), staged as the deck says, with the
// splits that the task reads. Collective. If it is streamed, the first rank of each replica of the
// grid reads it. Throws AgreedError like StopIfAsked.
data::TokenFile OpenTokens(const Request& request, const Ranks& ranks, const Files& files,
                           const comm::ProcessGrid& grid);
// Opens the files from which training takes windows, in the order of data.mixture. Collective.
std::vector<data::TokenFile> OpenCorpus(const Request& request, const Ranks& ranks,
                                        const Files& files, const comm::ProcessGrid& grid);

// A validation set of data.validation.
struct ValidationSet {
  std::string name;
  data::TokenFile tokens;  // has the valid split only
};
// Opens the validation sets, in the deck's order. Collective. Throws like StopIfAsked.
std::vector<ValidationSet> OpenValidation(const Request& request, const Ranks& ranks,
                                          const Files& files, const comm::ProcessGrid& grid);
// A line about the copies that data.staging = node made and their time; empty if there are none.
// Call it on rank 0 after all token files are open.
std::string StagingLine(const Files& files);
// Which kernels compute attention, and why: "attention: our own (model.attention_dropout = 0.1)";
// "" on a CPU.
std::string DescribeAttention(const Request& request, const Device& device);
// A valid split whose loss is computed. name: of its validation set; empty: the token file's own.
struct ValidSplit {
  std::string name;
  const data::TokenFile* tokens = nullptr;
};
// The valid splits of `sets` in their order or, if there are none, that of `tokens`. The first one
// decides on the best checkpoint. The result refers to both arguments.
std::vector<ValidSplit> ValidSplits(const data::TokenFile& tokens,
                                    std::span<const ValidationSet> sets);
// Throws AgreedError (exit code 2) that names the file if a split used for validation or test has
// no target that counts. Collective; called before a training writes anything.
void RequireTargets(const Request& request, const comm::Communicator& world,
                    const data::TokenFile& tokens, std::span<const ValidSplit> validation);

// Prints -v's last line, for tasks without further output; returns kDone.
ExitCode SayValid(const comm::Communicator& world);

}  // namespace trireme::app
