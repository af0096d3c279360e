// A GPU for each rank of a test; its tests are skipped where there are fewer.
#ifndef TRIREME_TEST_PARALLEL_COMM_CUDA_RANK_GPU_HPP_
#define TRIREME_TEST_PARALLEL_COMM_CUDA_RANK_GPU_HPP_

#include <gtest/gtest.h>

#include <memory>

#include "trireme/comm/communicator.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::test {

class RankGpuTest : public testing::Test {
 protected:
  // With fewer cards than ranks, all share the first where `shared` allows it.
  void Open(bool shared) {
    const std::string why = device::WhyNoGpu();
    if (!why.empty()) GTEST_SKIP() << "skipped: " << why;  // "no CUDA device: ..."
    const bool enough = std::ssize(device::GpuIds()) >= world_.Size();
    if (!enough && !shared) {
      GTEST_SKIP() << "not run: " << device::GpuIds().size() << " CUDA device for " << world_.Size()
                   << " ranks";
    }
    gpu_ = std::make_unique<device::Gpu>(enough && !shared ? world_.Rank() : 0);
    stream_.gpu = &gpu_->Context();
  }
  const device::Stream& Stream() const { return stream_; }

  comm::Communicator world_ = comm::Communicator::Adopt(MPI_COMM_WORLD);

 private:
  std::unique_ptr<device::Gpu> gpu_;
  device::Stream stream_;
};

}  // namespace trireme::test

#endif  // TRIREME_TEST_PARALLEL_COMM_CUDA_RANK_GPU_HPP_
