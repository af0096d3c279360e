// NVML: energy, utilisation and memory of cards, by a library that is loaded if it is there.
#include <dlfcn.h>
#include <fmt/format.h>

#include <memory>

#include "counter.hpp"
#include "nvml_api.hpp"
#include "trireme/base/clock.hpp"

namespace trireme::report {

namespace {

// The library, opened and started; its functions.
class Nvml {
 public:
  // Why() says what failed; empty: nothing.
  explicit Nvml(const std::string& path) : library_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) {
      const char* const reason = dlerror();
      why_ = reason == nullptr ? path : reason;
      return;
    }
    Find("nvmlInit_v2", init_);
    Find("nvmlShutdown", shutdown_);
    Find("nvmlErrorString", error_string_);
    Find("nvmlDeviceGetHandleByUUID", handle_by_uuid);
    Find("nvmlDeviceGetTotalEnergyConsumption", total_energy);
    Find("nvmlDeviceGetPowerUsage", power);
    Find("nvmlDeviceGetUtilizationRates", utilization_rates);
    Find("nvmlDeviceGetMemoryInfo", memory_info);
    if (!why_.empty()) return;
    const int result = init_();
    started_ = result == kNvmlSuccess;
    if (!started_) why_ = fmt::format("{}: {}", path, ErrorText(result));
  }
  ~Nvml() {
    if (started_) shutdown_();
    if (library_ != nullptr) dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  const std::string& Why() const { return why_; }
  std::string ErrorText(int result) const {
    const char* const text = error_string_(result);
    return text == nullptr ? fmt::format("error {}", result) : text;
  }

  NvmlHandleByUuid handle_by_uuid = nullptr;
  NvmlTotalEnergy total_energy = nullptr;
  NvmlPower power = nullptr;
  NvmlUtilizationRates utilization_rates = nullptr;
  NvmlMemoryInfo memory_info = nullptr;

 private:
  template <typename Function>
  void Find(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    if (function == nullptr && why_.empty()) why_ = fmt::format("the library lacks {}", name);
  }

  void* library_;
  NvmlInit init_ = nullptr;
  NvmlShutdown shutdown_ = nullptr;
  NvmlErrorString error_string_ = nullptr;
  bool started_ = false;
  std::string why_;
};

class NvmlCard : public Card {
 public:
  NvmlCard(std::shared_ptr<const Nvml> nvml, NvmlDevice device)
      : nvml_(std::move(nvml)), device_(device) {
    unsigned long long ignored = 0;
    counts_ = nvml_->total_energy(device_, &ignored) == kNvmlSuccess;
  }

  // Cards without a counter: their power, summed over the times between readings.
  std::optional<double> Read() override {
    if (counts_) {
      unsigned long long millijoules = 0;
      if (nvml_->total_energy(device_, &millijoules) != kNvmlSuccess) return std::nullopt;
      return 1e-3 * static_cast<double>(millijoules);
    }
    unsigned int milliwatts = 0;
    if (nvml_->power(device_, &milliwatts) != kNvmlSuccess) return std::nullopt;
    const double now = Seconds(), watts = 1e-3 * milliwatts;
    if (last_ > 0) joules_ += 0.5 * (watts + watts_) * (now - last_);
    last_ = now;
    watts_ = watts;
    return joules_;
  }

  std::optional<CardState> Look() override {
    NvmlUtilization rates{};
    NvmlMemory memory{};
    if (nvml_->utilization_rates(device_, &rates) != kNvmlSuccess ||
        nvml_->memory_info(device_, &memory) != kNvmlSuccess) {
      return std::nullopt;
    }
    return CardState{0.01 * std::min(rates.gpu, 100U), static_cast<double>(memory.used)};
  }

 private:
  std::shared_ptr<const Nvml> nvml_;
  NvmlDevice device_;
  bool counts_ = false;
  double joules_ = 0, last_ = 0, watts_ = 0;
};

// "GPU-01234567-89ab-..." of 32 hexadecimal digits.
std::string Uuid(const char* kind, const std::string& digits) {
  std::string text = kind;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i == 8 || i == 12 || i == 16 || i == 20) text += '-';
    text += digits[i];
  }
  return text;
}

}  // namespace

void FindCards(const Places& places, const std::vector<std::string>& cards, Counters& counters) {
  if (cards.empty()) return;
  const auto nvml = std::make_shared<const Nvml>(places.nvml);
  if (!nvml->Why().empty()) {
    counters.why.push_back("GPUs: " + nvml->Why());
    return;
  }
  for (const std::string& digits : cards) {
    NvmlDevice device = nullptr;
    const int result = nvml->handle_by_uuid(Uuid("GPU-", digits).c_str(), &device);
    std::string why;
    if (result != kNvmlSuccess) {
      const bool part = nvml->handle_by_uuid(Uuid("MIG-", digits).c_str(), &device) == kNvmlSuccess;
      why = part ? "a part of a card (MIG), whose energy nobody counts" : nvml->ErrorText(result);
    } else {
      auto card = std::make_unique<NvmlCard>(nvml, device);
      if (card->Read()) {
        counters.cards.push_back(std::move(card));
        continue;
      }
      why = "neither energy nor power can be read";
    }
    // Without one of its cards a node's sum would be short.
    counters.cards.clear();
    counters.why.push_back(fmt::format("GPUs: {}: {}", Uuid("GPU-", digits), why));
    return;
  }
  counters.parts |= kCards;
}

}  // namespace trireme::report
