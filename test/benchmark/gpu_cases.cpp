// The memory-bound kernels of a training step: operands, calls and the bytes that each has to move.
// What is as small as a row of weights is not counted.
#include "gpu_cases.hpp"

#include <memory>
#include <set>
#include <utility>

#include "kernels/cuda/attention.hpp"
#include "kernels/cuda/vocabulary.cuh"
#include "trireme/base/philox.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/update.hpp"

namespace trireme::benchmark {

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
    const kernels::cuda::VocabularyRows rows = {o.Copied(Tokens(count)), 0, vocabulary, 0, 1};
    auto* const statistics = static_cast<double*>(
        o.Zeros(count * kernels::kSoftmaxStatistics * std::int64_t{sizeof(double)}));
    kernels::cuda::LogitStatistics(stream_, logits, rows, statistics);
    return [&stream = stream_, logits, rows, statistics, gradient] {
      if (!gradient) return kernels::cuda::LogitStatistics(stream, logits, rows, statistics);
      kernels::cuda::LogitGradients(stream, logits, rows, statistics);
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

}  // namespace trireme::benchmark
