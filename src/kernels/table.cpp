// The table of kernels, the only file in this folder that depends on whether CUDA was built. It
// also has a planned device's kernels, which touch no memory and count floating-point operations: 2
// m n k per product, and those of attention, without recomputation inside a kernel. A log, if there
// is one, is also told of that recomputation, and of the bytes of all other kernels.
#include <fmt/format.h>
#include <algorithm>
#include <atomic>
#include <type_traits>

#include "backends.hpp"
#include "trireme/base/error.hpp"
#include "trireme/device/activities.hpp"

namespace trireme::kernels {

namespace {

// Kernels without products on a planned device: they do nothing but tell the log, if any, how many
// bytes they would read and write.

using device::LogPass;

double BytesOf(const Matrix& matrix) {
  if (matrix.Empty()) return 0;
  return static_cast<double>(matrix.Size()) * static_cast<double>(SizeOf(matrix.dtype));
}

// Replaces a kernel without products that touches each of its matrices once. Returns 0 or nothing.
struct PassOver {
  template <typename Result, typename... Arguments>
  using Function = Result(const device::Stream&, Arguments...);
  template <typename Argument>
  static double Bytes(const Argument& argument) {
    if constexpr (std::is_same_v<Argument, Matrix>) return BytesOf(argument);
    return 0;
  }
  template <typename Result, typename... Arguments>
  constexpr operator Function<Result, Arguments...>*()
      const {  // NOLINT(google-explicit-constructor)
    return [](const device::Stream& stream, Arguments... arguments) {
      LogPass(stream, (0.0 + ... + Bytes(arguments)));
      return Result();
    };
  }
};
constexpr PassOver kPass;

// Only the selected rows of a table are read, so the bytes follow from the other matrix.
void PassEmbedding(const device::Stream& stream, const std::int32_t*, std::int32_t, const Matrix&,
                   double, const Matrix& out) {
  LogPass(stream, 2 * BytesOf(out));
}

void PassEmbeddingGradient(const device::Stream& stream, const std::int32_t*, std::int32_t, double,
                           const Matrix& dout, const Matrix&) {
  LogPass(stream, 3 * BytesOf(dout));
}

void PassPositions(const device::Stream& stream, const Matrix& positions, const std::int32_t*,
                   const Dropout&, const Matrix& x) {
  LogPass(stream, (positions.Empty() ? 2 : 3) * BytesOf(x));
}

void PassPositionGradient(const device::Stream& stream, const std::int32_t*, const Dropout&,
                          const Matrix& dout, const Matrix& dpositions) {
  LogPass(stream, dpositions.Empty() ? 0 : 3 * BytesOf(dout));
}

void PassNormGradient(const device::Stream& stream, const NormBackwardPass& pass) {
  double bytes = 0;
  for (const Matrix* each :
       {&pass.dy, &pass.more, &pass.x, &pass.residual, &pass.dx, &pass.dbranch}) {
    bytes += BytesOf(*each);
  }
  LogPass(stream, bytes);
}

double BytesOf(std::int64_t count, Dtype dtype) {
  return static_cast<double>(count) * static_cast<double>(SizeOf(dtype));
}

// Counts gradients, values and the optimizer's moments as read and written.
template <int kMoments>
void PassUpdate(const device::Stream& stream, Dtype dtype, std::span<const UpdateRange> ranges,
                const UpdateScalars*, bool) {
  double bytes = 0;
  for (const UpdateRange& range : ranges) {
    bytes += 2 * (2 + kMoments) * BytesOf(range.count, dtype);
    if (range.copies != nullptr) bytes += BytesOf(range.count, Dtype::kBfloat16);
  }
  LogPass(stream, bytes);
}

// Replaces sums over ranges; returns 0 or nothing.
template <typename Result, typename... Sums>
Result PassRanges(const device::Stream& stream, Dtype dtype, std::span<const FlatRange> ranges,
                  Sums...) {
  double bytes = 0;
  for (const FlatRange& range : ranges) bytes += BytesOf(range.count, dtype);
  LogPass(stream, bytes);
  return Result();
}

void PassAccumulate(const device::Stream& stream, Dtype dtype, std::int64_t count, const void*,
                    void*) {
  LogPass(stream, 3 * BytesOf(count, dtype));
}

void PassConvert(const device::Stream& stream, std::int64_t count, Dtype from_type, const void*,
                 Dtype to_type, void*) {
  LogPass(stream, BytesOf(count, from_type) + BytesOf(count, to_type));
}

// Replaces a kernel whose bytes do not matter; returns 0 or nothing.
struct Nothing {
  template <typename Result, typename... Arguments>
  using Function = Result(Arguments...);
  template <typename Result, typename... Arguments>
  constexpr operator Function<Result, Arguments...>*()
      const {  // NOLINT(google-explicit-constructor)
    return [](Arguments...) { return Result(); };
  }
};
constexpr Nothing kNothing;

// Atomic, since tasks of several threads may count at once; but not while there is a log.
void Count(const device::Stream& stream, double flops) {
  std::atomic_ref(stream.planned->flops).fetch_add(flops, std::memory_order_relaxed);
}

// fp8: whether the operands are rounded to fp8 first.
void CountProduct(const device::Stream& stream, std::int64_t m, std::int64_t n, std::int64_t k,
                  Dtype type, bool fp8 = false) {
  Count(stream, 2 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k));
  if (stream.planned->log != nullptr) stream.planned->log->Product(m, n, k, type, fp8);
}

bool TakesFp8(const device::Stream& stream, const Linear& linear) {
  return stream.fp8 && linear.site >= 0;
}

void CountMultiply(const device::Stream& stream, Form form_a, const Matrix& a, Form, const Matrix&,
                   const Matrix& c, bool) {
  CountProduct(stream, c.rows, c.columns, form_a == Form::kPlain ? a.columns : a.rows, a.dtype);
}

void CountLinearForward(const device::Stream& stream, const Linear& linear, const Matrix& x,
                        const Matrix&, const Matrix& y, FunctionRef<void(const Part&)> then) {
  CountProduct(stream, x.rows, y.columns, x.columns, x.dtype, TakesFp8(stream, linear));
  then({0, y.rows});
}

void CountLinearActivation(const device::Stream& stream, const Linear& linear, const Matrix& x,
                           const Matrix&, ActivationKind, const Dropout&, const Matrix& pre,
                           const Matrix& out) {
  CountProduct(stream, x.rows, pre.columns, x.columns, x.dtype, TakesFp8(stream, linear));
  LogPass(stream, BytesOf(pre) + BytesOf(out));
}

void CountLinearInputGradient(const device::Stream& stream, const Linear& linear, const Matrix& dy,
                              const Matrix& dx) {
  CountProduct(stream, dy.rows, dx.columns, dy.columns, dy.dtype, TakesFp8(stream, linear));
}

void CountLinearActivationGradient(const device::Stream& stream, const Linear& linear,
                                   const Matrix& dy, ActivationKind, const Matrix& from,
                                   const Dropout&, const Matrix& dhidden, const Matrix& dpre) {
  CountProduct(stream, dy.rows, dhidden.columns, dy.columns, dy.dtype, TakesFp8(stream, linear));
  LogPass(stream, BytesOf(from) + BytesOf(dhidden) + BytesOf(dpre));
}

void CountLinearWeightGradient(const device::Stream& stream, const Linear& linear, const Matrix& x,
                               const Matrix& dy, const Matrix&) {
  CountProduct(stream, x.columns, dy.columns, x.rows, x.dtype, TakesFp8(stream, linear));
  AddBiasGradients(stream, linear, dy, kPass);
}

// Sum of min(max(t, 0), most) over all t <= last.
double ClampedSum(std::int64_t last, std::int64_t most) {
  const auto full = static_cast<double>(std::max<std::int64_t>(last - most, 0));
  const auto rising = static_cast<double>(std::clamp<std::int64_t>(last, 0, most));
  return rising * (rising + 1) / 2 + full * static_cast<double>(most);
}

// Number of (query, key) pairs in which the query sees the key; both at consecutive positions.
double VisiblePairs(const Part& queries, const Part& keys, bool causal) {
  if (queries.Size() <= 0 || keys.Size() <= 0) return 0;
  if (!causal) return static_cast<double>(queries.Size()) * static_cast<double>(keys.Size());
  // The query at position q sees the first q + 1 - keys.begin keys.
  return ClampedSum(queries.end - keys.begin, keys.Size()) -
         ClampedSum(queries.begin - keys.begin, keys.Size());
}

// The same for one head of one sequence. length: number of its queries that this rank has.
double VisiblePairs(const Positions& queries, std::int64_t length, const Positions& keys,
                    bool causal) {
  const std::int64_t early = std::min(queries.early.Size(), length);
  const Part parts[] = {{queries.early.begin, queries.early.begin + early},
                        {queries.late.begin, queries.late.begin + length - early}};
  double pairs = 0;
  for (const Part& part : parts) {
    pairs += VisiblePairs(part, keys.early, causal) + VisiblePairs(part, keys.late, causal);
  }
  return pairs;
}

// Products of attention, each with 2 head_dim operations per pair. Forward: scores and outputs.
// Backward: gradients of values, weights, queries and keys; the scores, computed again, count as
// `done` (for the log) but not as `counted`.
struct AttentionProducts {
  double counted = 0, done = 0;
};
constexpr AttentionProducts kForwardProducts{2, 2}, kBackwardProducts{4, 5};

// 2 head_dim operations per pair and product. bytes: of all operands.
void CountAttention(const AttentionPass& pass) {
  const AttentionShape& shape = pass.shape;
  const AttentionProducts& products = pass.backward ? kBackwardProducts : kForwardProducts;
  const std::int64_t heads = pass.tasks.Size() * (shape.heads / shape.kv_heads);
  const double operations =
      2 * static_cast<double>(heads * shape.head_dim) *
      VisiblePairs(pass.Queries(), shape.length, pass.block.positions, shape.causal);
  Count(pass.stream, products.counted * operations);
  if (pass.stream.planned->log == nullptr) return;
  const double share =
      static_cast<double>(pass.tasks.Size()) / static_cast<double>(AttentionPartTasks(shape));
  const double bytes = pass.whole ? products.counted / 2 * (BytesOf(pass.qkv) + BytesOf(pass.out))
                                  : products.counted * share * BytesOf(pass.block.data);
  pass.stream.planned->log->Attention(products.done * operations, bytes, pass.qkv.dtype);
}

// On a GPU, attention in parts in bf16 also clears the unrounded sum of this gradient.
void PassStartBackward(const device::Stream& stream, const AttentionShape& shape,
                       const Matrix& dqkv, const Matrix& scratch) {
  const bool exact = stream.OnGpu() && dqkv.dtype == Dtype::kBfloat16;
  const std::int64_t sums = shape.sequences * shape.length * shape.heads * shape.head_dim;
  LogPass(stream, BytesOf(dqkv) + (exact ? BytesOf(sums, scratch.dtype) : 0));
}

// How often the logits of a tile are read or written for the statistics, and for the gradient.
struct LogitPasses {
  int statistics = 1, gradient = 2;

