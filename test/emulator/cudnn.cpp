// Attention as cuDNN computes it: sums in fp64, results rounded once. What cuDNN documents as not
// supported is refused; a graph that outlives its handle, and a handle that outlives MPI, end the
// program. TRIREME_EMULATOR_CUDNN: words with commas.
//   on         there is a cuDNN
//   linear     its backward pass takes workspace in proportion to the length, not to its square
//   no_forward, no_backward, no_grouped   no plan for such a pass, or for heads that share keys
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "cuda_bf16.h"
#include "cudnn_frontend.h"
#include "stream.hpp"

struct cudnnContext {
  cudaStream_t stream = nullptr;
  int graphs = 0;  // built with it and alive
};

namespace {

using cudnn_frontend::error_object;
using cudnn_frontend::graph::Attention;
using cudnn_frontend::graph::Tensor;
using cudnn_frontend::graph::Tensor_attributes;

constexpr std::size_t kVersion = 91400;
constexpr std::int64_t kForwardWorkspace = 4096;  // bytes
constexpr std::uintptr_t kAlignment = 16;         // bytes, of every operand
constexpr int kUsed = 0xA5;                       // fills workspaces

bool Told(std::string_view word) {
  const char* const text = std::getenv("TRIREME_EMULATOR_CUDNN");
  std::string_view rest = text == nullptr ? "" : text;
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    if (rest.substr(0, comma) == word) return true;
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return false;
}

// Operand in device memory, read and written as fp64.
class Values {
 public:
  Values(const Tensor_attributes& tensor, void* data)
      : data_(data), stride_(tensor.stride), wide_(IsWide(tensor)) {}
  static bool IsWide(const Tensor_attributes& tensor) {
    return tensor.type == cudnn_frontend::DataType_t::FLOAT;
  }
  // Bytes from the first element to behind the last.
  static std::size_t Span(const Tensor_attributes& tensor) {
    std::int64_t last = 0;
    for (std::size_t i = 0; i < tensor.dim.size(); ++i) {
      last += (tensor.dim[i] - 1) * tensor.stride[i];
    }
    return static_cast<std::size_t>(last + 1) * (IsWide(tensor) ? 4 : 2);
  }
  double Get(std::int64_t sequence, std::int64_t head, std::int64_t row, std::int64_t at) const {
    const std::int64_t place = Place(sequence, head, row, at);
    if (wide_) return double{static_cast<const float*>(data_)[place]};
    return double{static_cast<float>(static_cast<const __nv_bfloat16*>(data_)[place])};
  }
  void Set(std::int64_t sequence, std::int64_t head, std::int64_t row, std::int64_t at,
           double value) const {
    const std::int64_t place = Place(sequence, head, row, at);
    if (wide_) {
      static_cast<float*>(data_)[place] = static_cast<float>(value);
    } else {
      static_cast<__nv_bfloat16*>(data_)[place] = __nv_bfloat16(static_cast<float>(value));
    }
  }

 private:
  std::int64_t Place(std::int64_t sequence, std::int64_t head, std::int64_t row,
                     std::int64_t at) const {
    return sequence * stride_[0] + head * stride_[1] + row * stride_[2] + at * stride_[3];
  }
  void* data_;
  std::vector<std::int64_t> stride_;
  bool wide_;
};

struct Sizes {
  explicit Sizes(const Attention& a)
      : sequences(a.operands[0]->dim[0]),
        heads(a.operands[0]->dim[1]),
        kv_heads(a.operands[1]->dim[1]),
        queries(a.operands[0]->dim[2]),
        keys(a.operands[1]->dim[2]),
        dims(a.operands[0]->dim[3]) {}
  std::int64_t sequences, heads, kv_heads, queries, keys, dims;
};

// One head of one sequence.
class Head {
 public:
  Head(const Attention& a, const std::vector<Values>& operands, std::int64_t sequence,
       std::int64_t head)
      : a_(a), o_(operands), s_(a), sequence_(sequence), head_(head) {
    kv_head_ = head / (s_.heads / s_.kv_heads);
  }

  void Forward() {
    std::vector<double> scores, sums(static_cast<std::size_t>(s_.dims));
    for (std::int64_t q = 0; q < s_.queries; ++q) {
      scores = Scores(q);
      const double most = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      std::fill(sums.begin(), sums.end(), 0);
      for (std::size_t k = 0; k < scores.size(); ++k) {
        const double weight = std::exp(scores[k] - most);
        sum += weight;
        for (std::int64_t d = 0; d < s_.dims; ++d) {
          sums[static_cast<std::size_t>(d)] +=
              weight * o_[2].Get(sequence_, kv_head_, static_cast<std::int64_t>(k), d);
        }
      }
      for (std::int64_t d = 0; d < s_.dims; ++d) {
        o_[3].Set(sequence_, head_, q, d, sums[static_cast<std::size_t>(d)] / sum);
      }
      o_[4].Set(sequence_, head_, q, 0, most + std::log(sum));
    }
  }

