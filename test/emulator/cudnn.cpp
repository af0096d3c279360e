// Attention as cuDNN computes it: sums in fp64, results rounded once. What cuDNN documents as not
// supported is refused; a graph that outlives its handle, and a handle that outlives MPI, end the
// program. TRIREME_EMULATOR_CUDNN: words with commas.
//   on         there is a cuDNN
//   linear     its backward pass takes workspace in proportion to the length, not to its square
//   a number   its version: 92500 for 9.25.0; 91400. From 92500 on the backward pass with offsets
//   of
//              sequences is linear.
//   no_forward, no_backward, no_grouped   no plan for such a pass, or for heads that share keys
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string_view>

#include "cuda_bf16.h"
#include "cudnn_frontend.h"
#include "settings.hpp"
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

constexpr std::size_t kVersion = 91400, kLinearOffsetsSince = 92500, kBlackwellSince = 91801;
constexpr std::int64_t kForwardWorkspace = 4096;  // bytes
constexpr std::uintptr_t kAlignment = 16;         // bytes, of every operand
constexpr int kUsed = 0xA5;                       // fills workspaces

// Whether a word of the environment's passes.
template <typename Test>
bool AnyWord(const Test& passes) {
  const char* const text = std::getenv("TRIREME_EMULATOR_CUDNN");
  std::string_view rest = text == nullptr ? "" : text;
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    if (passes(rest.substr(0, comma))) return true;
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return false;
}
bool Told(std::string_view word) {
  return AnyWord([&](std::string_view told) { return told == word; });
}
std::size_t Version() {
  std::size_t version = kVersion;
  AnyWord([&](std::string_view told) {
    return std::from_chars(told.data(), told.data() + told.size(), version).ec == std::errc();
  });
  return version;
}

// Operand in device memory, read and written as fp64.
class Values {
 public:
  // offsets: where each sequence begins; null: stride[0] apart.
  Values(const Tensor_attributes& tensor, void* data, const std::int64_t* offsets)
      : uid_(tensor.uid),
        data_(data),
        offsets_(offsets),
        stride_(tensor.stride),
        wide_(IsWide(tensor)) {}
  static bool IsWide(const Tensor_attributes& tensor) {
    return tensor.type == cudnn_frontend::DataType_t::FLOAT;
  }
  // Bytes from the first element to behind the last; without offsets.
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
  // Ends the program where rows of a sequence with offsets lie behind the next one's first, beyond
  // `total` rows or outside of the device's memory.
  void CheckSequence(std::int64_t sequence, std::int64_t rows, std::int64_t heads,
                     std::int64_t total) const {
    if (offsets_ == nullptr || rows == 0) return;
    const std::int64_t end = offsets_[sequence] + rows * stride_[2];
    const std::int64_t last = Place(sequence, heads - 1, rows - 1, 0);
    const std::size_t size = wide_ ? 4 : 2;
    const char* const first = static_cast<const char*>(data_) + offsets_[sequence] * size;
    if (offsets_[sequence] < 0 || end > offsets_[sequence + 1] ||
        (total > 0 && end > total * stride_[2]) ||
        !emulator::IsDeviceMemory(first, (last - offsets_[sequence] + 1) * size)) {
      emulator::Die(fmt::format("cuDNN: offsets of sequence {} of operand {}", sequence, uid_));
    }
  }