  LogitPasses(const device::Stream& stream, const VocabularyTile& tile) {
    if (stream.OnGpu() && gpu::LogitsReadOnce(tile)) statistics = 2, gradient = 0;
  }
};

void CountVocabularyStatistics(const device::Stream& stream, const VocabularyTile& tile,
                               const Matrix&, double*) {
  CountProduct(stream, tile.x.rows, tile.weight.rows, tile.x.columns, tile.x.dtype);
  LogPass(stream, LogitPasses(stream, tile).statistics *
                      BytesOf(tile.x.rows * tile.weight.rows, tile.x.dtype));
}

// Counts the products for the gradients of x and of the weight.
void CountVocabularyGradient(const device::Stream& stream, const VocabularyTile& tile,
                             const Matrix&, const double*, int, const Matrix&, const Matrix&) {
  const int passes = LogitPasses(stream, tile).gradient;
  if (passes > 0) {
    LogPass(stream, passes * BytesOf(tile.x.rows * tile.weight.rows, tile.x.dtype));
  }
  CountProduct(stream, tile.x.rows, tile.x.columns, tile.weight.rows, tile.x.dtype);
  CountProduct(stream, tile.weight.rows, tile.x.columns, tile.x.rows, tile.x.dtype);
}

// A number of elements or tokens, computed as by the back end that the planned device imitates.
template <auto* kCpu, auto* kGpu, typename... Arguments>
std::int64_t SizeOn(const device::Stream& stream, Arguments... arguments) {
  return (stream.OnGpu() ? kGpu : kCpu)(stream, arguments...);
}

// Libraries of a planned GPU: no algorithms to choose, but the memory of fp8 operands.
class PlannedLibraries final : public Libraries {
 public:
  PlannedLibraries(const device::Stream& stream, int sites)
      : scales_(stream.fp8 ? Planned(gpu::Fp8ScaleBytes(sites)) : device::Buffer()) {}

