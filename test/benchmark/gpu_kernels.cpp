// How fast the parts of a training step are on a GPU. One rank: its memory-bound kernels against a
// copy in the card's memory, and attention. Several ranks, one GPU each: NCCL's transfers.
// usage: trireme_gpu_kernels_benchmark [tiny] [only=TEXT] [section.key=value ...]
//   tiny: small sizes, for the emulator; only: the kernels with TEXT in the first words of their
//   lines ("kernel gpt2_124m bf16 norm", "attention jsc fp32 own"). Keys: run.threads ...
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gpu_job.hpp"
#include "kernels/cuda/attention.hpp"
#include "trireme/base/dtype.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/matrix.hpp"
#include "trireme/kernels/update.hpp"
#include "trireme/tasks/tasks.hpp"

namespace trireme::benchmark {

// Times of what is queued on a GPU, by its own clock, and operands that no cache holds.

using Call = std::function<void()>;  // queues something

// Device memory of one call, freed with this.
class Operands {
 public:
  explicit Operands(const device::Stream& stream) : stream_(&stream) {}

  // Numbers from -1 to 1.
  kernels::Matrix Matrix(Dtype dtype, std::int64_t rows, std::int64_t columns);
  void* Zeros(std::int64_t bytes);
  template <typename T>
  T* Copied(const std::vector<T>& host) {
    return static_cast<T*>(Copied(host.data(), static_cast<std::int64_t>(host.size() * sizeof(T))));
  }

 private:
  void* Copied(const void* host, std::int64_t bytes);
  const device::Stream* stream_;
  std::vector<device::Buffer> memory_;
};

// Seconds of one call, the median of several rounds: the calls in turn, as many as take some
// hundredths of a second. quick: each call once or twice (the emulator).
double SecondsOf(const device::Stream& stream, const std::vector<Call>& calls, bool quick);

// The same of a call that touches `bytes`: made as often, each time with operands of its own, as it
// takes for the caches to hold nothing of an operand when its turn comes again.
double SecondsCold(const device::Stream& stream, double bytes,
                   const std::function<Call(Operands&)>& make, bool quick);

// Bytes a second, read and written ones both counted, of a copy within the card's memory.
double CopySpeed(const device::Stream& stream, bool quick);

// Times of what is queued on a GPU.

namespace {

// Twice what any card's caches hold (H200: 50 MiB; B200: 126 MiB).
constexpr double kCold = 256.0 * 1024 * 1024;  // bytes
constexpr int kMostSets = 32;

constexpr std::int64_t kPattern = 1 << 18;  // elements

// Random numbers from -1 to 1, of the type.
std::vector<std::byte> MakePattern(Dtype dtype) {
  const std::int64_t count = kPattern;
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * SizeOf(dtype));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto words = Philox({static_cast<std::uint32_t>(i), 0, 0, 0}, {7, 0});
    const double value = static_cast<double>(words[0]) / 2147483648.0 - 1;
    void* const at = ElementAt(bytes.data(), dtype, i);
    if (dtype == Dtype::kBfloat16) {
      *static_cast<std::uint16_t*>(at) = RoundToBfloat16(static_cast<float>(value));
    } else {
      DispatchDtype(dtype, [&](auto zero) {
        *static_cast<decltype(zero)*>(at) = static_cast<decltype(zero)>(value);
      });
    }
  }
  return bytes;
}

// Made once a type: operands are many.
const std::vector<std::byte>& Pattern(Dtype dtype) {
  static std::map<Dtype, std::vector<std::byte>> patterns;
  std::vector<std::byte>& pattern = patterns[dtype];
  if (pattern.empty()) pattern = MakePattern(dtype);
  return pattern;
}

}  // namespace

void* Operands::Zeros(std::int64_t bytes) {
  return memory_.emplace_back(device::AllocateZeroed(bytes, stream_->Where())).get();
}

void* Operands::Copied(const void* host, std::int64_t bytes) {
  void* const data = Zeros(bytes);
  device::CopyIn(*stream_, host, data, bytes);
  return data;
}

