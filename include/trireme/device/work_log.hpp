// WorkLog: told what a planned rank computes and transfers, in the order of its program.
#ifndef TRIREME_DEVICE_WORK_LOG_HPP_
#define TRIREME_DEVICE_WORK_LOG_HPP_

#include <cstdint>

#include "trireme/base/dtype.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::device {

// A transfer of a planned group. Numbers of enumerations as in Slice.
struct LoggedTransfer {
  std::int8_t group = 0, transfer = 0, payload = 0;  // comm::Group, comm::Transfer, comm::Payload
  int ranks = 1;                                     // of the group
  std::int64_t bytes = 0;                            // comm::Traffic::payload
  int peer = -1, tag = -1;                           // of a message; peer: rank in the group
};

class WorkLog {
 public:
  WorkLog() = default;
  WorkLog(const WorkLog&) = delete;
  WorkLog& operator=(const WorkLog&) = delete;
  virtual ~WorkLog() = default;

  // [m, k] x [k, n], with operands of this type; fp8: rounded to fp8 first.
  virtual void Product(std::int64_t m, std::int64_t n, std::int64_t k, Dtype type, bool fp8) = 0;
  // Attention of one call. flops: of its products; bytes: of its operands.
  virtual void Attention(double flops, double bytes, Dtype type) = 0;
  // Any other kernel. bytes: read and written, each operand once.
  virtual void Pass(double bytes) = 0;
  // A transfer begins after all work so far; the number goes to Wait.
  virtual int Start(const LoggedTransfer& transfer) = 0;
  // Work from now on follows the end of that transfer.
  virtual void Wait(int number) = 0;
  // A task of the pipeline's schedule begins or ends. kind: parallel::TaskKind.
  virtual void BeginTask(int kind, int micro_batch, int chunk) = 0;
  virtual void EndTask() = 0;
};

// Tells the log of a planned stream, if it has one, of a kernel without products.
inline void LogPass(const Stream& stream, double bytes) {
  if (stream.planned->log != nullptr && bytes > 0) stream.planned->log->Pass(bytes);
}

}  // namespace trireme::device

#endif  // TRIREME_DEVICE_WORK_LOG_HPP_
