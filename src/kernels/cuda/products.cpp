// Matrix products as cuBLASLt describes them, and the choice of their algorithms.
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <limits>

#include "libraries.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"
#include "trireme/device/cuda/check.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/libraries.hpp"

namespace trireme::kernels::cuda {

namespace {

const char* NameOf(cudaDataType_t type) {
  return type == CUDA_R_16BF      ? "bf16"
         : type == CUDA_R_64F     ? "fp64"
         : type == CUDA_R_8F_E4M3 ? "e4m3"
         : type == CUDA_R_8F_E5M2 ? "e5m2"
                                  : "fp32";
}

struct EpilogueFacts {
  const char* name;
  cublasLtEpilogue_t library;
};
const EpilogueFacts& FactsOf(Epilogue epilogue) {
  static constexpr EpilogueFacts kAll[] = {{"none", CUBLASLT_EPILOGUE_DEFAULT},
                                           {"bias", CUBLASLT_EPILOGUE_BIAS},
                                           {"relu", CUBLASLT_EPILOGUE_RELU},
                                           {"relu_bias", CUBLASLT_EPILOGUE_RELU_BIAS},
                                           {"gelu_aux", CUBLASLT_EPILOGUE_GELU_AUX},
                                           {"gelu_aux_bias", CUBLASLT_EPILOGUE_GELU_AUX_BIAS},
                                           {"dgelu", CUBLASLT_EPILOGUE_DGELU},
                                           // operand a is the library's second operand B (see Plan)
                                           {"sums_of_a", CUBLASLT_EPILOGUE_BGRADB},
                                           {"sums_of_b", CUBLASLT_EPILOGUE_BGRADA}};
  return kAll[static_cast<int>(epilogue)];
}

bool IsFp8(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

// Alignment of an address, at most 256 bytes, which the library assumes unless told otherwise.
std::uint32_t AlignmentOf(const void* address) {
  constexpr std::uintptr_t kEnough = 256;
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | kEnough;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

Layout MakeLayout(cudaDataType_t type, std::int64_t rows, std::int64_t columns,
                  std::int64_t stride) {
  cublasLtMatrixLayout_t layout = nullptr;
  Check(cublasLtMatrixLayoutCreate(&layout, type, static_cast<std::uint64_t>(rows),
                                   static_cast<std::uint64_t>(columns), stride),
        "the layout of a matrix");
  return Layout(layout);
}

Operation MakeOperation(const ProductKey& key) {
  const bool fp64 = key.a_type == CUDA_R_64F;
  cublasLtMatmulDesc_t description = nullptr;
  // COMPUTE_32F multiplies fp32 operands in full precision: TF32 would have to be requested.
  Check(cublasLtMatmulDescCreate(&description, fp64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                 fp64 ? CUDA_R_64F : CUDA_R_32F),
        "a matrix product");
  Operation operation(description);
  const auto transposition = [](Form form) {
    return form == Form::kPlain ? CUBLAS_OP_N : CUBLAS_OP_T;
  };
  Set(operation, CUBLASLT_MATMUL_DESC_TRANSA, transposition(key.b_form));
  Set(operation, CUBLASLT_MATMUL_DESC_TRANSB, transposition(key.a_form));
  Set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, FactsOf(key.epilogue).library);
  if (key.aux_stride > 0) Set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.aux_stride);
  if (key.fast_sums) Set(operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{1});
  return operation;
}

}  // namespace

cudaDataType_t TypeOf(Dtype dtype) {
  return dtype == Dtype::kBfloat16  ? CUDA_R_16BF
         : dtype == Dtype::kFloat64 ? CUDA_R_64F
                                    : CUDA_R_32F;
}

Product MakeProduct(Form form_a, const Matrix& a, Form form_b, const Matrix& b, const Matrix& c,
                    bool accumulate) {
  if (a.dtype != b.dtype || (c.dtype != a.dtype && c.dtype != SumTypeOf(a.dtype))) {
    throw RunError(fmt::format("a matrix product of {} and {} into {}", trireme::NameOf(a.dtype),
                               trireme::NameOf(b.dtype), trireme::NameOf(c.dtype)),
                   "This is a bug in Trireme.");
  }
  return MakeProduct({a.data, TypeOf(a.dtype), form_a, a.stride},
                     {b.data, TypeOf(b.dtype), form_b, b.stride}, c,
                     form_a == Form::kPlain ? a.columns : a.rows, accumulate);
}

Product MakeProduct(const Operand& a, const Operand& b, const Matrix& c, std::int64_t inner,
                    bool accumulate) {
  Product product;
  product.a = a, product.b = b;
  product.c = c.data, product.c_type = TypeOf(c.dtype), product.c_stride = c.stride;
  product.rows = c.rows, product.columns = c.columns, product.inner = inner;
  product.accumulate = accumulate;
  return product;
}

ProductKey::ProductKey(const Product& product)
    : a_type(product.a.type),
      b_type(product.b.type),
      c_type(product.c_type),
      a_form(product.a.form),
      b_form(product.b.form),
      rows(product.rows),
      columns(product.columns),
      inner(product.inner),
      a_stride(product.a.stride),
      b_stride(product.b.stride),
      c_stride(product.c_stride),
      aux_stride(product.aux_stride),
      a_aligned(AlignmentOf(product.a.data)),
      b_aligned(AlignmentOf(product.b.data)),
      c_aligned(AlignmentOf(product.c)),
      bias_aligned(AlignmentOf(product.bias)),
      aux_aligned(AlignmentOf(product.aux)),
      accumulate(product.accumulate),
      fast_sums(product.fast_sums),
      epilogue(product.epilogue) {}

std::string ProductKey::Text() const {
  const auto letter = [](Form form) { return form == Form::kPlain ? 'n' : 't'; };
  std::string text =
      fmt::format("{} x {} {} {}, {}{}, {} x {} x {}, strides {} {} {}, aligned {} {} {}",
                  cuda::NameOf(a_type), cuda::NameOf(b_type), accumulate ? "+>" : "->",
                  cuda::NameOf(c_type), letter(a_form), letter(b_form), rows, columns, inner,
                  a_stride, b_stride, c_stride, a_aligned, b_aligned, c_aligned);
  if (fast_sums) text += ", fast";
  if (epilogue != Epilogue::kNone) {
    text +=
        fmt::format(", {} {} {} {}", FactsOf(epilogue).name, bias_aligned, aux_stride, aux_aligned);
  }
  return text;
}

Plan::Plan(const Product& product) : key_(product), operation_(MakeOperation(key_)) {
  const auto layout = [](cudaDataType_t type, Form form, std::int64_t rows, std::int64_t columns,
                         std::int64_t stride) {
    return form == Form::kPlain ? MakeLayout(type, rows, columns, stride)
                                : MakeLayout(type, columns, rows, stride);
  };
  first_ = layout(key_.b_type, key_.b_form, key_.columns, key_.inner, key_.b_stride);
  second_ = layout(key_.a_type, key_.a_form, key_.inner, key_.rows, key_.a_stride);
  result_ = MakeLayout(key_.c_type, key_.columns, key_.rows, key_.c_stride);
  SetPointers(product);  // the library proposes algorithms according to the pointers' alignment
}

void Plan::SetPointers(const Product& product) const {
  if (product.bias != nullptr) Set(operation_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias);
  if (product.aux != nullptr) {
    Set(operation_, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, product.aux);
  }
  if (!IsFp8(key_.a_type)) return;
  Set(operation_, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.b.scale);
  Set(operation_, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.a.scale);
}

int Plan::Propose(cublasLtHandle_t handle, std::int64_t workspace, int most,
                  cublasLtMatmulHeuristicResult_t* proposals) const {
  cublasLtMatmulPreference_t created = nullptr;
  Check(cublasLtMatmulPreferenceCreate(&created), "a preference among algorithms");
  const Preference preference(created);
  Set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace));
  // If the library splits the inner dimension, a separate kernel must add the parts in fp32: not in
  // the order in which blocks finish, and without rounding to bf16 in between.
  Set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  Set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key_.b_aligned);
  Set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key_.a_aligned);
  Set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key_.c_aligned);
  Set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key_.c_aligned);
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle, operation_.get(), first_.get(), second_.get(), result_.get(), result_.get(),
      preference.get(), most, proposals, &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return 0;
  Check(status, "the choice of an algorithm");
  const auto usable = [](const auto& proposal) { return proposal.state == CUBLAS_STATUS_SUCCESS; };
  return static_cast<int>(std::stable_partition(proposals, proposals + count, usable) - proposals);
}