kernels::Matrix Operands::Matrix(Dtype dtype, std::int64_t rows, std::int64_t columns) {
  const std::int64_t count = rows * columns, size = static_cast<std::int64_t>(SizeOf(dtype));
  void* const data = Zeros(count * size);
  device::Repeat(*stream_, Pattern(dtype), data, count * size);
  return {data, dtype, rows, columns, columns};
}

double SecondsOf(const device::Stream& stream, const std::vector<Call>& calls, bool quick) {
  constexpr double kRound = 0.03;  // seconds
  constexpr int kRounds = 5, kMost = 1000;
  device::Event begin(stream, true), end(stream, true);
  const auto round = [&](int count) {
    begin.Record(stream.gpu->queue);
    for (int i = 0; i < count; ++i) calls[static_cast<std::size_t>(i) % calls.size()]();
    end.Record(stream.gpu->queue);
    end.Await();
    return end.SecondsSince(begin) / count;
  };
  const int all = static_cast<int>(calls.size());
  const double first = round(all);  // code is loaded
  if (quick) return round(all);
  const double estimate = std::min(first, round(all));
  const int count = std::clamp(static_cast<int>(std::ceil(kRound / estimate)), all, kMost);
  std::vector<double> seconds;
  for (int i = 0; i < kRounds; ++i) seconds.push_back(round(count));
  return MedianOf(seconds);
}

double SecondsCold(const device::Stream& stream, double bytes,
                   const std::function<Call(Operands&)>& make, bool quick) {
  const int wanted = static_cast<int>(std::min(std::ceil(kCold / bytes), 1.0 * kMostSets));
  const int sets = quick ? 1 : std::max(wanted, 1);
  std::vector<std::unique_ptr<Operands>> operands;
  std::vector<Call> calls;
  for (int i = 0; i < sets; ++i) {
    calls.push_back(make(*operands.emplace_back(std::make_unique<Operands>(stream))));
  }
  const double seconds = SecondsOf(stream, calls, quick);
  device::Synchronise(stream);  // before the operands go
  return seconds;
}

double CopySpeed(const device::Stream& stream, bool quick) {
  const std::int64_t bytes = std::int64_t{1} << (quick ? 20 : 30);
  const double moved = 2.0 * static_cast<double>(bytes);
  const double seconds = SecondsCold(
      stream, moved,
      [&](Operands& operands) {
        void *const from = operands.Zeros(bytes), *const to = operands.Zeros(bytes);
        return [&stream, from, to, bytes] { device::CopyWithin(stream, from, to, bytes); };
      },
      quick);
  return moved / seconds;
}

// The memory-bound kernels of a training step on a GPU, at the sizes of a model, and attention.

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

// The memory-bound kernels of a training step: operands, calls and the bytes that each has to move.
// What is as small as a row of weights is not counted.

namespace {

using kernels::Matrix;

constexpr double kEpsilon = 1e-5, kProbability = 0.1;

class Cases {
 public:
  Cases(const device::Stream& stream, const Sizes& sizes, Dtype dtype)
      : stream_(stream), sizes_(sizes), dtype_(dtype), sums_(SumTypeOf(dtype)) {}

  std::vector<Case> All() {
    AddNorms();
    AddNormBackward();
    AddElementwise();
    AddActivations();
    AddEmbedding();
    AddVocabulary();
    AddUpdate();
    return std::move(cases_);
  }

