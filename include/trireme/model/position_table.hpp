// The fixed table of positions: the angles of rotary ones, or sinusoidal ones.
#ifndef TRIREME_MODEL_POSITION_TABLE_HPP_
#define TRIREME_MODEL_POSITION_TABLE_HPP_

#include <cstdint>

#include "trireme/device/arena.hpp"
#include "trireme/model/plan.hpp"
#include "trireme/model/rope_angles.hpp"
#include "trireme/kernels/matrix.hpp"

namespace trireme::model {

class PositionTable {
 public:
  // Takes the memory and fills it.
  PositionTable(const ModelPlan& plan, const StagePlan& local, const device::Stream& stream);
  std::int64_t Bytes() const { return device::BytesOf(storage_); }  // 0: this rank needs no table

  // Empty() unless the model has this kind of positions, and this rank needs them.
  const kernels::Matrix& Rotary() const { return rotary_; }          // [length, head_dim]
  const kernels::Matrix& Sinusoidal() const { return sinusoidal_; }  // [length, dim]

 private:
  void Fill(const kernels::Matrix& table) const;

  device::Stream stream_;
  bool rope_;
  RopeAngles angles_;  // of rotary positions
  Dtype sums_, type_;  // of the computation; of the table as it is kept
  std::int64_t length_, columns_ = 0;
  device::Buffer storage_;
  kernels::Matrix rotary_, sinusoidal_;
};

}  // namespace trireme::model

#endif  // TRIREME_MODEL_POSITION_TABLE_HPP_
