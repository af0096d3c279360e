// A GPU for each rank of a test. Where there are fewer cards, ranks share them, if NCCL lets them.
#pragma once

#include <gtest/gtest.h>
#include <mpi.h>

#include <memory>
#include <string>

#include "trireme/comm/channel.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/device/memory.hpp"
#ifdef TRIREME_EMULATED
#include "emulator/stream.hpp"
#endif

namespace trireme::test {

// Orders in which queues run, all that a test should try: an emulated GPU decides by a seed, a real
// one for itself.
#ifdef TRIREME_EMULATED
inline int Orders() { return 6; }
// order: from 0; another on each rank.
inline void ChooseOrder(int order) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  constexpr unsigned long long kMostRanks = 1000;
  emulator::SetSeed(1 + static_cast<unsigned long long>(order) * kMostRanks +
                    static_cast<unsigned long long>(rank));
}
#else
inline int Orders() { return 1; }
inline void ChooseOrder(int) {}
#endif

class RankGpuTest : public testing::Test {
 protected:
  // staged: transfers pass through the host, and all ranks share the first card. Else rank r takes
  // card r modulo the number of cards; skipped where ranks would share one and NCCL refuses it.
  void Open(bool staged) {
    const std::string why = device::WhyNoGpu();
    if (!why.empty()) GTEST_SKIP() << "skipped: " << why;  // "no CUDA device: ..."
    const auto cards = static_cast<int>(device::GpuIds().size());
    if (cards < world_.Size() && !staged) {
      const std::string refusal = comm::LetRanksShareGpus();
      if (!refusal.empty()) {
        GTEST_SKIP() << "not run: " << cards << " CUDA device for " << world_.Size()
                     << " ranks, and " << refusal;
      }
    }
    gpu_ = std::make_unique<device::Gpu>(staged ? 0 : world_.Rank() % cards);
    stream_.gpu = &gpu_->Context();
  }
  const device::Stream& Stream() const { return stream_; }

  comm::Communicator world_ = comm::Communicator::Adopt(MPI_COMM_WORLD);

 private:
  std::unique_ptr<device::Gpu> gpu_;
  device::Stream stream_;
};

}  // namespace trireme::test
