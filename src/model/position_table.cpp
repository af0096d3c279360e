// PositionTable: computed once on the host, in the type of sums, and rounded if kept in 16 bits.
#include "trireme/model/position_table.hpp"

#include <algorithm>
#include <vector>

#include "trireme/base/bfloat16.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/embedding.hpp"

namespace trireme::model {

PositionTable::PositionTable(const ModelPlan& plan, const StagePlan& local,
                             const device::Stream& stream)
    : stream_(stream),
      rope_(plan.options.position == Position::kRope),
      sums_(SumTypeOf(plan.dtype)),
      type_(rope_ ? sums_ : plan.dtype),
      length_(plan.length) {
  if (rope_) {
    columns_ = plan.options.head_dim;
    angles_ = RopeAnglesOf(plan.options);
  }
  // Sinusoidal positions go with the embedding.
  if (plan.options.position == Position::kSinusoidal && local.First()) columns_ = plan.options.dim;
  if (columns_ == 0) return;
  storage_ = device::AllocateZeroed(length_ * columns_ * static_cast<std::int64_t>(SizeOf(type_)),
                                    stream_.Where());
  const kernels::Matrix table{storage_.get(), type_, length_, columns_, columns_};
  (rope_ ? rotary_ : sinusoidal_) = table;
  if (!stream_.Planned()) Fill(table);
}

void PositionTable::Fill(const kernels::Matrix& there) const {
  const std::int64_t bytes = there.Size() * static_cast<std::int64_t>(SizeOf(type_));
  kernels::Matrix table = there;
  const device::Buffer made =
      device::AllocateZeroed(table.Size() * static_cast<std::int64_t>(SizeOf(sums_)));
  table.data = made.get();
  table.dtype = sums_;
  if (rope_) {
    kernels::RopeTable(angles_.frequencies, angles_.magnitude, table);
  } else {
    kernels::SinusoidalPositions(table);
  }
  if (type_ == sums_) return device::CopyIn(stream_, made.get(), there.data, bytes);
  std::vector<std::uint16_t> rounded(static_cast<std::size_t>(table.Size()));
  std::transform(table.As<float>(), table.As<float>() + table.Size(), rounded.begin(),
                 RoundToBfloat16);
  device::CopyIn(stream_, rounded.data(), there.data, bytes);
}

}  // namespace trireme::model
