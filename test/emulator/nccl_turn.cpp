// NcclTurn: a queue of the operations that have not begun, or not ended.
#include "nccl_turn.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>

#include "cuda_runtime.h"
#include "nccl.h"
#include "settings.hpp"
#include "stream.hpp"

namespace emulator {

struct NcclTurn::Place {
  std::string name;
  bool begun = false, ended = false;
  Patience patience;
};

namespace {

std::deque<std::weak_ptr<void>>& Places() {
  static std::deque<std::weak_ptr<void>> places;
  return places;
}

BeginOrder FindOrder(bool in_graph) {
  constexpr int kFirstNccl = 22600, kFirstEvents = 12030, kFirstInGraphs = 12090;
  const char* const asked = std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
  constexpr int kBuiltWith = 12090;
  int nccl = 0, driver = 0;
  ncclGetVersion(&nccl);
  cudaDriverGetVersion(&driver);
  const auto built_with = static_cast<int>(Number("TRIREME_EMULATOR_NCCL_CUDA", kBuiltWith));
  if (asked == nullptr || std::strcmp(asked, "0") == 0 || nccl < kFirstNccl) {
    return BeginOrder::kAny;
  }
  if (in_graph && driver < kFirstInGraphs) return BeginOrder::kSerial;
  return driver < kFirstEvents || built_with < kFirstEvents ? BeginOrder::kSerial
                                                            : BeginOrder::kLaunched;
}

}  // namespace

BeginOrder OrderOfBegins(bool in_graph) {
  static const BeginOrder outside = FindOrder(false), inside = FindOrder(true);
  return in_graph ? inside : outside;
}

std::chrono::seconds Patience::Limit() {
  static const std::chrono::seconds limit(Number("TRIREME_EMULATOR_PATIENCE", 100));
  return limit;
}

bool Patience::Over(std::chrono::seconds limit) {
  using Clock = std::chrono::steady_clock;
  if (since_ == Clock::time_point()) since_ = Clock::now();
  return Clock::now() - since_ > limit;
}

NcclTurn::NcclTurn(std::string name) : place_(std::make_shared<Place>()) {
  place_->name = std::move(name);
  Places().push_back(place_);
}

bool NcclTurn::Come() {
  if (place_ == nullptr) return true;
  auto& places = Places();
  const bool serial = OrderOfBegins(false) == BeginOrder::kSerial;
  while (!places.empty()) {
    const auto first = std::static_pointer_cast<Place>(places.front().lock());
    if (first == place_) return true;
    if (first != nullptr && !(serial ? first->ended : first->begun)) break;
    places.pop_front();
  }
  if (places.empty()) return true;
  if (!place_->patience.Over()) return false;
  const auto first = std::static_pointer_cast<Place>(places.front().lock());
  Die(fmt::format(
      "{} has waited for {} s to begin: {}, which the host launched before, has not {} "
      "(NCCL_LAUNCH_ORDER_IMPLICIT)",
      place_->name, Patience::Limit().count(), first->name, !first->begun ? "begun" : "ended"));
}

void NcclTurn::Begin() {
  if (place_ != nullptr) place_->begun = true;
}

void NcclTurn::End() {
  if (place_ != nullptr) place_->begun = place_->ended = true;
}

}  // namespace emulator