bool Plan::Admits(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
                  std::int64_t workspace) const {
  cublasLtMatmulHeuristicResult_t result{};
  return cublasLtMatmulAlgoCheck(handle, operation_.get(), first_.get(), second_.get(),
                                 result_.get(), result_.get(), &algorithm,
                                 &result) == CUBLAS_STATUS_SUCCESS &&
         static_cast<std::int64_t>(result.workspaceSize) <= workspace;
}

cublasStatus_t Plan::Run(cublasLtHandle_t handle, const device::GpuContext& gpu,
                         const Product& product, const cublasLtMatmulAlgo_t& algorithm,
                         bool trial) const {
  SetPointers(product);
  const auto run = [&](auto one) {
    const decltype(one) zero = 0;
    const decltype(one) factor =
        trial && key_.accumulate ? std::numeric_limits<decltype(one)>::min() : one;
    return cublasLtMatmul(handle, operation_.get(), &factor, product.b.data, first_.get(),
                          product.a.data, second_.get(), key_.accumulate ? &one : &zero, product.c,
                          result_.get(), product.c, result_.get(), &algorithm, gpu.workspace,
                          static_cast<std::size_t>(gpu.workspace_bytes),
                          static_cast<cudaStream_t>(gpu.queue));
  };
  return key_.a_type == CUDA_R_64F ? run(1.0) : run(1.0F);
}

