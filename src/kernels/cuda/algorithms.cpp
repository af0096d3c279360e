// The table of algorithms, and its text.
#include "cuda/algorithms.hpp"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "trireme/base/error.hpp"
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

std::string Library() { return fmt::format("cuBLASLt {}", cublasLtGetVersion()); }

// The kind of card on which the same algorithm computes the same bits.
std::string Card(const device::GpuContext& gpu) {
  return fmt::format("{}, {} multiprocessors", gpu.name, gpu.multiprocessors);
}

// cuBLASLt's algorithms can be kept as the bytes they are.
std::string ToText(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text;
  for (const std::uint64_t word : algorithm.data) text += fmt::format("{:016x}", word);
  return text;
}

std::optional<cublasLtMatmulAlgo_t> FromText(const std::string& text) {
  constexpr std::size_t kDigits = 16;
  cublasLtMatmulAlgo_t algorithm{};
  if (text.size() != kDigits * std::size(algorithm.data) ||
      text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i < std::size(algorithm.data); ++i) {
    algorithm.data[i] = std::stoull(text.substr(i * kDigits, kDigits), nullptr, 16);
  }
  return algorithm;
}

bool IsCaptured(const device::Stream& stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  device::cuda::Check(cudaStreamIsCapturing(device::cuda::Queue(stream), &status),
                      "the state of a queue");
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace

Algorithms::Algorithms(const device::GpuContext& gpu) : gpu_(gpu), handle_(MakeHandle()) {}

bool Algorithms::Run(const device::Stream& stream, const Product& product) {
  auto at = choices_.find(ProductKey(product));
  if (at == choices_.end()) {
    Choice choice = Choose(stream, product);
    const ProductKey key = choice.plan.Key();
    at = choices_.emplace(key, std::move(choice)).first;
  }
  const Choice& choice = at->second;
  if (!choice.algorithm) return false;
  const cublasStatus_t status =
      choice.plan.Run(handle_.get(), gpu_, product, *choice.algorithm, product.c);
  if (status != CUBLAS_STATUS_SUCCESS) {
    Check(status, ("the matrix product " + choice.plan.Key().Text()).c_str());
  }
  return true;
}

Algorithms::Choice Algorithms::Choose(const device::Stream& stream, const Product& product) const {
  Choice choice{Plan(product), std::nullopt};
  if (const auto kept = kept_.find(choice.plan.Key().Text()); kept != kept_.end()) {
    if (!choice.plan.Admits(handle_.get(), kept->second, gpu_.workspace_bytes)) {
      throw RunError(
          fmt::format("the algorithm kept for the matrix product {} does not fit it", kept->first),
          "Its text is damaged: remove the file of run.products, or continue from another "
          "checkpoint.");
    }
    choice.algorithm = kept->second;
    return choice;
  }
  std::array<cublasLtMatmulHeuristicResult_t, kProposals> proposals{};
  const int count =
      choice.plan.Propose(handle_.get(), gpu_.workspace_bytes, kProposals, proposals.data());
  if (count == 0) return choice;
  const bool known = sealed_ || count == 1 || IsCaptured(stream);
  choice.algorithm = known ? proposals[0].algo
                           : Fastest(stream, handle_.get(), choice.plan, product,
                                     std::span(proposals).first(static_cast<std::size_t>(count)));
  return choice;
}

std::string Algorithms::Chosen() const {
  Kept all = kept_;
  for (const auto& [key, choice] : choices_) {
    if (choice.algorithm) all.insert_or_assign(key.Text(), *choice.algorithm);
  }
  json products = json::array();
  for (const auto& [text, algorithm] : all) {
    products.push_back({{"product", text}, {"algorithm", ToText(algorithm)}});
  }
  return json{{"card", Card(gpu_)}, {"library", Library()}, {"products", products}}.dump(1);
}

// Adds what `text` has and `kept` has not. False where it is another card's or library's, or none.
bool Algorithms::Read(const std::string& text, Kept& kept) const {
  try {
    const json chosen = json::parse(text);
    if (chosen.at("card") != Card(gpu_) || chosen.at("library") != Library()) return false;
    for (const json& product : chosen.at("products")) {
      const auto algorithm = FromText(product.at("algorithm").get<std::string>());
      if (!algorithm) return false;
      kept.emplace(product.at("product").get<std::string>(), *algorithm);
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
  std::vector<std::pair<Choice*, const cublasLtMatmulAlgo_t*>> changes;
  for (auto& [key, choice] : choices_) {
    const auto at = kept.find(key.Text());
    if (at == kept.end()) continue;
    if (!choice.plan.Admits(handle_.get(), at->second, gpu_.workspace_bytes)) return false;
    changes.emplace_back(&choice, &at->second);
  }
  for (const auto& [choice, algorithm] : changes) choice->algorithm = *algorithm;
  kept.merge(kept_);  // what was adopted before and is not in these texts stays
  kept_ = std::move(kept);
  return true;
}

}  // namespace trireme::kernels::cuda
