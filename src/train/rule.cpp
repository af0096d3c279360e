// Rule: moments and their memory; and the choice of a rule.
#include "trireme/train/rule.hpp"

#include "rules.hpp"
#include "trireme/base/error.hpp"

namespace trireme::train {

Rule::Rule(const kernels::Registry& registry, const device::Stream& stream,
           const std::vector<std::string>& prefixes)
    : stream_(stream), dtype_(registry.SumType()) {
  const auto size = static_cast<std::int64_t>(SizeOf(dtype_));
  for (const std::string& prefix : prefixes) {
    moments_.push_back(
        {prefix, device::AllocateZeroed(registry.Owns().moments * size, stream.Where())});
  }
}

void* Rule::MomentAt(std::size_t which, std::int64_t element) const {
  return ElementAt(moments_.at(which).storage.get(), dtype_, element);
}

std::int64_t Rule::Bytes() const {
  std::int64_t bytes = 0;
  for (const Moment& moment : moments_) bytes += device::BytesOf(moment.storage);
  return bytes;
}

std::unique_ptr<Rule> MakeRule(const OptimizerOptions& options, const std::vector<OwnedParameter>& owned,
                               const kernels::Registry& registry, const device::Stream& stream) {
  switch (options.kind) {
    case OptimizerKind::kAdamW:
      return std::make_unique<AdamW>(options, owned, registry, stream);
    case OptimizerKind::kSgd:
      return std::make_unique<Sgd>(options, owned, registry, stream);
  }
  throw RunError("an optimizer without a rule", "This is a bug in Trireme.");
}

bool NeedsWholeParameters(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kAdamW:
    case OptimizerKind::kSgd:
      return false;  // element by element
  }
  return false;
}

}  // namespace trireme::train