// The table of chosen cuBLASLt algorithms, and its text form.

namespace {

using nlohmann::json;

constexpr int kProposals = 8;

Handle MakeHandle() {
  cublasLtHandle_t handle = nullptr;
  Check(cublasLtCreate(&handle), "opening cuBLASLt");
  return Handle(handle);
}

// Name of the kind of card: on cards of one kind the same algorithm computes the same bits.
std::string Card(const device::GpuContext& gpu) {
  return fmt::format("{}, {} multiprocessors", gpu.name, gpu.multiprocessors);
}

// An algorithm as text: cuBLASLt allows algorithms to be stored as bytes.
constexpr const char* kApart = "apart";  // no algorithm: the product runs without the epilogue

std::string ToText(const std::optional<cublasLtMatmulAlgo_t>& algorithm) {
  if (!algorithm) return kApart;
  std::string text;
  for (const std::uint64_t word : algorithm->data) text += fmt::format("{:016x}", word);
  return text;
}

// Returns false if ToText did not write `text`.
bool FromText(const std::string& text, std::optional<cublasLtMatmulAlgo_t>& result) {
  constexpr std::size_t kDigits = 16;
  cublasLtMatmulAlgo_t algorithm{};
  result.reset();
  if (text == kApart) return true;
  if (text.size() != kDigits * std::size(algorithm.data) ||
      text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return false;
  }
  for (std::size_t i = 0; i < std::size(algorithm.data); ++i) {
    algorithm.data[i] = std::stoull(text.substr(i * kDigits, kDigits), nullptr, 16);
  }
  result = algorithm;
  return true;
}

bool IsCaptured(const device::Stream& stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  device::cuda::Check(cudaStreamIsCapturing(device::cuda::Queue(stream), &status),
                      "the state of a queue");
  return status != cudaStreamCaptureStatusNone;
}

// Timing of the algorithms that cuBLASLt proposes for a product.

// A later proposal replaces an earlier one only if it takes less than this fraction of the time:
// smaller differences are mostly noise, and repeated runs should choose alike.
constexpr double kClearlyFaster = 0.95;
constexpr int kLeastRuns = 4, kMostRuns = 16;  // timed together, after an untimed one
constexpr double kRunsSeconds = 1e-3;          // with runs longer than this, only kLeastRuns
// Before timed runs the GPU gets other work for this long, while the host queues all of the runs: a
// short product takes the GPU less time than the call takes the host.
constexpr double kLeadSeconds = 250e-6;

class Stopwatch {
 public:
  explicit Stopwatch(const device::Stream& stream)
      : libraries_(LibrariesOf(stream)),
        queue_(stream.gpu->queue),
        begin_(stream, true),
        end_(stream, true) {}
  // Seconds that the GPU takes for the work that `queue_work` queues.
  template <typename QueueWork>
  double Seconds(const QueueWork& queue_work) {
    begin_.Record(queue_);
    queue_work();
    end_.Record(queue_);
    libraries_ != nullptr ? libraries_->Await(end_) : end_.Await();
    return end_.SecondsSince(begin_);
  }

