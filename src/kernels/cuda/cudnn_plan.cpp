// Describes attention to cuDNN as a graph of one operation, and keeps the plans.
#include "cudnn_plan.hpp"

#include <cuda_runtime.h>
#include <cudnn_frontend.h>
#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <utility>
#include <vector>

#include "libraries.hpp"
#include "trireme/base/error.hpp"

namespace trireme::kernels::cuda {

namespace {

// With lengths that are not multiples of 128, frontends before 1.18 copy to the GPU from vectors
// that no longer exist when a recorded graph repeats the copy.
static_assert(CUDNN_FRONTEND_VERSION >= 11800, "cudnn-frontend 1.18 or newer is needed");

namespace graph = cudnn_frontend::graph;
using Tensor = std::shared_ptr<graph::Tensor_attributes>;
using Extents = std::vector<std::int64_t>;

void Check(cudnnStatus_t status) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw RunError(std::string("attention: cuDNN says ") + cudnnGetErrorString(status));
}

bool IsRecording(cudaStream_t queue) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(queue, &status) == cudaSuccess &&
         status != cudaStreamCaptureStatusNone;
}

// Clears a failure that is expected here, so that no later call reports it.
void Forget(cudaStream_t queue, bool recording_before) {
  if (!recording_before && IsRecording(queue)) {
    cudaGraph_t recorded = nullptr;
    if (cudaStreamEndCapture(queue, &recorded) == cudaSuccess && recorded != nullptr) {
      cudaGraphDestroy(recorded);
    }
  }
  cudaGetLastError();
}

// Number of sequences as cuDNN counts them: each entry of a document is one.
std::int64_t Entries(const CudnnProblem& p) {
  return p.sequences * std::max<std::int64_t>(1, p.documents);
}

// A list of numbers on the GPU.
Tensor List(graph::Graph& g, std::int64_t uid, std::int64_t count,
            cudnn_frontend::DataType_t type) {
  graph::Tensor_attributes list;
  list.set_uid(uid).set_dim(Extents{count, 1, 1, 1}).set_stride(Extents{1, 1, 1, 1});
  list.set_data_type(type);
  return g.tensor(list);
}
void AddOffsets(graph::Graph& g, graph::Tensor_attributes& tensor, const CudnnProblem& p,
                CudnnOperand operand) {
  if (p.documents == 0) return;
  tensor.set_ragged_offset(
      List(g, kOffsets + operand, Entries(p) + 1, cudnn_frontend::DataType_t::INT64));
}

// Describes the heads of a matrix's rows in cuDNN's order: sequence, head, position, feature.
void Describe(graph::Graph& g, graph::Tensor_attributes& tensor, const CudnnProblem& p,
              CudnnOperand operand, bool of_keys, const CudnnRows& at) {
  tensor.set_uid(operand)
      .set_dim(Extents{Entries(p), of_keys ? p.kv_heads : p.heads, of_keys ? p.keys : p.queries,
                       p.head_dim})
      .set_stride(Extents{at.rows * at.stride, p.head_dim, at.stride, 1})
      .set_data_type(cudnn_frontend::DataType_t::BFLOAT16);
  AddOffsets(g, tensor, p, operand);
}
// Packed, since cuDNN's backward pass reads no other strides before 9.26. With documents [rows,
// heads], as in Transformer Engine.
void DescribeStatistics(graph::Graph& g, graph::Tensor_attributes& tensor, const CudnnProblem& p) {
  const bool by_row = p.documents > 0;
  tensor.set_uid(kStatistics)
      .set_dim(Extents{Entries(p), p.heads, p.queries, 1})
      .set_stride(Extents{p.heads * p.queries, by_row ? 1 : p.queries, by_row ? p.heads : 1, 1})
      .set_data_type(cudnn_frontend::DataType_t::FLOAT);
  AddOffsets(g, tensor, p, kStatistics);
}

Tensor Input(graph::Graph& g, const CudnnProblem& p, CudnnOperand operand, bool of_keys,
             const CudnnRows& at) {
  graph::Tensor_attributes tensor;
  Describe(g, tensor, p, operand, of_keys, at);
  return g.tensor(tensor);
}
void Output(graph::Graph& g, const Tensor& tensor, const CudnnProblem& p, CudnnOperand operand,
            bool of_keys, const CudnnRows& at) {
  Describe(g, *tensor, p, operand, of_keys, at);
  tensor->set_output(true);
}

