// TapeWriter: kernels become seconds by a roofline (Williams et al. 2009): the slower of their
// operations and their bytes.
#include "tape.hpp"

#include <algorithm>

namespace trireme::predict {

namespace {
constexpr double kFp8Bytes = 1;
}

double ProductSeconds(const Machine& machine, std::int64_t m, std::int64_t n, std::int64_t k,
                      Dtype type, bool fp8) {
  const Products& products = machine.Of(type, fp8);
  const auto rows = static_cast<double>(m), columns = static_cast<double>(n),
             depth = static_cast<double>(k);
  const auto filled = [&products](double size) { return size / (size + products.half); };
  const double rate =
      products.peak * products.efficiency * filled(rows) * filled(columns) * filled(depth);
  const double operands = rows * depth + depth * columns, size = static_cast<double>(SizeOf(type));
  const double bytes = operands * (fp8 ? kFp8Bytes : size) + rows * columns * size;
  const double rounding = fp8 ? operands * (size + kFp8Bytes) / machine.memory : 0;
  return machine.kernel_seconds + rounding +
         std::max(2 * rows * columns * depth / rate, bytes / machine.memory);
}

double AttentionSeconds(const Machine& machine, double flops, double bytes, Dtype type) {
  const double rate = machine.Of(type, false).peak * machine.attention;
  return machine.kernel_seconds + std::max(flops / rate, bytes / machine.memory);
}

double PassSeconds(const Machine& machine, double bytes) {
  return machine.kernel_seconds + bytes / machine.memory;
}

// Neighbouring kernels are one piece.
void TapeWriter::Compute(double seconds) {
  std::vector<TapeEvent>& events = tape_.events;
  if (events.empty() || events.back().kind != TapeEvent::Kind::kCompute) {
    Put(TapeEvent::Kind::kCompute, 0);
  }
  events.back().seconds += seconds;
}

void TapeWriter::Product(std::int64_t m, std::int64_t n, std::int64_t k, Dtype type, bool fp8) {
  if (m == 0 || n == 0 || k == 0) return;
  const double seconds = ProductSeconds(machine_, m, n, k, type, fp8);
  tape_.product_seconds += seconds;
  Compute(seconds);
}

void TapeWriter::Attention(double flops, double bytes, Dtype type) {
  const double seconds = AttentionSeconds(machine_, flops, bytes, type);
  tape_.attention_seconds += seconds;
  Compute(seconds);
}

void TapeWriter::Pass(double bytes) {
  const double seconds = PassSeconds(machine_, bytes);
  tape_.pass_seconds += seconds;
  Compute(seconds);
}

int TapeWriter::Start(const device::LoggedTransfer& transfer) {
  const int number = static_cast<int>(tape_.transfers.size());
  tape_.transfers.push_back({transfer, network_.Of(transfer)});
  Put(TapeEvent::Kind::kStart, number);
  return number;
}

void TapeWriter::Wait(int number) { Put(TapeEvent::Kind::kWait, number); }

void TapeWriter::BeginTask(int kind, int micro_batch, int chunk) {
  tape_.tasks.push_back({kind, micro_batch, chunk});
  Put(TapeEvent::Kind::kBeginTask, static_cast<int>(tape_.tasks.size()) - 1);
}

void TapeWriter::EndTask() {
  Put(TapeEvent::Kind::kEndTask, static_cast<int>(tape_.tasks.size()) - 1);
}

}  // namespace trireme::predict