 private:
  using Make = std::function<Call(Operands&)>;
  // `elements` of the operands' type are read or written.
  void Add(const std::string& name, std::int64_t elements, Make make, double more_bytes = 0) {
    const double bytes = static_cast<double>(elements) * static_cast<double>(SizeOf(dtype_));
    cases_.push_back({name, bytes + more_bytes, std::move(make)});
  }
  std::int64_t Stream() const { return sizes_.Rows() * sizes_.dim; }  // elements
  Matrix Rows(Operands& o) const { return o.Matrix(dtype_, sizes_.Rows(), sizes_.dim); }
  Matrix Row(Operands& o) const { return o.Matrix(dtype_, 1, sizes_.dim); }
  Matrix Bias(Operands& o) const { return sizes_.llama ? Matrix() : Row(o); }
  Matrix SumRow(Operands& o) const { return o.Matrix(sums_, 1, sizes_.dim); }
  Matrix Statistics(Operands& o) const { return o.Matrix(sums_, sizes_.Rows(), 2); }
  kernels::NormKind Norm() const {
    return sizes_.llama ? kernels::NormKind::kRmsNorm : kernels::NormKind::kLayerNorm;
  }
  kernels::Dropout Masks(Operands& o, double probability) const {
    kernels::Dropout dropout;
    dropout.probability = probability;
    dropout.length = sizes_.length;
    std::vector<std::uint64_t> ordinals(static_cast<std::size_t>(sizes_.sequences));
    for (std::size_t i = 0; i < ordinals.size(); ++i) ordinals[i] = i;
    dropout.ordinals = o.Copied(ordinals);
    return dropout;
  }
  std::vector<std::int32_t> Tokens(std::int64_t count) const {
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto words = Philox({static_cast<std::uint32_t>(i), 0, 0, 0}, {3, 0});
      tokens.push_back(static_cast<std::int32_t>(words[0] % sizes_.vocabulary));
    }
    return tokens;
  }

  void AddNorms();
  void AddNormBackward();
  void AddElementwise();
  void AddActivations();
  void AddEmbedding();
  void AddVocabulary();
  void AddUpdate();

  const device::Stream& stream_;
  const Sizes& sizes_;
  Dtype dtype_, sums_;
  std::vector<Case> cases_;
};

void Cases::AddNorms() {
  Add("norm", 2 * Stream(), [this](Operands& o) {
    return [&stream = stream_, kind = Norm(), x = Rows(o), weight = Row(o), bias = Bias(o),
            y = Rows(o), statistics = Statistics(o)] {
      kernels::NormForward(stream, kind, x, weight, bias, kEpsilon, y, statistics);
    };
  });
  for (const double probability : {0.0, kProbability}) {
    Add(probability > 0 ? "residual + dropout + norm" : "residual + norm", 4 * Stream(),
        [this, probability](Operands& o) {
          return [&stream = stream_, kind = Norm(), residual = Rows(o), branch = Rows(o),
                  bias = Bias(o), masks = Masks(o, probability), sum = Rows(o), weight = Row(o),
                  norm_bias = Bias(o), y = Rows(o), statistics = Statistics(o)] {
            kernels::ResidualNormForward(stream, kind, residual, branch, bias, masks, sum, weight,
                                         norm_bias, kEpsilon, y, statistics);
          };
        });
  }
}

// Statistics of x come first, so that the numbers are ordinary ones.
void Cases::AddNormBackward() {
  const auto make = [this](Operands& o, bool fused) {
    kernels::NormBackwardPass pass;
    pass.kind = Norm();
    pass.dy = Rows(o);
    pass.x = Rows(o);
    pass.weight = Row(o);
    pass.statistics = Statistics(o);
    pass.dx = Rows(o);
    pass.dweight = SumRow(o);
    if (!sizes_.llama) pass.dbias = SumRow(o);
    pass.scratch = o.Matrix(sums_, kernels::kReductionBlocks, 2 * sizes_.dim);
    pass.dropout = Masks(o, fused ? kProbability : 0);
    if (fused) {
      pass.residual = Rows(o);
      pass.dbranch = Rows(o);
    }
    kernels::NormForward(stream_, pass.kind, pass.x, pass.weight, Bias(o), kEpsilon, pass.dx,
                         pass.statistics);
    return [&stream = stream_, pass] { kernels::NormBackward(stream, pass); };
  };
  Add("norm backward", 3 * Stream(), [make](Operands& o) { return make(o, false); });
  Add("norm + dropout + residual backward", 5 * Stream(),
      [make](Operands& o) { return make(o, true); });
}

