// Describes attention to cuDNN as a graph of one operation, and keeps cuDNN's plans.
#include "cudnn_plan.hpp"

#include <cuda_runtime.h>
#include <cudnn_frontend.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "cuda/libraries.hpp"
#include "cudnn_attention.hpp"
#include "trireme/base/error.hpp"

namespace trireme::kernels::cuda {

namespace {

// Before 1.18 the frontend copies to the GPU from vectors that are gone when a recorded graph
// copies again: of lengths that are no multiple of 128.
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

// Clears a failure that is no error here, so that no later call reports it.
void Forget(cudaStream_t queue, bool recording_before) {
  if (!recording_before && IsRecording(queue)) {
    cudaGraph_t recorded = nullptr;
    if (cudaStreamEndCapture(queue, &recorded) == cudaSuccess && recorded != nullptr) {
      cudaGraphDestroy(recorded);
    }
  }
  cudaGetLastError();
}

// What cuDNN takes for sequences: each of the documents' entries is one.
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

// Heads of the rows of a matrix as cuDNN counts them: sequence, head, position, feature.
void Describe(graph::Graph& g, graph::Tensor_attributes& tensor, const CudnnProblem& p,
              CudnnOperand operand, bool of_keys, const CudnnRows& at) {
  tensor.set_uid(operand)
      .set_dim(Extents{Entries(p), of_keys ? p.kv_heads : p.heads, of_keys ? p.keys : p.queries,
                       p.head_dim})
      .set_stride(Extents{at.rows * at.stride, p.head_dim, at.stride, 1})
      .set_data_type(cudnn_frontend::DataType_t::BFLOAT16);
  AddOffsets(g, tensor, p, operand);
}
// Packed: before 9.26 cuDNN's backward pass reads no other strides. With documents [rows, heads],
// as Transformer Engine has it.
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

// Attributes that both passes share.
template <typename Attributes>
Attributes AttributesOf(graph::Graph& g, const CudnnProblem& p) {
  Attributes attributes;
  attributes.set_name(p.backward ? "attention_backward" : "attention")
      .set_causal_mask(p.causal)
      .set_attn_scale(static_cast<float>(1 / std::sqrt(static_cast<double>(p.head_dim))));
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
  if (p.documents > 0) {  // sums in the workspace are of so many rows, not of entries * length
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

// Release of version x.y.z as cuDNN 9 and its frontend count it.
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
  constexpr std::size_t kOrderedSince = 91801;  // release
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
  cudaGetLastError();  // is no later call's
}

CudnnPlans::~CudnnPlans() {
  plans_.clear();  // made with the handle
  if (handle_ != nullptr) cudnnDestroy(handle_);
}

CudnnPlans& CudnnPlansOf(const device::Stream& stream) {
  std::unique_ptr<device::LibraryState>& state = GpuLibrariesOf(stream).Attention();
  if (state == nullptr) state = std::make_unique<CudnnPlans>();
  return static_cast<CudnnPlans&>(*state);
}

bool CudnnPlans::KeepsScores(const device::Stream& stream, const CudnnProblem& problem) {
  // Newer cards and, for documents, newer releases have sums in a fixed order without dP.
  constexpr int kLinearSince = 10;                      // compute capability
  constexpr std::size_t kLinearDocumentsSince = 92500;  // release
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
  // The first of the plans that cuDNN proposes, untimed: runs repeat.
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

}  // namespace trireme::kernels::cuda