 private:
  const Libraries* libraries_;
  void* queue_;
  device::Event begin_, end_;
};

// Number of runs to time together, given the seconds of one.
int RunsFor(double seconds) {
  const double once = std::max(seconds, std::numeric_limits<double>::min());
  return std::clamp(static_cast<int>(std::min(kRunsSeconds / once, double{kMostRuns})), kLeastRuns,
                    kMostRuns);
}

// Average seconds of one run of what a call queues. Before the runs the GPU writes zeros to the
// library's workspace (whose contents nobody needs) for about kLeadSeconds, in pieces that cost the
// host far less time than the GPU.
class Timing {
 public:
  explicit Timing(const device::Stream& stream) : stream_(stream), stopwatch_(stream) {
    constexpr int kPieces = 8, kMostPieces = 64;
    const std::int64_t room = stream.gpu->workspace_bytes;
    bytes_ = std::min(std::int64_t{1} << 20, room);
    QueuePiece();  // the first call may load code
    double seconds = stopwatch_.Seconds([&] { QueuePiece(); });
    while (bytes_ < room && 4 * bytes_ <= room && seconds < kLeadSeconds / kPieces) {
      bytes_ *= 4;
      seconds = stopwatch_.Seconds([&] { QueuePiece(); });
    }
    pieces_ = static_cast<int>(std::clamp(kLeadSeconds / seconds, 1.0, double{kMostPieces}));
  }
  template <typename Run>
  double Seconds(const Run& run, int runs) {
    run();  // the first call may load code
    for (int i = 0; i < pieces_; ++i) QueuePiece();
    return stopwatch_.Seconds([&] {
      for (int i = 0; i < runs; ++i) run();
    }) / runs;
  }

 private:
  void QueuePiece() const { device::SetZero(stream_, stream_.gpu->workspace, bytes_); }