void Cases::AddElementwise() {
  Add("residual", 3 * Stream(), [this](Operands& o) {
    return [&stream = stream_, residual = Rows(o), branch = Rows(o), bias = Bias(o),
            masks = Masks(o, 0), out = Rows(o)] {
      kernels::ResidualForward(stream, residual, branch, bias, masks, out);
    };
  });
  Add("add", 3 * Stream(), [this](Operands& o) {
    return [&stream = stream_, x = Rows(o), y = Rows(o)] { kernels::Add(stream, x, y); };
  });
  Add("dropout", 2 * Stream(), [this](Operands& o) {
    return [&stream = stream_, x = Rows(o), masks = Masks(o, kProbability), out = Rows(o)] {
      kernels::DropoutForward(stream, x, masks, out);
    };
  });
  Add("column sum", Stream(), [this](Operands& o) {
    return [&stream = stream_, x = Rows(o), sums = SumRow(o),
            scratch = o.Matrix(sums_, kernels::kReductionBlocks, sizes_.dim)] {
      kernels::ColumnSum(stream, x, sums, scratch);
    };
  });
  const kernels::AttentionShape shape = sizes_.Attention();
  Add("rope", 2 * sizes_.Rows() * (shape.heads + shape.kv_heads) * shape.head_dim,
      [this, shape](Operands& o) {
        return [&stream = stream_, shape, qkv = o.Matrix(dtype_, sizes_.Rows(), shape.Width()),
                table = o.Matrix(sums_, sizes_.length, shape.head_dim)] {
          kernels::Rope(stream, shape, table, false, qkv);
        };
      });
}

void Cases::AddActivations() {
  const auto kind =
      sizes_.llama ? kernels::ActivationKind::kSwiglu : kernels::ActivationKind::kGelu;
  const std::int64_t up = sizes_.llama ? 2 : 1, hidden = sizes_.Rows() * sizes_.ffn;
  const auto matrix = [this](Operands& o, std::int64_t times) {
    return o.Matrix(dtype_, sizes_.Rows(), times * sizes_.ffn);
  };
  const std::string name = sizes_.llama ? "SwiGLU" : "GELU";
  Add(name, (up + 1) * hidden, [this, kind, up, matrix](Operands& o) {
    return [&stream = stream_, kind, pre = matrix(o, up), masks = Masks(o, 0), out = matrix(o, 1)] {
      kernels::ActivationForward(stream, kind, pre, {}, masks, out);
    };
  });
  Add(name + " backward", (2 * up + 1) * hidden, [this, kind, up, matrix](Operands& o) {
    return [&stream = stream_, kind, pre = matrix(o, up), masks = Masks(o, 0), dout = matrix(o, 1),
            dpre = matrix(o, up)] {
      kernels::ActivationBackward(stream, kind, pre, masks, dout, dpre);
    };
  });
}

void Cases::AddEmbedding() {
  const std::vector<std::int32_t> tokens = Tokens(sizes_.Rows());
  Add("embedding", 2 * Stream(), [this, tokens](Operands& o) {
    return [&stream = stream_, ids = o.Copied(tokens),
            weight = o.Matrix(dtype_, sizes_.vocabulary, sizes_.dim),
            out = Rows(o)] { kernels::EmbeddingForward(stream, ids, 0, weight, 1, out); };
  });
  // The sums of each token that occurs are read and written.
  const std::set<std::int32_t> distinct(tokens.begin(), tokens.end());
  const double sums = 2.0 * static_cast<double>(std::ssize(distinct) * sizes_.dim) *
                      static_cast<double>(SizeOf(sums_));
  Add(
      "embedding backward", Stream(),
      [this, tokens](Operands& o) {
        return [&stream = stream_, ids = o.Copied(tokens), dout = Rows(o),
                dweight = o.Matrix(sums_, sizes_.vocabulary, sizes_.dim)] {
          kernels::EmbeddingBackward(stream, ids, 0, 1, dout, dweight);
        };
      },
      sums);
  if (sizes_.llama) return;
  const auto positions = [this](Operands& o, Dtype dtype) {
    return o.Matrix(dtype, sizes_.length, sizes_.dim);
  };
  Add("positions", 2 * Stream(), [this, positions](Operands& o) {
    return [&stream = stream_, table = positions(o, dtype_), masks = Masks(o, 0), x = Rows(o)] {
      kernels::PositionForward(stream, table, nullptr, masks, x);
    };
  });
  Add("positions backward", Stream(), [this, positions](Operands& o) {
    return [&stream = stream_, masks = Masks(o, 0), dout = Rows(o), dtable = positions(o, sums_)] {
      kernels::PositionBackward(stream, nullptr, masks, dout, dtable);
    };
  });
}