// Attributes that both passes have.
template <typename Attributes>
Attributes AttributesOf(graph::Graph& g, const CudnnProblem& p) {
  Attributes attributes;
  attributes.set_name(p.backward ? "attention_backward" : "attention")
      .set_causal_mask(p.causal)
      .set_attn_scale(static_cast<float>(1 / p.divisor));
  if (p.documents > 0) {
    const auto lengths = [&](CudnnOperand operand) {
      return List(g, operand, Entries(p), cudnn_frontend::DataType_t::INT32);
    };
    attributes.set_padding_mask(true)
        .set_seq_len_q(lengths(kQueryLengths))
        .set_seq_len_kv(lengths(kKeyLengths));
  }
  return attributes;
}

struct Operands {
  Operands(graph::Graph& g, const CudnnProblem& p)
      : query(Input(g, p, kQuery, false, p.query)),
        key(Input(g, p, kKey, true, p.key)),
        value(Input(g, p, kValue, true, p.key)) {}
  Tensor query, key, value;
};

void AddForward(graph::Graph& g, const CudnnProblem& p) {
  const Operands x(g, p);
  auto attributes = AttributesOf<graph::SDPA_attributes>(g, p);
  attributes.set_generate_stats(true);
  const auto [out, statistics] = g.sdpa(x.query, x.key, x.value, attributes);
  Output(g, out, p, kOut, false, p.out);
  DescribeStatistics(g, *statistics, p);
  statistics->set_output(true);
}

void AddBackward(graph::Graph& g, const CudnnProblem& p) {
  const Operands x(g, p);
  const Tensor out = Input(g, p, kOut, false, p.out);
  const Tensor dout = Input(g, p, kDout, false, p.dout);
  graph::Tensor_attributes statistics;
  DescribeStatistics(g, statistics, p);
  auto attributes = AttributesOf<graph::SDPA_backward_attributes>(g, p);
  attributes.set_deterministic_algorithm(p.deterministic);
  if (p.documents > 0) {  // workspace for this many rows, not entries * length
    attributes.set_max_total_seq_len_q(p.sequences * p.queries)
        .set_max_total_seq_len_kv(p.sequences * p.keys);
  }
  const auto [dquery, dkey, dvalue] =
      g.sdpa_backward(x.query, x.key, x.value, out, dout, g.tensor(statistics), attributes);
  Output(g, dquery, p, kDquery, false, p.dquery);
  Output(g, dkey, p, kDkey, true, p.dkey);
  Output(g, dvalue, p, kDvalue, true, p.dkey);
}

std::shared_ptr<graph::Graph> Describe(const CudnnProblem& problem) {
  auto described = std::make_shared<graph::Graph>();
  described->set_io_data_type(cudnn_frontend::DataType_t::BFLOAT16)
      .set_intermediate_data_type(cudnn_frontend::DataType_t::FLOAT)
      .set_compute_data_type(cudnn_frontend::DataType_t::FLOAT);
  if (problem.backward) {
    AddBackward(*described, problem);
  } else {
    AddForward(*described, problem);
  }
  return described;
}

// Text "x.y.z" of a version as cuDNN 9 and its frontend encode it.
std::string VersionText(std::size_t version) {
  constexpr std::size_t kMajor = 10000, kMinor = 100;
  return fmt::format("{}.{}.{}", version / kMajor, version % kMajor / kMinor, version % kMinor);
}

}  // namespace

bool CudnnIsThere() { return cudnnGetVersion() != 0; }

std::string CudnnVersions() {
  return fmt::format("cuDNN {} (frontend {})", VersionText(cudnnGetVersion()),
                     VersionText(CUDNN_FRONTEND_VERSION));
}

std::string WhyNoFixedOrderOfCudnn(const device::Stream& stream) {
  constexpr int kBlackwell = 10;                // compute capability
  constexpr std::size_t kOrderedSince = 91801;  // cuDNN 9.18.1
  const device::GpuContext& gpu = *stream.gpu;
  if (gpu.major != kBlackwell || cudnnGetVersion() >= kOrderedSince) return {};
  return fmt::format(
      "cuDNN {} has no deterministic backward pass of attention for compute capability {}.{}; it "
      "has "
      "one since {}",
      VersionText(cudnnGetVersion()), gpu.major, gpu.minor, VersionText(kOrderedSince));
}

CudnnPlans::CudnnPlans() {
  const cudnnStatus_t status = cudnnCreate(&handle_);
  if (status == CUDNN_STATUS_SUCCESS) return;
  handle_ = nullptr;
  why_not_ = std::string("cuDNN could not be opened: ") + cudnnGetErrorString(status);
  cudaGetLastError();  // clears the error, so that no later call reports it
}

