// What every task of the program shares: the deck, the ranks, where and how to compute.
#ifndef TRIREME_JOB_JOB_HPP_
#define TRIREME_JOB_JOB_HPP_

#include <cstdint>
#include <memory>
#include <string>

#include "trireme/comm/process_grid.hpp"
#include "trireme/comm/runtime.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/input/deck.hpp"
#include "trireme/job/command_line.hpp"
#include "trireme/kernels/products.hpp"
#include "trireme/machine/placement.hpp"
#include "trireme/machine/signals.hpp"
#include "trireme/model/parallel_model.hpp"

namespace trireme::job {

void DeclareJob(input::Schema& schema);  // [job], [run], [generate]

struct Job {
  const comm::Runtime* runtime = nullptr;
  const CommandLine* line = nullptr;
  machine::StopSignals* signals = nullptr;
  input::Deck deck;                             // resolved as far as the task needs
  std::unique_ptr<device::Gpu> gpu;             // null: the CPU computes
  std::unique_ptr<kernels::Products> products;  // of the GPU
  bool gpu_shared = false;  // some ranks share a card: transfers pass through the host
  device::Stream stream;
  machine::Placement placement;  // of the stream's threads
  Dtype dtype = Dtype::kFloat32;
  std::uint32_t seed = 1;
  double start_seconds = 0;  // Seconds() when the job began

  const comm::Communicator& World() const { return runtime->World(); }
  const char* Precision() const {
    return stream.fp8 ? "fp8" : stream.bf16 ? "bf16" : NameOf(dtype);
  }
};

// The text of a deck's file; InputError when it cannot be read.
std::string ReadDeckFile(const std::string& path);
// Parses it and resolves what follows from other keys alone.
input::Deck ParseDeck(const input::Schema& schema, const CommandLine& line,
                      const std::string& text);

// Collective. World rank 0 reads the deck's file, all parse the same text. AgreedError (exit code
// 2).
Job MakeJob(const comm::Runtime& runtime, const CommandLine& line, const input::Schema& schema,
            machine::StopSignals& signals);

// Collective. From here on the grid moves the memory of the ranks' GPUs, where they compute.
void UseGpu(const Job& job, comm::ProcessGrid& grid);

// Collective. The deck's token file, staged as it says.
data::TokenFile OpenTokens(const Job& job);

// What [data] asks for: sequence_length, stride (0 became the length), batch, and micro_batch (0
// became as many as suit the device: about 2,048 tokens on the CPU, 16,384 on a GPU).
struct DataShape {
  std::int64_t length = 0, stride = 0, batch = 0, micro_batch = 0;
};
DataShape ReadDataShape(const Job& job);

// Collective. The deck's grid on the job's ranks. AgreedError (exit code 2) where it does not fit
// them, naming layouts that suit the model too.
comm::ProcessGrid MakeGrid(Job& job);

// The model of the deck for this vocabulary, as a whole. InputError with the deck's line; layouts
// are checked elsewhere (model::CheckLayout).
model::ModelSetup ReadModelSetup(Job& job, std::int64_t vocabulary, const DataShape& shape);

// The end of -v in a task that only computes.
ExitCode SayValid(const Job& job);

// "2 layers, dim 128, 4 heads, vocabulary 33,278; 9.71 M parameters".
std::string Describe(const model::Options& options);

}  // namespace trireme::job

#endif  // TRIREME_JOB_JOB_HPP_