  void Reserve(std::int64_t fp8_elements) override {
    if (scales_ == nullptr || fp8_elements <= reserved_) return;
    for (device::Buffer& room : rooms_) room = Planned(fp8_elements);
    reserved_ = fp8_elements;
  }
  void KeepWeights(std::span<const Linear> layers) override {
    if (scales_ != nullptr) weights_ = Planned(KeptWeightBytes(layers));
  }

 private:
  static device::Buffer Planned(std::int64_t bytes) {
    return device::AllocateZeroed(bytes, device::Kind::kPlanned);
  }

  device::Buffer scales_;  // null without fp8
  device::Buffer weights_;
  device::Buffer rooms_[gpu::kFp8Places];
  std::int64_t reserved_ = 0;
};

std::unique_ptr<Libraries> MakePlannedLibraries(const device::Stream& stream, int sites) {
  if (!stream.OnGpu()) return nullptr;
  return std::make_unique<PlannedLibraries>(stream, sites);
}

}  // namespace

// The table: for each kernel the functions of the CPU, CUDA and a planned device.

#if TRIREME_CUDA
#define GPU(function) function
#else
#define GPU(function) nullptr
#endif

#define DEFINE(name, ...) \
  constinit const decltype(name) name{cpu::name, GPU(cuda::name), __VA_ARGS__};