CudnnPlans::~CudnnPlans() {
  plans_.clear();  // they must go before the handle
  if (handle_ != nullptr) cudnnDestroy(handle_);
}

CudnnPlans& CudnnPlansOf(const device::Stream& stream) {
  std::unique_ptr<device::LibraryState>& state = GpuLibrariesOf(stream).Attention();
  if (state == nullptr) state = std::make_unique<CudnnPlans>();
  return static_cast<CudnnPlans&>(*state);
}

bool CudnnPlans::KeepsScores(const device::Stream& stream, const CudnnProblem& problem) {
  // Newer cards and, for documents, newer releases add in a fixed order without keeping dP.
  constexpr int kLinearSince = 10;                      // compute capability
  constexpr std::size_t kLinearDocumentsSince = 92500;  // cuDNN 9.25.0
  if (!problem.backward || !problem.deterministic) return false;
  if (stream.gpu->major >= kLinearSince) return false;
  return problem.documents == 0 || cudnnGetVersion() < kLinearDocumentsSince;
}

void CudnnPlans::Use(const device::Stream& stream) {
  if (queue_ == stream.gpu->queue) return;
  Check(cudnnSetStream(handle_, static_cast<cudaStream_t>(stream.gpu->queue)));
  queue_ = stream.gpu->queue;
}

CudnnPlan CudnnPlans::Build(const device::Stream& stream, const CudnnProblem& problem) {
  CudnnPlan plan;
  plan.why = why_not_;
  if (handle_ == nullptr) return plan;
  Use(stream);
  auto* const queue = static_cast<cudaStream_t>(stream.gpu->queue);
  const bool recording = IsRecording(queue);
  plan.graph = Describe(problem);
  // Takes the first plan that cuDNN proposes, without timing, so that runs repeat.
  auto status = plan.graph->build(handle_, {cudnn_frontend::HeurMode_t::A});
  if (status.is_good()) status = plan.graph->get_workspace_size(plan.workspace_bytes);
  if (status.is_good()) status = plan.graph->warmup(handle_);
  if (status.is_good()) return plan;
  Forget(queue, recording);
  return {nullptr, 0, "cuDNN says " + status.get_message()};
}

const CudnnPlan& CudnnPlans::Find(const device::Stream& stream, const CudnnProblem& problem) {
  const auto found = plans_.find(problem);
  if (found != plans_.end()) return found->second;
  return plans_.emplace(problem, Build(stream, problem)).first->second;
}

const CudnnPlan* CudnnPlans::Built(const CudnnProblem& problem) const {
  const auto found = plans_.find(problem);
  return found == plans_.end() ? nullptr : &found->second;
}

void CudnnPlans::Execute(const device::Stream& stream, const CudnnPlan& plan,
                         std::unordered_map<std::int64_t, void*> operands, void* workspace) {
  Use(stream);
  auto status = plan.graph->execute(handle_, operands, workspace);
  if (status.is_bad()) throw RunError("attention: cuDNN says " + status.get_message());
}

// Sizes of pieces, chosen by the memory that their plans take, and places of their operands.

namespace {

// On GPUs of compute capability 8 and 9, cuDNN's deterministic backward pass keeps dP (queries x
// keys for each head) in its workspace: it gets as many heads at once as fit into this.
constexpr std::int64_t kUsualWorkspace = std::int64_t{512} << 20;  // bytes
// Heads that share keys, and those of a sequence of documents, cannot be separated: they may take 1
// / kLargestPart of the card's memory.
constexpr std::int64_t kLargestPart = 16;
constexpr std::int64_t kUnit = 64;     // elements: workspaces are aligned to 256 bytes
constexpr std::int64_t kBf16Size = 2;  // bytes

}  // namespace

std::int64_t CudnnRoundUp(std::int64_t elements) { return CeilDivide(elements, kUnit) * kUnit; }

CudnnSearch::CudnnSearch(const device::Stream& stream, std::optional<std::int64_t> room, bool build)
    : stream_(stream),
      most_(std::max(kUsualWorkspace, stream.gpu->memory_bytes / kLargestPart)),
      room_(room.value_or(most_)),
      build_(build) {}

