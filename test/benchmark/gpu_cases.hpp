// The memory-bound kernels of a training step on a GPU, at the sizes of a model, and attention.
#ifndef TRIREME_TEST_BENCHMARK_GPU_CASES_HPP_
#define TRIREME_TEST_BENCHMARK_GPU_CASES_HPP_

#include <string>
#include <vector>

#include "gpu_timing.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/elementwise.hpp"

namespace trireme::benchmark {

// Shapes that a rank computes at once.
struct Sizes {
  const char* name = "";
  std::int64_t sequences = 0, length = 0;
  std::int64_t dim = 0, heads = 0, kv_heads = 0, ffn = 0, vocabulary = 0;
  std::int64_t parameters = 0;  // of an update
  bool llama = false;           // RMSNorm, SwiGLU and rotary positions; else GPT-2's
  std::int64_t Rows() const { return sequences * length; }
  kernels::AttentionShape Attention() const {
    return {sequences, length, heads, kv_heads, dim / heads};
  }
};

struct Case {
  std::string name;
  double bytes = 0;  // to be read and written, at the least
  std::function<Call(Operands&)> make;
};
// stream and sizes outlive the calls. dtype: bf16 or fp32; an update's weights are fp32.
std::vector<Case> KernelCases(const device::Stream& stream, const Sizes& sizes, Dtype dtype);

// Attention forward and backward by our own kernels or as the model has it (cuDNN where it serves);
// operations of the products that a causal mask leaves.
struct AttentionWay {
  Dtype dtype;
  bool own;
  double dropout;  // on the weights; only own
};
struct AttentionCase {
  double forward_flops = 0, backward_flops = 0;
  std::function<Call(Operands&)> forward, backward;
};
AttentionCase MakeAttentionCase(const device::Stream& stream, const Sizes& sizes,
                                const AttentionWay& way);

}  // namespace trireme::benchmark

#endif  // TRIREME_TEST_BENCHMARK_GPU_CASES_HPP_