 private:
  std::int64_t Place(std::int64_t sequence, std::int64_t head, std::int64_t row,
                     std::int64_t at) const {
    const std::int64_t first = offsets_ == nullptr ? sequence * stride_[0] : offsets_[sequence];
    return first + head * stride_[1] + row * stride_[2] + at * stride_[3];
  }
  std::int64_t uid_;
  void* data_;
  const std::int64_t* offsets_;
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

// One head of one sequence. noise: relative, of the queries' gradient, which stands for sums in an
// order that differs from run to run.
class Head {
 public:
  Head(const Attention& a, const std::vector<Values>& operands, const Sizes& sizes,
       std::int64_t sequence, std::int64_t head, double noise)
      : a_(a), o_(operands), s_(sizes), sequence_(sequence), head_(head), noise_(noise) {
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
        o_[6].Set(sequence_, head_, q, d, dquery[static_cast<std::size_t>(d)] * (1 + noise_));
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
  double noise_;
};

// Numbers on the device that a graph reads when it runs: lengths of sequences.
struct Lengths {
  const std::int32_t *queries = nullptr, *keys = nullptr;
};

void ComputeSequence(const Attention& a, const std::vector<Values>& operands, const Sizes& s,
                     std::int64_t sequence) {
  const std::int64_t shared = s.heads / s.kv_heads;
  for (std::int64_t kv_head = 0; kv_head < s.kv_heads; ++kv_head) {
    std::vector<double> dkey(static_cast<std::size_t>(s.keys * s.dims)), dvalue = dkey;
    for (std::int64_t head = kv_head * shared; head < (kv_head + 1) * shared; ++head) {
      constexpr double kNoise = 1.0 / (1 << 20);
      static std::random_device chance;  // another order in each run, whatever the dice's seed
      const double noise = a.deterministic ? 0 : kNoise * static_cast<double>(chance() % 1024);
      Head one(a, operands, s, sequence, head, noise);
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

void Compute(const Attention& a, const std::vector<Values>& operands, const Lengths& lengths) {
  const Sizes whole(a);
  for (std::int64_t sequence = 0; sequence < whole.sequences; ++sequence) {
    Sizes s = whole;
    if (a.padding) {
      s.queries = lengths.queries[sequence], s.keys = lengths.keys[sequence];
      if (s.queries < 0 || s.queries > whole.queries || s.keys < 0 || s.keys > whole.keys) {
        emulator::Die(fmt::format("cuDNN: {} queries and {} keys of sequence {}, of at most {}, {}",
                                  s.queries, s.keys, sequence, whole.queries, whole.keys));
      }
      for (std::size_t i = 0; i < operands.size(); ++i) {
        const Tensor& tensor = a.operands[i];
        const bool of_keys = i == 1 || i == 2 || i == 7 || i == 8;
        operands[i].CheckSequence(sequence, of_keys ? s.keys : s.queries, tensor->dim[1],
                                  a.total_rows);
      }
    }
    ComputeSequence(a, operands, s, sequence);
  }
}

bool HasOffsets(const Attention& a) { return a.operands[0]->offsets != nullptr; }

// The GPU of the calling thread.
int Capability() {
  int device = 0, major = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  return major;
}

std::string WrongLists(const Attention& a) {
  const std::int64_t sequences = a.operands[0]->dim[0];
  const auto is_list = [](const Tensor& list, std::int64_t count, cudnn_frontend::DataType_t type) {
    return list != nullptr && list->type == type &&
           list->dim == std::vector<std::int64_t>{count, 1, 1, 1} &&
           list->stride == std::vector<std::int64_t>(4, 1);
  };
  using cudnn_frontend::DataType_t;
  if (HasOffsets(a) && !a.padding) return "offsets of sequences without a padding mask";
  if (a.total_rows != 0 && !HasOffsets(a)) return "a number of all rows without offsets";
  for (const Tensor& list : {a.queries, a.keys}) {
    if (a.padding != (list != nullptr)) return "a padding mask without lengths, or these alone";
    if (a.padding && !is_list(list, sequences, DataType_t::INT32)) return "lengths of sequences";
  }
  for (const Tensor& operand : a.operands) {
    const Tensor& list = operand->offsets;
    if (HasOffsets(a) != (list != nullptr)) return "offsets of some operands";
    if (list != nullptr && !is_list(list, sequences + 1, DataType_t::INT64)) {
      return fmt::format("the offsets of operand {}", operand->uid);
    }
  }
  return {};
}

std::string Refused(const Attention& a) {
  const Sizes s(a);
  if (Told(a.backward ? "no_backward" : "no_forward")) return "no such pass, as it was told";
  if (Told("no_grouped") && s.heads != s.kv_heads)
    return "no heads that share keys, as it was told";
  if (s.dims % 8 != 0 || s.dims > 256) return fmt::format("heads of {} features", s.dims);
  if (a.backward && a.deterministic && Capability() >= 10 && Version() < kBlackwellSince) {
    return "no deterministic algorithm for this GPU in this version";
  }
  if (std::string why = WrongLists(a); !why.empty()) return why;
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
  constexpr std::int64_t kRows = 64, kFloat = 4;
  const auto rounded = [](std::int64_t length) { return (length + kRows - 1) / kRows * kRows; };
  const Sizes s(a);
  if (!a.backward) return kForwardWorkspace;
  const std::int64_t rows = s.sequences * s.heads * rounded(s.queries);
  const bool linear =
      Told("linear") || !a.deterministic || (HasOffsets(a) && Version() >= kLinearOffsetsSince);
  if (!linear) return rows * rounded(s.keys) * 2;
  if (a.total_rows == 0) return rows * s.dims * kFloat;
  // dO . O, dQ, and with shared keys dK and dV of each head, all as far apart as the operands'
  // rows.
  const std::int64_t group = s.heads / s.kv_heads;
  return a.total_rows * kFloat *
         (a.operands[5]->stride[2] + a.operands[6]->stride[2] +
          (group > 1 ? 2 * group * a.operands[7]->stride[2] : 0));
}

}  // namespace

std::size_t cudnnGetVersion() { return Told("on") ? Version() : 0; }

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
                attributes.padding,
                true,
                attributes.scale,
                {std::move(query), std::move(key), std::move(value), out, statistics},
                attributes.queries,
                attributes.keys};
  return {out, statistics};
}

std::array<Tensor, 3> Graph::sdpa_backward(Tensor query, Tensor key, Tensor value, Tensor out,
                                           Tensor dout, Tensor statistics,
                                           const SDPA_backward_attributes& attributes) {
  std::array<Tensor, 3> results;
  for (Tensor& result : results) result = std::make_shared<Tensor_attributes>();
  attention_ = {true,
                attributes.causal,
                attributes.padding,
                attributes.deterministic,
                attributes.scale,
                {std::move(query), std::move(key), std::move(value), std::move(out),
                 std::move(dout), std::move(statistics), results[0], results[1], results[2]},
                attributes.queries,
                attributes.keys,
                std::min(attributes.total_queries, attributes.total_keys)};
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
  const std::int64_t sequences = attention_->operands[0]->dim[0];
  for (const Tensor& tensor : attention_->operands) {
    void* const at = places[tensor->uid];
    void* const offsets = tensor->offsets ? places[tensor->offsets->uid] : nullptr;
    const auto offset_bytes = static_cast<std::size_t>(sequences + 1) * sizeof(std::int64_t);
    if (reinterpret_cast<std::uintptr_t>(at) % (Values::IsWide(*tensor) ? 4 : kAlignment) != 0 ||
        !emulator::IsDeviceMemory(at, tensor->offsets ? 1 : Values::Span(*tensor)) ||
        (tensor->offsets && !emulator::IsDeviceMemory(offsets, offset_bytes))) {
      return error_object(fmt::format("the place of operand {}", tensor->uid));
    }
    operands.emplace_back(*tensor, at, static_cast<const std::int64_t*>(offsets));
  }
  Lengths lengths;
  if (attention_->padding) {
    lengths = {static_cast<const std::int32_t*>(places[attention_->queries->uid]),
               static_cast<const std::int32_t*>(places[attention_->keys->uid])};
    const auto length_bytes = static_cast<std::size_t>(sequences) * sizeof(std::int32_t);
    for (const std::int32_t* const list : {lengths.queries, lengths.keys}) {
      if (!emulator::IsDeviceMemory(list, length_bytes)) return error_object("the lengths");
    }
  }
  const auto run = [attention = *attention_, operands, lengths, workspace, bytes] {
    std::memset(workspace, kUsed, bytes);
    Compute(attention, operands, lengths);
    return true;
  };
  const emulator::Label label = {.kind = emulator::Label::Kind::kKernel,
                                 .name = "cudnn_emulated_sdpa"};
  if (emulator::Enqueue(handle->stream, run, label) == cudaSuccess) return {};
  return error_object("the stream");
}

}  // namespace cudnn_frontend::graph