  // dkey, dvalue: sums over the heads that share them, [keys, dims].
  void Backward(std::vector<double>& dkey, std::vector<double>& dvalue) {
    std::vector<double> dquery(static_cast<std::size_t>(s_.dims));
    for (std::int64_t q = 0; q < s_.queries; ++q) {
      const std::vector<double> scores = Scores(q);
      const double inner = Product(4, head_, q, 3, head_, q);
      std::fill(dquery.begin(), dquery.end(), 0);
      for (std::size_t k = 0; k < scores.size(); ++k) {
        const auto key = static_cast<std::int64_t>(k);
        const double weight = std::exp(scores[k] - o_[5].Get(sequence_, head_, q, 0));
        const double dscore =
            weight * (Product(4, head_, q, 2, kv_head_, key) - inner) * double{a_.scale};
        for (std::int64_t d = 0; d < s_.dims; ++d) {
          const auto at = static_cast<std::size_t>(key * s_.dims + d);
          dquery[static_cast<std::size_t>(d)] += dscore * o_[1].Get(sequence_, kv_head_, key, d);
          dkey[at] += dscore * o_[0].Get(sequence_, head_, q, d);
          dvalue[at] += weight * o_[4].Get(sequence_, head_, q, d);
        }
      }
      for (std::int64_t d = 0; d < s_.dims; ++d) {
        o_[6].Set(sequence_, head_, q, d, dquery[static_cast<std::size_t>(d)]);
      }
    }
  }

 private:
  double Product(std::size_t a, std::int64_t a_head, std::int64_t a_row, std::size_t b,
                 std::int64_t b_head, std::int64_t b_row) const {
    double sum = 0;
    for (std::int64_t d = 0; d < s_.dims; ++d) {
      sum += o_[a].Get(sequence_, a_head, a_row, d) * o_[b].Get(sequence_, b_head, b_row, d);
    }
    return sum;
  }
  // Of the keys that the query sees: with a causal mask up to its own number.
  std::vector<double> Scores(std::int64_t q) const {
    std::vector<double> scores(
        static_cast<std::size_t>(a_.causal ? std::min(q + 1, s_.keys) : s_.keys));
    for (std::size_t k = 0; k < scores.size(); ++k) {
      scores[k] =
          Product(0, head_, q, 1, kv_head_, static_cast<std::int64_t>(k)) * double{a_.scale};
    }
    return scores;
  }

  const Attention& a_;
  const std::vector<Values>& o_;
  Sizes s_;
  std::int64_t sequence_, head_, kv_head_ = 0;
};

void Compute(const Attention& a, const std::vector<Values>& operands) {
  const Sizes s(a);
  const std::int64_t shared = s.heads / s.kv_heads;
  for (std::int64_t sequence = 0; sequence < s.sequences; ++sequence) {
    for (std::int64_t kv_head = 0; kv_head < s.kv_heads; ++kv_head) {
      std::vector<double> dkey(static_cast<std::size_t>(s.keys * s.dims)), dvalue = dkey;
      for (std::int64_t head = kv_head * shared; head < (kv_head + 1) * shared; ++head) {
        Head one(a, operands, sequence, head);
        if (a.backward) {
          one.Backward(dkey, dvalue);
        } else {
          one.Forward();
        }
      }
      for (std::int64_t at = 0; a.backward && at < s.keys * s.dims; ++at) {
        const auto from = static_cast<std::size_t>(at);
        operands[7].Set(sequence, kv_head, at / s.dims, at % s.dims, dkey[from]);
        operands[8].Set(sequence, kv_head, at / s.dims, at % s.dims, dvalue[from]);
      }
    }
  }
}

std::string Refused(const Attention& a) {
  const Sizes s(a);
  if (Told(a.backward ? "no_backward" : "no_forward")) return "no such pass, as it was told";
  if (Told("no_grouped") && s.heads != s.kv_heads)
    return "no heads that share keys, as it was told";
  if (s.dims % 8 != 0 || s.dims > 256) return fmt::format("heads of {} features", s.dims);
  for (const Tensor& operand : a.operands) {
    if (operand->dim.size() != 4 || operand->stride.size() != 4 || operand->stride[3] != 1) {
      return fmt::format("the extents or strides of operand {}", operand->uid);
    }
    if (!Values::IsWide(*operand) && operand->stride[2] * 2 % 16 != 0) {
      return fmt::format("rows of operand {} that are not on 16 bytes", operand->uid);
    }
  }
  return {};
}

std::int64_t WorkspaceOf(const Attention& a) {
  constexpr std::int64_t kRows = 64;
  const auto rounded = [](std::int64_t length) { return (length + kRows - 1) / kRows * kRows; };
  const Sizes s(a);
  if (!a.backward) return kForwardWorkspace;
  const std::int64_t rows = s.sequences * s.heads * rounded(s.queries);
  return Told("linear") ? rows * s.dims * 4 : rows * rounded(s.keys) * 2;
}

}  // namespace

