// Times a training step (forward, backward, clip, AdamW) of a preset on random tokens, one process,
// and how fast the machine multiplies matrices meanwhile: our side of step.sh's comparison.
// usage: trireme_step_benchmark PRESET SEQUENCE BATCH [STEPS [fp32|bf16 [MICRO_BATCH]]]
//        trireme_step_benchmark machine             threads: OMP_NUM_THREADS
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "models.hpp"
#include "trireme/base/program.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/model/options.hpp"
#include "trireme/report/monitor.hpp"
#include "whole_model.hpp"

namespace trireme::benchmark {

// How fast this machine does the matrix products of a training step when they are all it does: each
// distinct product by itself, at the size, form and strides that the model uses.

// c = form_a(a) form_b(b), [m, n] with k inner indices.
struct Product {
  kernels::Form form_a = kernels::Form::kPlain, form_b = kernels::Form::kPlain;
  std::int64_t m = 0, n = 0, k = 0;
  bool accumulate = false;
  bool head = false;  // of the vocabulary, whose logits need not be kept
  double times = 0;   // in a step
};

// All products of a step but attention's own, forward, input gradient and weight gradient.
// rows: tokens of a micro-batch.
std::vector<Product> ProductsOf(const model::Options& options, std::int64_t rows,
                                std::int64_t micro_batches);
// Operations of attention's products in a token's forward and backward pass.
double AttentionFlopsPerToken(const model::Options& options, std::int64_t length);

class ProductRoof {
 public:
  // Allocates operands of their own for every product, in ordinary memory.
  ProductRoof(const device::Stream& stream, std::vector<Product> products);

  // Seconds that all products of a step take now, each done in the fastest of the ways there are:
  // by the library or (fp32) by Trireme's own product; in bf16 or, where that is faster, in fp32;
  // the head's whole or in blocks of the vocabulary.
  double Seconds() const;

 private:
  struct Operands {
    device::Buffer storage[3];
    kernels::Matrix a, b, c;
  };
  double Fastest(const Product& product, const Operands& operands) const;

