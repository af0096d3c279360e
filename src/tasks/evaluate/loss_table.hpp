// Sums of losses by row, a document or a question's choice, over ranks that hold parts of them: the
// same bits in any layout.
#ifndef TRIREME_SRC_TASKS_EVALUATE_LOSS_TABLE_HPP_
#define TRIREME_SRC_TASKS_EVALUATE_LOSS_TABLE_HPP_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/comm/communicator.hpp"

namespace trireme::tasks {

class LossTable {
 public:
  explicit LossTable(std::int64_t rows) : sums_(static_cast<std::size_t>(rows) * kWords) {}

  std::int64_t Rows() const { return std::ssize(sums_) / static_cast<std::int64_t>(kWords); }

  // Adds a target's loss in nats, rounded to a multiple of 2^-56.
  void Add(std::int64_t row, double loss);
  void AddBytes(std::int64_t row, std::int64_t bytes) { At(row, kBytes) += Double(bytes); }

  // Collective. Adds up the ranks' tables; afterwards all hold the whole.
  void Sum(const comm::Communicator& world);

  double Nats(std::int64_t row) const;
  std::int64_t Targets(std::int64_t row) const { return Whole(row, kTargets); }
  std::int64_t Bytes(std::int64_t row) const { return Whole(row, kBytes); }

 private:
  // A row: its losses in three integers, of units of 2^-10, 2^-33 and 2^-56, which add up in
  // doubles without rounding for up to 2^30 targets of losses below 2^13.
  enum Word : std::size_t { kHigh, kMiddle, kLow, kTargets, kBytes, kWords };

  static double Double(std::int64_t value) { return static_cast<double>(value); }
  double& At(std::int64_t row, Word word) {
    return sums_[static_cast<std::size_t>(row) * kWords + word];
  }
  double Of(std::int64_t row, Word word) const {
    return sums_[static_cast<std::size_t>(row) * kWords + word];
  }
  std::int64_t Whole(std::int64_t row, Word word) const {
    return static_cast<std::int64_t>(Of(row, word));
  }

  std::vector<double> sums_;  // [rows, kWords]
};

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_EVALUATE_LOSS_TABLE_HPP_