std::size_t cudnnGetVersion() { return Told("on") ? kVersion : 0; }

const char* cudnnGetErrorString(cudnnStatus_t status) {
  return status == CUDNN_STATUS_SUCCESS ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_NOT_INITIALIZED";
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  emulator::RefuseAfterFinalize();
  if (cudnnGetVersion() == 0) return CUDNN_STATUS_NOT_INITIALIZED;
  *handle = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  emulator::RefuseAfterFinalize();
  if (handle->graphs > 0) {
    emulator::Die(
        fmt::format("cudnnDestroy with {} graphs that were built with it", handle->graphs));
  }
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

namespace cudnn_frontend::graph {

Graph::~Graph() {
  emulator::RefuseAfterFinalize("the end of a cuDNN graph");
  if (handle_ != nullptr) --handle_->graphs;
}

std::array<Tensor, 2> Graph::sdpa(Tensor query, Tensor key, Tensor value,
                                  const SDPA_attributes& attributes) {
  const auto out = std::make_shared<Tensor_attributes>();
  const auto statistics = std::make_shared<Tensor_attributes>();
  attention_ = {false,
                attributes.causal,
                attributes.scale,
                {std::move(query), std::move(key), std::move(value), out, statistics}};
  return {out, statistics};
}

std::array<Tensor, 3> Graph::sdpa_backward(Tensor query, Tensor key, Tensor value, Tensor out,
                                           Tensor dout, Tensor statistics,
                                           const SDPA_backward_attributes& attributes) {
  if (!attributes.deterministic) emulator::Die("cuDNN's sums without an order of their own");
  std::array<Tensor, 3> results;
  for (Tensor& result : results) result = std::make_shared<Tensor_attributes>();
  attention_ = {true,
                attributes.causal,
                attributes.scale,
                {std::move(query), std::move(key), std::move(value), std::move(out),
                 std::move(dout), std::move(statistics), results[0], results[1], results[2]}};
  return results;
}

error_object Graph::build(cudnnHandle_t handle, const std::vector<HeurMode_t>&) {
  if (const std::string why = Refused(*attention_); !why.empty()) return error_object(why);
  handle_ = handle;
  ++handle_->graphs;
  workspace_bytes_ = WorkspaceOf(*attention_);
  return {};
}

error_object Graph::get_workspace_size(std::int64_t& bytes) const {
  bytes = workspace_bytes_;
  return {};
}

error_object Graph::warmup(cudnnHandle_t handle) const {
  return handle == handle_ ? error_object() : error_object("the handle is not that of the graph");
}

error_object Graph::execute(cudnnHandle_t handle, std::unordered_map<std::int64_t, void*>& places,
                            void* workspace) const {
  if (handle != handle_) return error_object("the handle is not that of the graph");
  const auto bytes = static_cast<std::size_t>(workspace_bytes_);
  if (!emulator::IsDeviceMemory(workspace, bytes)) return error_object("the workspace");
  std::vector<Values> operands;
  for (const Tensor& tensor : attention_->operands) {
    void* const at = places[tensor->uid];
    if (reinterpret_cast<std::uintptr_t>(at) % (Values::IsWide(*tensor) ? 4 : kAlignment) != 0 ||
        !emulator::IsDeviceMemory(at, Values::Span(*tensor))) {
      return error_object(fmt::format("the place of operand {}", tensor->uid));
    }
    operands.emplace_back(*tensor, at);
  }
  const auto run = [attention = *attention_, operands, workspace, bytes] {
    std::memset(workspace, kUsed, bytes);
    Compute(attention, operands);
    return true;
  };
  const emulator::Label label = {.kind = emulator::Label::Kind::kKernel,
                                 .name = "cudnn_emulated_sdpa"};
  if (emulator::Enqueue(handle->stream, run, label) == cudaSuccess) return {};
  return error_object("the stream");
}

}  // namespace cudnn_frontend::graph