// On a tile of logits, as the head has them.
void Cases::AddVocabulary() {
  const std::int64_t vocabulary = sizes_.vocabulary;
  const std::int64_t count =
      kernels::VocabularyTileTokens(stream_, sizes_.Rows(), vocabulary, dtype_);
  const std::int64_t scratch =
      kernels::VocabularyScratch(stream_, count, vocabulary, sizes_.dim, true);
  const auto make = [this, count, vocabulary, scratch](Operands& o, bool gradient) -> Call {
    Matrix logits = o.Matrix(dtype_, count, scratch / count);
    logits.columns = vocabulary;
    const kernels::VocabularyTile tile = {
        .x = {}, .weight = {}, .targets = o.Copied(Tokens(count)), .vocabulary = vocabulary};
    auto* const statistics = static_cast<double*>(
        o.Zeros(count * kernels::kSoftmaxStatistics * std::int64_t{sizeof(double)}));
    kernels::cuda::LogitStatistics(stream_, tile, logits, statistics);
    return [&stream = stream_, logits, tile, statistics, gradient] {
      if (!gradient) return kernels::cuda::LogitStatistics(stream, tile, logits, statistics);
      kernels::cuda::LogitGradients(stream, tile, logits, statistics, 1);
    };
  };
  Add("vocabulary statistics", count * vocabulary, [make](Operands& o) { return make(o, false); });
  Add("vocabulary gradient", 2 * count * vocabulary, [make](Operands& o) { return make(o, true); });
}

// Gradients, masters and two moments are read and written; the copies that products read, written.
void Cases::AddUpdate() {
  const std::int64_t count = sizes_.parameters;
  const bool copies = dtype_ == Dtype::kBfloat16;
  const auto weights = static_cast<double>(count);
  const auto flat = [count](Operands& o) { return o.Matrix(Dtype::kFloat32, 1, count).data; };
  const auto add = [&](const char* name, double bytes, Make make) {
    cases_.push_back({name, bytes * weights, std::move(make)});
  };
  add("AdamW", copies ? 34 : 32, [this, count, copies, flat](Operands& o) {
    kernels::UpdateRange range{count, 0.1, flat(o), flat(o)};
    range.first = o.Zeros(count * std::int64_t{sizeof(float)});
    range.second = o.Zeros(count * std::int64_t{sizeof(float)});
    if (copies) range.copies = o.Matrix(Dtype::kBfloat16, 1, count).data;
    const kernels::UpdateScalars scalars{1e-4, 0.9, 0.95, 1e-8, 0.1, 0.05, 1};
    return [&stream = stream_, range, at = o.Copied(std::vector{scalars})] {
      kernels::AdamW(stream, Dtype::kFloat32, {&range, 1}, at, true);
    };
  });
  add("square sum", 4, [this, count, flat](Operands& o) {
    return [&stream = stream_, range = kernels::FlatRange{count, flat(o)},
            sum = static_cast<double*>(o.Zeros(sizeof(double)))] {
      kernels::SquareSums(stream, Dtype::kFloat32, {&range, 1}, sum);
    };
  });
  if (!copies) return;
  add("convert to bf16", 6, [this, count, flat](Operands& o) {
    return
        [&stream = stream_, count, from = flat(o), to = o.Matrix(Dtype::kBfloat16, 1, count).data] {
          kernels::Convert(stream, count, Dtype::kFloat32, from, Dtype::kBfloat16, to);
        };
  });
}

}  // namespace

std::vector<Case> KernelCases(const device::Stream& stream, const Sizes& sizes, Dtype dtype) {
  const auto maker = std::make_shared<Cases>(stream, sizes, dtype);
  std::vector<Case> cases = maker->All();
  // Cases are made by the maker's functions: each keeps it.
  for (Case& one : cases) {
    one.make = [maker, make = std::move(one.make)](Operands& o) { return make(o); };
  }
  return cases;
}