std::optional<CudnnChoice> CudnnSearch::Choose(const CudnnProblem& asked) {
  CudnnProblem whole = asked;
  if (!whole.backward) return Accept(whole, most_);
  whole.deterministic = stream_.gpu->deterministic;
  const auto of_sequences = [&](std::int64_t sequences) {
    CudnnProblem p = whole;
    p.sequences = sequences;
    return p;
  };
  const auto of_heads = [&](std::int64_t kv_heads) {
    CudnnProblem p = of_sequences(1);
    p.kv_heads = kv_heads, p.heads = kv_heads * (whole.heads / whole.kv_heads);
    return p;
  };
  auto choice = Largest(whole.sequences, of_sequences);
  if (whole.documents > 0) return choice ? choice : Accept(of_sequences(1), most_);
  if (!choice) choice = Largest(whole.kv_heads, of_heads);
  return choice ? choice : Accept(of_heads(1), most_);
}

std::optional<CudnnChoice> CudnnSearch::Largest(
    std::int64_t count, const std::function<CudnnProblem(std::int64_t)>& piece) {
  for (std::int64_t pieces = 1; pieces <= count; ++pieces) {
    if (count % pieces != 0) continue;
    const CudnnProblem problem = piece(count / pieces);
    if (LeastWorkspace(problem) > kUsualWorkspace) continue;  // avoids building a slow plan
    if (auto choice = Accept(problem, kUsualWorkspace)) return choice;
  }
  return std::nullopt;
}

std::int64_t CudnnSearch::LeastWorkspace(const CudnnProblem& problem) const {
  if (!CudnnPlans::KeepsScores(stream_, problem)) return 0;
  return problem.sequences * std::max<std::int64_t>(1, problem.documents) * problem.heads *
         CudnnRoundUp(problem.queries) * CudnnRoundUp(problem.keys) * kBf16Size;
}

std::optional<CudnnChoice> CudnnSearch::Accept(const CudnnProblem& problem, std::int64_t most) {
  CudnnPlans& plans = CudnnPlansOf(stream_);
  const CudnnPlan* const plan = build_ ? &plans.Find(stream_, problem) : plans.Built(problem);
  if (plan == nullptr) {
    why_ = "no plan was built for it";
  } else if (plan->graph == nullptr) {
    why_ = plan->why;
  } else if (plan->workspace_bytes > most) {
    why_ = fmt::format("cuDNN wants {} MiB of workspace, of at most {}",
                       plan->workspace_bytes >> 20, most >> 20);
  } else if (plan->workspace_bytes > room_) {
    lacking_ = lacking_ == 0 ? plan->workspace_bytes : std::min(lacking_, plan->workspace_bytes);
  } else {
    return CudnnChoice{problem, plan};
  }
  return std::nullopt;
}

void WarnOfOwnAttention(const device::Stream& stream, bool backward, std::string why) {
  CudnnPlans::PassState& state = CudnnPlansOf(stream).StateOf(backward);
  if (std::exchange(state.warned, true)) return;
  std::ranges::replace(why, '\n', ' ');
  fmt::print(stderr, "warning: attention {}: our own kernels, not cuDNN's, because {}\n",
             backward ? "backward" : "forward", why);
  std::fflush(stderr);
}

void RunCudnn(const device::Stream& stream, const CudnnProblem& whole, const CudnnChoice& choice,
              const CudnnPlaces& places) {
  const CudnnProblem& piece = choice.problem;
  const std::int64_t shared = whole.heads / whole.kv_heads;
  for (std::int64_t sequence = 0; sequence < whole.sequences; sequence += piece.sequences) {
    for (std::int64_t kv_head = 0; kv_head < whole.kv_heads; kv_head += piece.kv_heads) {
      const auto at = [&](void* first, const CudnnRows& rows, std::int64_t head) -> void* {
        if (first == nullptr) return nullptr;
        const std::int64_t elements = sequence * rows.rows * rows.stride + head * whole.head_dim;
        return static_cast<char*>(first) + elements * kBf16Size;
      };
      const std::int64_t head = kv_head * shared;
      std::unordered_map<std::int64_t, void*> operands = {
          {kQuery, at(places.query, whole.query, head)},
          {kKey, at(places.key, whole.key, kv_head)},
          {kValue, at(places.value, whole.key, kv_head)},
          {kOut, at(places.out, whole.out, head)},
          {kStatistics, places.statistics + (sequence * whole.heads + head) * whole.queries}};
      if (whole.backward) {
        operands[kDout] = at(places.dout, whole.dout, head);
        operands[kDquery] = at(places.dquery, whole.dquery, head);
        operands[kDkey] = at(places.dkey, whole.dkey, kv_head);
        operands[kDvalue] = at(places.dvalue, whole.dkey, kv_head);
      }
      CudnnPlansOf(stream).Execute(stream, *choice.plan, std::move(operands), places.workspace);
    }
  }
}

}  // namespace trireme::kernels::cuda