  const device::Stream& stream_;
  Stopwatch stopwatch_;
  std::int64_t bytes_ = 0;
  int pieces_ = 1;
};

// Returns the fastest proposed algorithm, timed on the real operands: product.c is overwritten if
// the product overwrites it, unchanged if it accumulates (Plan::Run). Allocates no memory. Waits
// for work queued before.
const cublasLtMatmulAlgo_t& Fastest(const device::Stream& stream, cublasLtHandle_t handle,
                                    const Plan& plan, const Product& product,
                                    std::span<const cublasLtMatmulHeuristicResult_t> proposals) {
  Timing timing(stream);
  // Average seconds of one run; infinite if the library refuses the algorithm.
  const auto seconds = [&](const cublasLtMatmulAlgo_t& algorithm, int runs) {
    const auto run = [&] {
      return plan.Run(handle, *stream.gpu, product, algorithm, /*trial=*/true);
    };
    if (run() != CUBLAS_STATUS_SUCCESS) return std::numeric_limits<double>::infinity();
    return timing.Seconds([&] { Check(run(), "timing a matrix product"); }, runs);
  };
  const cublasLtMatmulHeuristicResult_t* best = &proposals[0];
  const int runs = RunsFor(seconds(best->algo, 1));
  double shortest = seconds(best->algo, runs);
  for (const auto& proposal : proposals.subspan(1)) {
    const double time = seconds(proposal.algo, runs);
    if (time >= kClearlyFaster * shortest) continue;
    shortest = time;
    best = &proposal;
  }
  return best->algo;
}

// Whether `apart` takes the GPU clearly less time than the product with this algorithm.
bool FasterApart(const device::Stream& stream, cublasLtHandle_t handle, const Plan& plan,
                 const Product& product, const cublasLtMatmulAlgo_t& algorithm,
                 FunctionRef<void()> apart) {
  Timing timing(stream);
  const auto together = [&] {
    Check(plan.Run(handle, *stream.gpu, product, algorithm, /*trial=*/true),
          "timing a matrix product");
  };
  apart();  // the first call may choose an algorithm of its own
  const int runs = RunsFor(timing.Seconds(together, 1));
  return timing.Seconds(apart, runs) < kClearlyFaster * timing.Seconds(together, runs);
}

// Whether the epilogue's sums of an operand have the same bits in several runs on the real
// operands.
bool Repeats(const device::Stream& stream, cublasLtHandle_t handle, const Plan& plan,
             const Product& product, const cublasLtMatmulAlgo_t& algorithm) {
  constexpr int kTimes = 4;
  const std::int64_t count =
      product.epilogue == Epilogue::kSumsOfA ? product.rows : product.columns;
  std::array<std::vector<float>, kTimes> sums;  // these epilogues always sum in fp32
  for (std::vector<float>& each : sums) {
    each.resize(static_cast<std::size_t>(count));
    const bool ran =
        plan.Run(handle, *stream.gpu, product, algorithm, /*trial=*/true) == CUBLAS_STATUS_SUCCESS;
    if (!ran) return false;
    Stopwatch(stream).Seconds([] {});  // waits as timed products do
    device::CopyOut(stream, product.bias, each.data(), count * std::int64_t{sizeof(float)});
  }
  return std::ranges::all_of(sums, [&](const std::vector<float>& each) {
    return std::memcmp(each.data(), sums[0].data(), each.size() * sizeof(float)) == 0;
  });
}

}  // namespace

Algorithms::Algorithms(const device::GpuContext& gpu) : gpu_(gpu), handle_(MakeHandle()) {}

const Algorithms::Choice& Algorithms::ChoiceOf(const device::Stream& stream, const Product& product,
                                               const FunctionRef<void()>* apart) {
  const auto at = choices_.find(ProductKey(product));
  if (at != choices_.end()) return at->second;
  Choice choice = Choose(stream, product, apart);
  const ProductKey key = choice.plan.Key();
  return choices_.emplace(key, std::move(choice)).first->second;
}

void Algorithms::Try(const device::Stream& stream, const Product& product) {
  const Choice& choice = ChoiceOf(stream, product, nullptr);
  if (!choice.algorithm) return;
  Check(choice.plan.Run(handle_.get(), gpu_, product, *choice.algorithm, /*trial=*/true),
        "timing a matrix product");
}

bool Algorithms::Run(const device::Stream& stream, const Product& product,
                     const FunctionRef<void()>* apart) {
  const Choice& choice = ChoiceOf(stream, product, apart);
  if (!choice.algorithm) return false;
  const cublasStatus_t status =
      choice.plan.Run(handle_.get(), gpu_, product, *choice.algorithm, /*trial=*/false);
  if (status != CUBLAS_STATUS_SUCCESS) {
    Check(status, ("the matrix product " + choice.plan.Key().Text()).c_str());
  }
  return true;
}

// What kept algorithms depend on: the library's version and the workspace's size (an algorithm may
// need all of it), and the alternatives that were timed.
std::string Algorithms::Library() const {
  return fmt::format("cuBLASLt {}, workspace {}, GELU apart too", cublasLtGetVersion(),
                     gpu_.workspace_bytes);
}

