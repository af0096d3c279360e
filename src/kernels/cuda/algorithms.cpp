// The table of cuBLASLt's algorithms, and its text.
#include "cuda/algorithms.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <utility>

#include "trireme/base/json.hpp"
#include "trireme/device/cuda/check.hpp"

namespace trireme::kernels::cuda {

namespace {

using nlohmann::json;

constexpr int kProposals = 8;

Handle MakeHandle() {
  cublasLtHandle_t handle = nullptr;
  Check(cublasLtCreate(&handle), "opening cuBLASLt");
  return Handle(handle);
}

// The kind of card on which the same algorithm computes the same bits.
std::string Card(const device::GpuContext& gpu) {
  return fmt::format("{}, {} multiprocessors", gpu.name, gpu.multiprocessors);
}

// cuBLASLt's algorithms can be kept as the bytes they are.
constexpr const char* kApart = "apart";  // no algorithm: without the epilogue

std::string ToText(const std::optional<cublasLtMatmulAlgo_t>& algorithm) {
  if (!algorithm) return kApart;
  std::string text;
  for (const std::uint64_t word : algorithm->data) text += fmt::format("{:016x}", word);
  return text;
}

// False: `text` is none of ToText.
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

}  // namespace

Algorithms::Algorithms(const device::GpuContext& gpu) : gpu_(gpu), handle_(MakeHandle()) {}

bool Algorithms::Run(const device::Stream& stream, const Product& product,
                     const FunctionRef<void()>* apart) {
  auto at = choices_.find(ProductKey(product));
  if (at == choices_.end()) {
    Choice choice = Choose(stream, product, apart);
    const ProductKey key = choice.plan.Key();
    at = choices_.emplace(key, std::move(choice)).first;
  }
  const Choice& choice = at->second;
  if (!choice.algorithm) return false;
  const cublasStatus_t status =
      choice.plan.Run(handle_.get(), gpu_, product, *choice.algorithm, /*trial=*/false);
  if (status != CUBLAS_STATUS_SUCCESS) {
    Check(status, ("the matrix product " + choice.plan.Key().Text()).c_str());
  }
  return true;
}

// Library and workspace that an algorithm is kept for: one chosen with more workspace may need it.
// Last come the alternatives that were timed.
std::string Algorithms::Library() const {
  return fmt::format("cuBLASLt {}, workspace {}, GELU apart too", cublasLtGetVersion(),
                     gpu_.workspace_bytes);
}

// The choice that `kept` has for the product; null, with one warning per rank, if the library does
// not admit it: the text may be damaged, or have been written by another build.
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
  if (sealed_ || IsCaptured(stream)) return choice;
  if (count > 1) {
    choice.algorithm = Fastest(stream, handle_.get(), choice.plan, product,
                               std::span(proposals).first(static_cast<std::size_t>(count)));
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

// Adds algorithms of `text` that `kept` lacks. False if it is of another card or library, or no
// text.
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
  kept.merge(kept_);  // algorithms adopted before stay, unless these texts have them
  kept_ = std::move(kept);
  return true;
}

}  // namespace trireme::kernels::cuda