  std::vector<device::Stream> ways_;
  std::vector<Product> products_;
  std::vector<Operands> operands_;
};

namespace {

using kernels::Form;
using kernels::Matrix;

constexpr std::int64_t kHeadRows = 512;   // tokens whose logits exist at a time
constexpr std::int64_t kHeadBlock = 512;  // vocabulary entries of a block: logits of 1 MiB

// y = x W^T, dx = dy W, dW += dy^T x. x: [rows, inputs], W: [outputs, inputs].
void AddLinear(std::vector<Product>& list, std::int64_t rows, std::int64_t inputs,
               std::int64_t outputs, double times, bool head = false) {
  constexpr Form kPlain = Form::kPlain, kTransposed = Form::kTransposed;
  list.push_back({kPlain, kTransposed, rows, outputs, inputs, false, head, times});
  list.push_back({kPlain, kPlain, rows, inputs, outputs, false, head, times});
  list.push_back({kTransposed, kPlain, outputs, inputs, rows, true, head, times});
}

struct Allocation {
  device::Buffer storage;
  Matrix matrix;
};
Allocation Make(std::int64_t rows, std::int64_t columns) {
  Allocation made{device::AllocateZeroed(rows * columns * 4), {}};
  made.matrix = {made.storage.get(), Dtype::kFloat32, rows, columns, columns};
  // Numbers of ordinary size: a processor may run zeros at a higher clock.
  for (std::int64_t i = 0; i < made.matrix.Size(); ++i) {
    made.matrix.As<float>()[i] = static_cast<float>(i % 7) - 3;
  }
  return made;
}

// As many columns of m's memory, close together.
Matrix Narrow(const Matrix& m, std::int64_t columns) {
  return {m.data, m.dtype, m.rows, columns, columns};
}

// Some rows of a product of the head, in blocks of the vocabulary: the block of logits is always
// the same memory, the weights pass by.
void MultiplyInBlocks(const device::Stream& stream, const Product& p, const Matrix& a,
                      const Matrix& b, const Matrix& c) {
  const bool weight = p.form_a == Form::kTransposed, logits = p.form_b == Form::kTransposed;
  const std::int64_t vocabulary = weight ? c.rows : b.rows;
  for (std::int64_t begin = 0; begin < vocabulary; begin += kHeadBlock) {
    const std::int64_t count = std::min(kHeadBlock, vocabulary - begin);
    kernels::MatrixMultiply(stream, p.form_a, logits ? a : Narrow(a, count), p.form_b,
                            weight ? b : b.Rows(begin, count),
                            logits   ? Narrow(c, count)
                            : weight ? c.Rows(begin, count)
                                     : c,
                            weight || (!logits && begin > 0));
  }
}

// The same for all rows, each thread its own.
void MultiplyInBlocksByThreads(const device::Stream& stream, const Product& p, const Matrix& a,
                               const Matrix& b, const Matrix& c) {
#pragma omp parallel for num_threads(stream.threads) schedule(static)
  for (int thread = 0; thread < stream.threads; ++thread) {
    const Part rows = PartOf(p.m, thread, stream.threads);
    const Matrix own = p.form_a == Form::kPlain ? a.Rows(rows.begin, rows.Size())
                                                : a.Columns(rows.begin, rows.Size());
    MultiplyInBlocks(stream.Serial(), p, own, b, c.Rows(rows.begin, rows.Size()));
  }
}

template <typename Work>
double SecondsOf(Work work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::vector<Product> ProductsOf(const model::Options& o, std::int64_t rows,
                                std::int64_t micro_batches) {
  std::vector<Product> list;
  const double blocks = static_cast<double>(o.layers * micro_batches);
  const std::int64_t queries = o.heads * o.head_dim, keys = o.kv_heads * o.head_dim;
  const bool gated = o.activation == model::Activation::kSwiglu;
  AddLinear(list, rows, o.dim, queries + 2 * keys, blocks);
  // The branches' outputs, y = x W, are stored the other way round: the same three products, with
  // the first two changing places.
  AddLinear(list, rows, o.dim, queries, blocks);
  AddLinear(list, rows, o.dim, o.ffn, gated ? blocks : 2 * blocks);
  if (gated) AddLinear(list, rows, o.dim, 2 * o.ffn, blocks);
  const std::int64_t tile = std::min(kHeadRows, rows);
  const double tiles = static_cast<double>(rows * micro_batches) / static_cast<double>(tile);
  AddLinear(list, tile, o.dim, o.vocabulary, tiles, true);
  return list;
}

// As model::FlopsPerToken counts them.
double AttentionFlopsPerToken(const model::Options& o, std::int64_t length) {
  return 6 * static_cast<double>(o.layers * o.heads * o.head_dim) * static_cast<double>(length + 1);
}

ProductRoof::ProductRoof(const device::Stream& stream, std::vector<Product> products)
    : ways_(2, stream), products_(std::move(products)) {
  if (stream.bf16) {
    ways_[1].bf16 = false;
  } else {
    ways_[1].canonical = true;
  }
  for (const Product& p : products_) {
    Allocation a = p.form_a == Form::kPlain ? Make(p.m, p.k) : Make(p.k, p.m);
    Allocation b = p.form_b == Form::kPlain ? Make(p.k, p.n) : Make(p.n, p.k);
    Allocation c = Make(p.m, p.n);
    operands_.push_back({{std::move(a.storage), std::move(b.storage), std::move(c.storage)},
                         a.matrix,
                         b.matrix,
                         c.matrix});
  }
}

double ProductRoof::Fastest(const Product& p, const Operands& operands) const {
  const auto& [storage, a, b, c] = operands;
  double best = std::numeric_limits<double>::infinity();
  for (const device::Stream& way : ways_) {
    best = std::min(best, SecondsOf([&] {
                      kernels::MatrixMultiply(way, p.form_a, a, p.form_b, b, c, p.accumulate);
                    }));
    if (!p.head) continue;
    best = std::min(best, SecondsOf([&] { MultiplyInBlocksByThreads(way, p, a, b, c); }));
  }
  return best;
}

double ProductRoof::Seconds() const {
  constexpr int kTimes = 2;
  double sum = 0;
  std::vector<double> best(products_.size(), std::numeric_limits<double>::infinity());
  // In turn, so that each finds the caches as a step leaves them: full of something else.
  for (int i = 0; i < kTimes; ++i) {
    for (std::size_t p = 0; p < products_.size(); ++p) {
      best[p] = std::min(best[p], Fastest(products_[p], operands_[p]));
    }
  }
  for (std::size_t p = 0; p < products_.size(); ++p) sum += products_[p].times * best[p];
  return sum;
}

}  // namespace trireme::benchmark

namespace {

using namespace trireme;

constexpr int kWarmUp = 2;  // steps that are not timed: first touches, code read from disk

struct Work {
  std::string preset;
  std::int64_t length = 0, batch = 0, micro_batch = 0;  // tokens, sequences, sequences
  int steps = 5;
  bool bf16 = false;
  std::int64_t Tokens() const { return length * batch; }
};

Work ReadWork(int argc, char** argv) {
  const std::string usage =
      "usage: trireme_step_benchmark PRESET SEQUENCE BATCH [STEPS [fp32|bf16 [MICRO_BATCH]]]";
  if (argc < 4) throw AgreedError(ExitCode::kBadInput, usage);
  Work work{argv[1], std::atoll(argv[2]), std::atoll(argv[3])};
  if (argc > 4) work.steps = std::max(1, std::atoi(argv[4]));
  const std::string precision = argc > 5 ? argv[5] : "fp32";
  work.bf16 = precision == "bf16";
  constexpr std::int64_t kMicroBatchTokens = 2048;  // as the driver chooses
  work.micro_batch = argc > 6 ? std::atoll(argv[6])
                              : std::clamp<std::int64_t>(
                                    kMicroBatchTokens / std::max<std::int64_t>(1, work.length), 1,
                                    std::max<std::int64_t>(1, work.batch));
  if ((!work.bf16 && precision != "fp32") || work.length < 1 || work.batch < 1 ||
      work.micro_batch < 1 || work.batch % work.micro_batch != 0) {
    throw AgreedError(ExitCode::kBadInput, usage, "MICRO_BATCH must divide BATCH.");
  }
  if (work.bf16 && device::Bf16Instructions().empty()) {
    throw AgreedError(ExitCode::kBadInput, "this CPU has no bf16 instructions");
  }
  return work;
}

// The peer's models to the last parameter: positions learned, dropout on the embedding and the
// residual branches only.
benchmark::Setup SetupOf(const Work& work) {
  deck::Schema schema;
  model::Declare(schema);
  train::DeclareOptimizerAndSchedule(schema);
  std::vector<std::string> keys = {"model.preset=" + work.preset};
  if (work.preset == "wt2") {
    keys = {"model.dim=256", "model.heads=8", "model.layers=4", "model.ffn=1024",
            "model.dropout=0.1"};
  }
  keys.insert(keys.end(),
              {"model.position=learned", "model.attention_dropout=0", "model.ffn_dropout=0",
               "model.max_positions=" + std::to_string(work.length)});
  // Norms and GELUs again in the backward pass: activations are a quarter of the memory.
  if (work.preset.starts_with("gpt2")) keys.push_back("model.recompute=selective");
  deck::Deck deck = deck::Deck::Parse(schema, "", "benchmark", keys);
  model::Resolve(deck);
  benchmark::Setup setup;
  setup.model.options = model::WithVocabulary(
      model::Read(deck), work.preset.starts_with("gpt2") ? 50257 : 33278, deck);
  setup.model.length = work.length;
  setup.model.micro_batch = work.micro_batch;
  setup.stream.threads = device::ConfigureThreads(0, 1);
  setup.stream.bf16 = work.bf16;
  setup.optimizer = train::ReadOptimizer(deck);
  return setup;
}

// Micro-batches of one step.
std::vector<data::Entry> RandomBatches(const Work& work, std::int64_t vocabulary, int step) {
  std::vector<data::Entry> batches(static_cast<std::size_t>(work.batch / work.micro_batch));
  std::uint32_t number = 0;
  std::uint64_t ordinal = 0;
  for (data::Entry& batch : batches) {
    batch.sequences = work.micro_batch;
    batch.length = work.length;
    batch.valid = work.micro_batch * work.length;
    for (std::int64_t i = 0; i < batch.valid; ++i) {
      const auto words = Philox({number++, 0, 0, 0}, {static_cast<std::uint32_t>(step), 0});
      batch.inputs.push_back(static_cast<std::int32_t>(words[0] % vocabulary));
      batch.targets.push_back(static_cast<std::int32_t>(words[1] % vocabulary));
    }
    for (std::int64_t b = 0; b < batch.sequences; ++b) batch.ordinals.push_back(ordinal++);
  }
  return batches;
}

class Trial {
 public:
  Trial(const Work& work, const benchmark::Setup& setup)
      : work_(work),
        model_(setup.model, setup.stream),
        optimizer_(setup.optimizer, model_.Parameters(), setup.stream) {}