// The algorithm that `kept` holds for the product. Null if there is none, or if the library does
// not admit it (damaged text, or text of another build): then one warning per rank is printed.
const Algorithms::Algorithm* Algorithms::FindKept(const Plan& plan, const Kept& kept) {
  const std::string text = plan.Key().Text();
  const auto at = kept.find(text);
  if (at == kept.end()) return nullptr;
  const bool apart = !at->second && plan.Key().epilogue != Epilogue::kNone;
  if (apart || (at->second && plan.Admits(handle_.get(), *at->second, gpu_.workspace_bytes))) {
    return &at->second;
  }
  if (!std::exchange(warned_, true)) {
    fmt::print(stderr,
               "warning: the algorithm kept for the matrix product {} does not fit it: another is "
               "chosen, which may round otherwise (run.products)\n",
               text);
    std::fflush(stderr);
  }
  return nullptr;
}

Algorithms::Choice Algorithms::Choose(const device::Stream& stream, const Product& product,
                                      const FunctionRef<void()>* apart) {
  Choice choice{Plan(product), std::nullopt};
  if (const Algorithm* const kept = FindKept(choice.plan, kept_)) {
    choice.algorithm = *kept;
    return choice;
  }
  std::array<cublasLtMatmulHeuristicResult_t, kProposals> proposals{};
  const int count =
      choice.plan.Propose(handle_.get(), gpu_.workspace_bytes, kProposals, proposals.data());
  choice.known = count > 0;
  if (count == 0) return choice;
  choice.algorithm = proposals[0].algo;
  if (sealed_ || IsCaptured(stream)) {
    if (SumsOperand(product.epilogue)) choice.algorithm.reset();
    return choice;
  }
  if (count > 1) {
    choice.algorithm = Fastest(stream, handle_.get(), choice.plan, product,
                               std::span(proposals).first(static_cast<std::size_t>(count)));
  }
  if (SumsOperand(product.epilogue) &&
      !Repeats(stream, handle_.get(), choice.plan, product, *choice.algorithm)) {
    choice.algorithm.reset();
    return choice;
  }
  if (apart != nullptr &&
      FasterApart(stream, handle_.get(), choice.plan, product, *choice.algorithm, *apart)) {
    choice.algorithm.reset();
  }
  return choice;
}

std::string Algorithms::Chosen() const {
  Kept all = kept_;
  for (const auto& [key, choice] : choices_) {
    if (choice.known) all.insert_or_assign(key.Text(), choice.algorithm);
  }
  json products = json::array();
  for (const auto& [text, algorithm] : all) {
    products.push_back({{"product", text}, {"algorithm", ToText(algorithm)}});
  }
  return json{{"card", Card(gpu_)}, {"library", Library()}, {"products", products}}.dump(1);
}

// Adds to `kept` the algorithms of `text` that it lacks. Returns false if the text is of another
// card or library, or not valid.
bool Algorithms::Read(const std::string& text, Kept& kept) const {
  try {
    const json chosen = json::parse(text);
    if (chosen.at("card") != Card(gpu_) || chosen.at("library") != Library()) return false;
    for (const json& product : chosen.at("products")) {
      Algorithm algorithm;
      if (!FromText(product.at("algorithm").get<std::string>(), algorithm)) return false;
      kept.emplace(product.at("product").get<std::string>(), algorithm);
    }
  } catch (const json::exception&) {
    return false;
  }
  return true;
}

bool Algorithms::Adopt(const std::vector<std::string>& texts) {
  Kept kept;
  for (const std::string& text : texts) {
    if (!Read(text, kept)) return false;
  }
  for (auto& [key, choice] : choices_) {
    if (const Algorithm* const taken = FindKept(choice.plan, kept)) {
      choice.algorithm = *taken, choice.known = true;
    }
  }
  kept.merge(kept_);  // algorithms adopted earlier stay, unless these texts replace them
  kept_ = std::move(kept);
  return true;
}

}  // namespace trireme::kernels::cuda
