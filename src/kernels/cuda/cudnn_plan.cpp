// Describes attention to cuDNN as a graph of one operation, and keeps the plans that it makes.
#include "cudnn_plan.hpp"

#include <cudnn_frontend.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/error.hpp"

namespace trireme::kernels::cuda {

namespace {

namespace graph = cudnn_frontend::graph;
using Tensor = std::shared_ptr<graph::Tensor_attributes>;
using Extents = std::vector<std::int64_t>;

void Check(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw RunError(std::string(what) + ": cuDNN says " + cudnnGetErrorString(status));
}

// Heads of the rows of a matrix as cuDNN counts them: sequence, head, position, feature.
void Describe(graph::Tensor_attributes& tensor, const CudnnProblem& p, CudnnOperand operand,
              std::int64_t heads, std::int64_t stride) {
  tensor.set_uid(operand)
      .set_dim(Extents{p.sequences, heads, p.length, p.head_dim})
      .set_stride(Extents{p.length * stride, p.head_dim, stride, 1})
      .set_data_type(cudnn_frontend::DataType_t::BFLOAT16);
}
// Packed: before 9.26 cuDNN's backward pass reads no other strides.
void DescribeStatistics(graph::Tensor_attributes& tensor, const CudnnProblem& p) {
  tensor.set_uid(kStatistics)
      .set_dim(Extents{p.sequences, p.heads, p.length, 1})
      .set_stride(Extents{p.heads * p.length, p.length, 1, 1})
      .set_data_type(cudnn_frontend::DataType_t::FLOAT);
}

Tensor Input(graph::Graph& g, const CudnnProblem& p, CudnnOperand operand, std::int64_t heads,
             std::int64_t stride) {
  graph::Tensor_attributes tensor;
  Describe(tensor, p, operand, heads, stride);
  return g.tensor(tensor);
}
void Output(const Tensor& tensor, const CudnnProblem& p, CudnnOperand operand, std::int64_t heads,
            std::int64_t stride) {
  Describe(*tensor, p, operand, heads, stride);
  tensor->set_output(true);
}

float Scale(const CudnnProblem& p) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(p.head_dim)));
}

struct Operands {
  Operands(graph::Graph& g, const CudnnProblem& p)
      : query(Input(g, p, kQuery, p.heads, p.qkv_stride)),
        key(Input(g, p, kKey, p.kv_heads, p.qkv_stride)),
        value(Input(g, p, kValue, p.kv_heads, p.qkv_stride)) {}
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
  Output(out, p, kOut, p.heads, p.out_stride);
  DescribeStatistics(*statistics, p);
  statistics->set_output(true);
}

void AddBackward(graph::Graph& g, const CudnnProblem& p) {
  const Operands x(g, p);
  const Tensor out = Input(g, p, kOut, p.heads, p.out_stride);
  const Tensor dout = Input(g, p, kDout, p.heads, p.dout_stride);
  graph::Tensor_attributes statistics;
  DescribeStatistics(statistics, p);
  const auto [dquery, dkey, dvalue] =
      g.sdpa_backward(x.query, x.key, x.value, out, dout, g.tensor(statistics),
                      graph::SDPA_backward_attributes()
                          .set_name("attention_backward")
                          .set_causal_mask(p.causal)
                          .set_attn_scale(Scale(p))
                          .set_deterministic_algorithm(true));
  Output(dquery, p, kDquery, p.heads, p.dqkv_stride);
  Output(dkey, p, kDkey, p.kv_heads, p.dqkv_stride);
  Output(dvalue, p, kDvalue, p.kv_heads, p.dqkv_stride);
}

CudnnPlan Build(cudnnHandle_t handle, const CudnnProblem& problem) {
  auto built = std::make_shared<graph::Graph>();
  built->set_io_data_type(cudnn_frontend::DataType_t::BFLOAT16)
      .set_intermediate_data_type(cudnn_frontend::DataType_t::FLOAT)
      .set_compute_data_type(cudnn_frontend::DataType_t::FLOAT);
  if (problem.backward) {
    AddBackward(*built, problem);
  } else {
    AddForward(*built, problem);
  }
  // The first of the plans that cuDNN proposes, untimed: runs repeat.
  if (built->build(handle, {cudnn_frontend::HeurMode_t::A}).is_bad()) return {};
  std::int64_t bytes = 0;
  if (built->get_workspace_size(bytes).is_bad()) return {};
  return {std::move(built), bytes};
}

}  // namespace

CudnnPlans::CudnnPlans() { Check(cudnnCreate(&handle_), "attention"); }
CudnnPlans::~CudnnPlans() { cudnnDestroy(handle_); }

CudnnPlans& CudnnPlans::OfThisThread() {
  thread_local CudnnPlans plans;
  return plans;
}

const CudnnPlan& CudnnPlans::Find(const CudnnProblem& problem) {
  const auto found = plans_.find(problem);
  if (found != plans_.end()) return found->second;
  return plans_.emplace(problem, Build(handle_, problem)).first->second;
}

void CudnnPlans::Execute(const device::Stream& stream, const CudnnPlan& plan,
                         std::unordered_map<std::int64_t, void*> operands, void* workspace) {
  Check(cudnnSetStream(handle_, static_cast<cudaStream_t>(stream.gpu->queue)), "attention");
  auto status = plan.graph->execute(handle_, operands, workspace);
  if (status.is_bad()) throw RunError("attention: cuDNN says " + status.get_message());
}

}  // namespace trireme::kernels::cuda