#define DEFINE_CPU(name, ...) constinit const decltype(name) name{cpu::name, nullptr, __VA_ARGS__};
TRIREME_PRODUCTS(DEFINE)
TRIREME_KERNELS(DEFINE)
TRIREME_CPU_KERNELS(DEFINE_CPU)
constinit const decltype(KeyValueElements) KeyValueElements{
    cpu::KeyValueElements, GPU(gpu::KeyValueElements),
    SizeOn<cpu::KeyValueElements, gpu::KeyValueElements>};
constinit const decltype(VocabularyScratch) VocabularyScratch{
    cpu::VocabularyScratch, GPU(gpu::VocabularyScratch),
    SizeOn<cpu::VocabularyScratch, gpu::VocabularyScratch>};
constinit const decltype(VocabularyTileTokens) VocabularyTileTokens{
    cpu::VocabularyTileTokens, GPU(gpu::VocabularyTileTokens),
    SizeOn<cpu::VocabularyTileTokens, gpu::VocabularyTileTokens>};
constinit const decltype(SampleWords) SampleWords{
    cpu::SampleWords, nullptr,
    [](const device::Stream&, const WordDraw&, const std::int32_t*, std::int64_t,
       const SampledWords& words) { return words.most; }};
constinit const decltype(Convert) Convert{nullptr, GPU(cuda::Convert), PassConvert};
constinit const decltype(MakeLibraries) MakeLibraries{kNothing, GPU(cuda::MakeLibraries),
                                                      MakePlannedLibraries};
#define DEFINE_ATTENTION(pass)                                                                    \
  constinit const decltype(Attention##pass) Attention##pass{AttentionBy<cpu::Attend>::pass,       \
                                                            GPU(AttentionBy<cuda::Attend>::pass), \
                                                            AttentionBy<CountAttention>::pass};
DEFINE_ATTENTION(Forward)
DEFINE_ATTENTION(Backward)
DEFINE_ATTENTION(PartForward)
DEFINE_ATTENTION(PartBackward)

#undef DEFINE
#undef DEFINE_CPU
#undef DEFINE_ATTENTION
#undef GPU

void ThrowNoKernel(const device::Stream& stream) {
  throw RunError(
      fmt::format("a kernel was called that the device {} does not have", NameOf(stream.Where())),
      "This is a bug in Trireme.");
}

std::int64_t AttentionPartHalf(const device::Stream& stream, const AttentionShape& shape) {
  std::int64_t unit = stream.threads;
  if (stream.OnGpu()) unit = shape.sequences > 1 ? shape.kv_heads : 1;
  const std::int64_t all = AttentionPartTasks(shape), half = CeilDivide(all, std::int64_t{2});
  return std::min(all, CeilDivide(half, unit) * unit);
}

std::int64_t VocabularySpareRows(const device::Stream& stream, std::int64_t slice) {
  if (!stream.OnGpu()) return 0;
  return CeilDivide(slice, kVocabularyUnit) * kVocabularyUnit - slice;
}

constexpr bool kCuda = TRIREME_CUDA != 0;

std::string WhyNoCudnn() {
  if constexpr (kCuda) return cuda::WhyNoCudnn();
  return "this program was built without CUDA";
}

std::string WhyNoFixedOrder(const device::Stream& stream, std::int64_t length) {
  if constexpr (kCuda) return cuda::WhyNoFixedOrder(stream, length);
  return "";
}

std::string GpuMathLibraries() {
  if constexpr (kCuda) return cuda::GpuMathLibraries();
  return "";
}

}  // namespace trireme::kernels
