// ProcessGrid: cuts the world into the axes of the parallel layout.
#include "trireme/comm/process_grid.hpp"

#include <fmt/format.h>

namespace trireme::comm {

namespace {

// Coordinates of `rank` on a grid whose tensor axis runs fastest, pipeline slowest.
GridShape Locate(int rank, const GridShape& shape) {
  GridShape at;
  at.tensor = rank % shape.tensor;
  rank /= shape.tensor;
  at.context = rank % shape.context;
  rank /= shape.context;
  at.data = rank % shape.data;
  at.pipeline = rank / shape.data;
  return at;
}

}  // namespace

void DeclareGrid(input::Schema& schema) {
  schema.Section("grid", "How the MPI ranks share the work.");
  schema.Integer(
      "grid.data", 0, input::AtLeast(0), "ranks",
      "Ranks along the data axis: each holds the whole model and takes its part of every "
      "batch. 0 takes what is left, here all ranks of the job.");
}

ProcessGrid::ProcessGrid(const Communicator& world, const input::Deck& deck) : world_(&world) {
  world.Together([&] {
    const std::int64_t asked = deck.Integer("grid.data");
    if (asked != 0 && asked != world.Size()) {
      throw deck.Complain(
          "grid.data",
          fmt::format("the grid has {} rank{}, the job has {}", asked, asked == 1 ? "" : "s",
                      world.Size()),
          fmt::format(
              "What fits: grid.data = {}, or 0 (what is left); or start the job with {} rank{}.",
              world.Size(), asked, asked == 1 ? "" : "s"));
    }
  });
  shape_.data = world.Size();
  coordinates_ = Locate(world.Rank(), shape_);
  const int replica =
      (coordinates_.pipeline * shape_.context + coordinates_.context) * shape_.tensor +
      coordinates_.tensor;
  data_ = world.Split(replica, coordinates_.data);
}

}  // namespace trireme::comm