// Attention on a GPU: operands, calls and operations.

namespace {

struct AttentionOperands {
  kernels::AttentionShape shape;
  kernels::Matrix qkv, out, dout, lse, dqkv, scratch;
  kernels::Dropout dropout;
};

void Forward(const device::Stream& stream, const AttentionWay& way, const AttentionOperands& a) {
  const auto run = [&](const auto& forward) {
    forward(stream, a.shape, a.qkv, a.dropout, a.out, a.lse, a.scratch);
  };
  way.own ? run(kernels::AttentionBy<kernels::cuda::OwnAttention>::Forward)
          : run(kernels::AttentionForward);
}
void Backward(const device::Stream& stream, const AttentionWay& way, const AttentionOperands& a) {
  const auto run = [&](const auto& backward) {
    backward(stream, a.shape, a.qkv, a.dropout, a.out, a.dout, a.lse, a.dqkv, a.scratch);
  };
  way.own ? run(kernels::AttentionBy<kernels::cuda::OwnAttention>::Backward)
          : run(kernels::AttentionBackward);
}

// With the forward pass behind it, which the backward pass follows.
AttentionOperands MakeOperands(const device::Stream& stream, const Sizes& sizes,
                               const AttentionWay& way, Operands& o) {
  const Dtype dtype = way.dtype;
  AttentionOperands a;
  a.shape = sizes.Attention();
  const std::int64_t rows = sizes.Rows(), width = a.shape.heads * a.shape.head_dim;
  const Dtype sums = SumTypeOf(dtype);
  a.qkv = o.Matrix(dtype, rows, a.shape.Width());
  a.out = o.Matrix(dtype, rows, width);
  a.dout = o.Matrix(dtype, rows, width);
  a.lse = o.Matrix(sums, rows, a.shape.heads);
  a.dqkv = o.Matrix(dtype, rows, a.shape.Width());
  a.scratch = o.Matrix(sums, 1, kernels::AttentionScratch(stream, a.shape, dtype, false));
  if (way.dropout > 0) {
    a.dropout.probability = way.dropout;
    a.dropout.length = sizes.length;
    std::vector<std::uint64_t> ordinals(static_cast<std::size_t>(sizes.sequences));
    std::iota(ordinals.begin(), ordinals.end(), std::uint64_t{0});
    a.dropout.ordinals = o.Copied(ordinals);
  }
  Forward(stream, way, a);
  return a;
}

}  // namespace

AttentionCase MakeAttentionCase(const device::Stream& stream, const Sizes& sizes,
                                const AttentionWay& way) {
  const kernels::AttentionShape shape = sizes.Attention();
  const auto length = static_cast<double>(shape.length);
  // Two products of the forward pass, five of the backward pass (the scores once more), each of
  // length (length + 1) / 2 scores a sequence and head.
  const double product =
      static_cast<double>(shape.sequences * shape.heads * shape.head_dim) * length * (length + 1);
  AttentionCase result;
  result.forward_flops = 2 * product;
  result.backward_flops = 5 * product;
  result.forward = [&stream, &sizes, way](Operands& o) -> Call {
    return [&stream, way, a = MakeOperands(stream, sizes, way, o)] { Forward(stream, way, a); };
  };
  result.backward = [&stream, &sizes, way](Operands& o) -> Call {
    return [&stream, way, a = MakeOperands(stream, sizes, way, o)] { Backward(stream, way, a); };
  };
  return result;
}

}  // namespace trireme::benchmark