  // Seconds of the next step.
  double Step() {
    const auto batches = RandomBatches(work_, model_.Plan().options.vocabulary, ++step_);
    const auto start = std::chrono::steady_clock::now();
    model_.Parameters().ZeroGradients();
    double sum = 0;
    for (const data::Entry& batch : batches) sum += model_.ForwardBackward(batch, {});
    const auto tokens = static_cast<double>(work_.Tokens());
    optimizer_.Step(step_, 1e-3, std::sqrt(optimizer_.GradientSquares()) / tokens, work_.Tokens(),
                    true);
    loss_ = sum / tokens;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  double Loss() const { return loss_; }  // of the last step, nats a token

 private:
  Work work_;
  test::WholeModel model_;
  train::Optimizer optimizer_;
  int step_ = 0;
  double loss_ = 0;
};

void Run(const Work& work) {
  const benchmark::Setup all = SetupOf(work);
  const model::ModelPlan& setup = all.model;
  const device::Stream& stream = all.stream;
  Trial trial(work, all);
  for (int step = 0; step < kWarmUp; ++step) trial.Step();
  // Before the roofs take memory of their own; later steps take no more.
  const std::int64_t peak = report::PeakResidentBytes();

  const benchmark::ProductRoof roof(
      stream, benchmark::ProductsOf(setup.options, work.micro_batch * work.length,
                                    work.batch / work.micro_batch));
  std::vector<double> times, speeds, products;
  const auto measure_roofs = [&] {
    speeds.push_back(kernels::MeasureRoof(stream, setup.dtype));
    products.push_back(roof.Seconds());
  };
  measure_roofs();
  for (int step = 0; step < work.steps; ++step) {
    times.push_back(trial.Step());
    measure_roofs();
  }
  const double seconds = benchmark::Median(times), speed = benchmark::Median(speeds);
  const auto tokens = static_cast<double>(work.Tokens());
  // Products of attention happen between its other work, panel by panel: counted at the speed
  // of the square product.
  const double attention =
      tokens * benchmark::AttentionFlopsPerToken(setup.options, work.length) / speed;
  const double flops = tokens * model::FlopsPerToken(setup.options, work.length);
  fmt::print(
      "trireme {} {} params {:.2f}M tokens/step {} step_s {:.3f} min {:.3f} tokens/s {:.0f} "
      "peak_MiB {} loss {:.3f} roof_GFLOP/s {:.1f} of_square {:.3f} of_products {:.3f}\n",
      work.preset, work.bf16 ? "bf16" : "fp32",
      static_cast<double>(model::ParameterCount(setup.options)) * 1e-6, work.Tokens(), seconds,
      *std::min_element(times.begin(), times.end()), tokens / seconds, peak >> 20, trial.Loss(),
      speed * 1e-9, flops / seconds / speed, (benchmark::Median(products) + attention) / seconds);
}

void PrintMachine() {
  const std::string bf16 = device::Bf16Instructions();
  fmt::print("cpu       {} ({}, bf16: {}), {} threads\n", device::CpuName(),
             device::InstructionSet(), bf16.empty() ? "none" : bf16,
             device::ConfigureThreads(0, 1));
  fmt::print("trireme   {} ({}), {}, {}\n", Version(), Commit(), Compiler(),
             kernels::MatrixLibrary());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc == 2 && std::string(argv[1]) == "machine") {
      PrintMachine();
    } else {
      Run(ReadWork(argc, argv));
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
