// Describes attention to cuDNN as a graph of one operation, and keeps cuDNN's plans.
#include "cudnn_plan.hpp"

#include <cuda_runtime.h>
#include <cudnn_frontend.h>
#include <fmt/format.h>

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

// Heads of the rows of a matrix as cuDNN counts them: sequence, head, position, feature.
void Describe(graph::Tensor_attributes& tensor, const CudnnProblem& p, CudnnOperand operand,
              bool of_keys, const CudnnRows& at) {
  tensor.set_uid(operand)
      .set_dim(Extents{p.sequences, of_keys ? p.kv_heads : p.heads, of_keys ? p.keys : p.queries,
                       p.head_dim})
      .set_stride(Extents{at.rows * at.stride, p.head_dim, at.stride, 1})
      .set_data_type(cudnn_frontend::DataType_t::BFLOAT16);
}
// Packed: before 9.26 cuDNN's backward pass reads no other strides.
void DescribeStatistics(graph::Tensor_attributes& tensor, const CudnnProblem& p) {
  tensor.set_uid(kStatistics)
      .set_dim(Extents{p.sequences, p.heads, p.queries, 1})
      .set_stride(Extents{p.heads * p.queries, p.queries, 1, 1})
      .set_data_type(cudnn_frontend::DataType_t::FLOAT);
}

Tensor Input(graph::Graph& g, const CudnnProblem& p, CudnnOperand operand, bool of_keys,
             const CudnnRows& at) {
  graph::Tensor_attributes tensor;
  Describe(tensor, p, operand, of_keys, at);
  return g.tensor(tensor);
}
void Output(const Tensor& tensor, const CudnnProblem& p, CudnnOperand operand, bool of_keys,
            const CudnnRows& at) {
  Describe(*tensor, p, operand, of_keys, at);
  tensor->set_output(true);
}

float Scale(const CudnnProblem& p) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(p.head_dim)));
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
  const auto [out, statistics] = g.sdpa(x.query, x.key, x.value,
                                        graph::SDPA_attributes()
                                            .set_name("attention")
                                            .set_generate_stats(true)
                                            .set_causal_mask(p.causal)
                                            .set_attn_scale(Scale(p)));
  Output(out, p, kOut, false, p.out);
  DescribeStatistics(*statistics, p);
  statistics->set_output(true);
}

void AddBackward(graph::Graph& g, const CudnnProblem& p) {
  const Operands x(g, p);
  const Tensor out = Input(g, p, kOut, false, p.out);
  const Tensor dout = Input(g, p, kDout, false, p.dout);
  graph::Tensor_attributes statistics;
  DescribeStatistics(statistics, p);
  const auto [dquery, dkey, dvalue] =
      g.sdpa_backward(x.query, x.key, x.value, out, dout, g.tensor(statistics),
                      graph::SDPA_backward_attributes()
                          .set_name("attention_backward")
                          .set_causal_mask(p.causal)
                          .set_attn_scale(Scale(p))
                          .set_deterministic_algorithm(true));
  Output(dquery, p, kDquery, false, p.dquery);
  Output(dkey, p, kDkey, true, p.dkey);
  Output(dvalue, p, kDvalue, true, p.dkey);
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
