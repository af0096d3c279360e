// A rank that fails on its own while it and the others wait in transfers that cannot end any more;
// rank_leaves.cmake checks what a user sees.
#include "trireme/base/error.hpp"
#include "trireme/comm/process_grid.hpp"
#include "trireme/comm/runtime.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::comm {
namespace {

constexpr std::int64_t kCount = 100;  // elements
constexpr int kTag = 1;               // of the context group's shifts

ExitCode Leave(const Communicator& world) {
  const device::Gpu gpu(world.Rank());
  const device::Stream stream{.gpu = &gpu.Context()};
  ProcessGrid grid(world, {.pipeline = 1, .data = 1, .context = world.Size(), .tensor = 1});
  grid.UseGpu(stream, false, 1);
  const Collectives transfers = grid.Over(Group::kContext);
  const device::Buffer memory = device::AllocateZeroed(8 * kCount, device::Kind::kCuda);
  const device::Drain drain(stream, [&grid] { grid.GiveUp(); });
  device::Event end(stream);
  if (world.Rank() == 1) {
    // The freeing of `memory` would wait for these messages, which nobody meets, for ever.
    void* const second = ElementAt(memory.get(), Dtype::kFloat32, kCount);
    const auto messages =
        transfers.StartShift(Dtype::kFloat32, memory.get(), kCount, second, kCount, kTag);
    throw RunError("lost my way");
  }
  transfers.AllReduce(Dtype::kFloat32, memory.get(), kCount);  // rank 1 never comes
  end.Record(stream.gpu->queue);
  grid.Await(end);
  return ExitCode::kDone;
}

}  // namespace
}  // namespace trireme::comm

int main(int argc, char** argv) {
  trireme::comm::Runtime runtime(&argc, &argv);
  return runtime.Guard([&] { return trireme::comm::Leave(runtime.World()); });
}