namespace {

using trireme::benchmark::Sizes;
using namespace trireme;

const std::vector<Sizes>& KernelSizes(bool tiny) {
  static const std::vector<Sizes> large = {
      {"gpt2_124m", 16, 1024, 768, 12, 12, 3072, 50257, 124439808, false},
      {"llama_8b", 2, 4096, 4096, 32, 8, 14336, 128256, std::int64_t{1} << 28, true}};
  static const std::vector<Sizes> small = {{"tiny_gpt", 2, 20, 32, 2, 2, 64, 97, 4099, false},
                                           {"tiny_llama", 2, 20, 32, 2, 1, 64, 97, 4099, true}};
  return tiny ? small : large;
}
const std::vector<Sizes>& AttentionSizes(bool tiny) {
  static const std::vector<Sizes> large = {
      {"jsc", 512, 32, 128, 4, 4},
      {"gpt2_124m", 16, 1024, 768, 12, 12},
      {"gpt2_1558m", 8, 1024, 1600, 25, 25},
      {"llama_8b", 2, 4096, 4096, 32, 8},
  };
  static const std::vector<Sizes> small = {{"tiny", 2, 70, 32, 2, 1}};
  return tiny ? small : large;
}

// Whether TEXT of only=TEXT is in a line's words.
bool Asked(const std::string& only, const std::string& words) {
  return words.find(only) != std::string::npos;
}

void TimeKernels(const device::Stream& stream, bool tiny, const std::string& only) {
  const double copy = benchmark::CopySpeed(stream, tiny);
  fmt::print("copy within the card's memory: GB/s {:.1f}\n", copy * 1e-9);
  for (const Sizes& sizes : KernelSizes(tiny)) {
    for (const Dtype dtype : {Dtype::kBfloat16, Dtype::kFloat32}) {
      for (const benchmark::Case& one : benchmark::KernelCases(stream, sizes, dtype)) {
        const std::string words =
            fmt::format("kernel {} {} {}", sizes.name, NameOf(dtype), one.name);
        if (!Asked(only, words)) continue;
        const double seconds = benchmark::SecondsCold(stream, one.bytes, one.make, tiny);
        fmt::print("kernel {:10} {} {:34} us {:9.2f} MB {:8.1f} GB/s {:7.1f} of_copy {:.3f}\n",
                   sizes.name, NameOf(dtype), one.name, seconds * 1e6, one.bytes * 1e-6,
                   one.bytes / seconds * 1e-9, one.bytes / seconds / copy);
        std::fflush(stdout);
      }
    }
  }
}

// Both passes.
bool ServedByCudnn(const device::Stream& stream, const Sizes& sizes, Dtype dtype) {
  const auto serves = [&](bool backward) {
    return kernels::cuda::CudnnServes(stream, sizes.Attention(), dtype, backward);
  };
  return serves(false) && serves(true);
}

void TimeAttention(const device::Stream& stream, bool tiny, const std::string& only) {
  struct Way : benchmark::AttentionWay {
    const char* name;
  };
  constexpr double kDropout = 0.1;
  std::vector<Way> ways = {{{Dtype::kBfloat16, true, 0}, "own"},
                           {{Dtype::kBfloat16, true, kDropout}, "own+dropout"},
                           {{Dtype::kFloat32, true, 0}, "own"}};
  if (!kernels::cuda::CudnnName().empty()) {
    ways.push_back({{Dtype::kBfloat16, false, 0}, "cuDNN"});
  } else {
    fmt::print("attention by cuDNN: not built in\n");
  }
  constexpr double kEnough = 1e12;  // bytes: one set of operands, caches do not matter
  for (const Sizes& sizes : AttentionSizes(tiny)) {
    for (const Way& way : ways) {
      const std::string words =
          fmt::format("attention {} {} {}", sizes.name, NameOf(way.dtype), way.name);
      if (!Asked(only, words)) continue;
      if (!way.own && !ServedByCudnn(stream, sizes, way.dtype)) {
        fmt::print("{}: not served, see own\n", words);
        continue;
      }
      const auto one = benchmark::MakeAttentionCase(stream, sizes, way);
      const double forward = benchmark::SecondsCold(stream, kEnough, one.forward, tiny);
      const double backward = benchmark::SecondsCold(stream, kEnough, one.backward, tiny);
      fmt::print(
          "attention {:10} {} {:11} forward_us {:9.1f} TFLOP/s {:7.2f} backward_us {:9.1f} "
          "TFLOP/s {:7.2f}\n",
          sizes.name, NameOf(way.dtype), way.name, forward * 1e6,
          one.forward_flops / forward * 1e-12, backward * 1e6,
          one.backward_flops / backward * 1e-12);
      std::fflush(stdout);
    }
  }
}

// Bus bandwidth as nccl-tests defines it (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md), of S
// bytes on n ranks in t seconds: 2 (n - 1) / n S / t of an all-reduce, (n - 1) / n S / t of a
// reduce-scatter or an all-gather, whose S is the whole.
void TimeTransfers(const comm::ProcessGrid& grid, const device::Stream& stream, bool tiny) {
  const comm::Communicator& world = grid.World();
  const comm::Collectives ranks = grid.Over(comm::Group::kData);
  const int n = ranks.Size();
  constexpr std::int64_t kLeast = 1 << 20, kMost = 1 << 30, kTiny = 1 << 16, kFactor = 4;
  constexpr int kRepetitions = 20;
  const std::int64_t most = tiny ? kTiny : kMost;
  benchmark::Operands operands(stream);
  // Zeros: their sums stay so.
  void* const whole = operands.Zeros(most);
  void* const other = operands.Zeros(most);
  device::Event begin(stream, true), end(stream, true);
  const auto time = [&](const char* name, std::int64_t bytes, double share, const auto& call) {
    const int repetitions = tiny ? 2 : kRepetitions;
    for (int warm_up = 0; warm_up < 2; ++warm_up) call();
    device::Synchronise(stream);
    world.Barrier();
    begin.Record(stream.gpu->queue);
    for (int i = 0; i < repetitions; ++i) call();
    end.Record(stream.gpu->queue);
    grid.Await(end);
    const double seconds = world.Max(end.SecondsSince(begin) / repetitions);
    if (!world.IsRoot()) return;
    const double bus = share * (n - 1) / n * static_cast<double>(bytes) / seconds;
    fmt::print("transfer {:14} ranks {} bytes {:10} us {:10.1f} bus_GB/s {:.2f}\n", name, n, bytes,
               seconds * 1e6, bus * 1e-9);
    std::fflush(stdout);
  };
  for (std::int64_t bytes = tiny ? kTiny : kLeast; bytes <= most; bytes *= kFactor) {
    const std::int64_t count = bytes / n / std::int64_t{sizeof(float)} * n;
    const comm::Counts counts = comm::Counts::Cut(count);
    time("all_reduce", bytes, 2, [&] { ranks.AllReduce(Dtype::kFloat32, whole, count); });
    time("reduce_scatter", bytes, 1,
         [&] { ranks.ReduceScatter(Dtype::kFloat32, whole, other, counts); });
    time("all_gather", bytes, 1, [&] { ranks.AllGather(Dtype::kFloat32, other, whole, counts); });
  }
  device::Synchronise(stream);
}

void Run(const comm::Runtime& runtime, bool tiny, const std::string& only,
         const std::vector<std::string>& overrides) {
  const deck::Schema schema = tasks::DeclareAll();
  const app::Job job = benchmark::MakeGpuJob(runtime, schema, "", overrides);
  const comm::Communicator& world = runtime.World();
  if (world.IsRoot()) fmt::print("{}", benchmark::DescribeGpu(job.device.gpu->Context()));
  if (world.Size() == 1) {
    TimeKernels(job.device.stream, tiny, only);
    TimeAttention(job.device.stream, tiny, only);
    return;
  }
  comm::ProcessGrid grid(world, comm::GridShape{.data = world.Size()});
  grid.UseGpu(job.device.stream, job.device.staged, 1);
  TimeTransfers(grid, job.device.stream, tiny);
}

}  // namespace

int main(int argc, char** argv) {
  return benchmark::OnGpus(&argc, &argv, [&](const comm::Runtime& runtime) {
    bool tiny = false;
    std::string only;
    std::vector<std::string> overrides;
    for (const std::string& word : std::vector<std::string>(argv + 1, argv + argc)) {
      if (word == "tiny") {
        tiny = true;
      } else if (word.starts_with("only=")) {
        only = word.substr(5);
      } else {
        overrides.push_back(word);
      }
    }
    Run(runtime, tiny, only, overrides);
  });
}
