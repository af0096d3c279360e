// CompareWallClocks: barriers as witnesses.
#include <mpi.h>

#include <array>

#include "trireme/tools/preflight.hpp"

namespace trireme::tools {

namespace {

constexpr int kRounds = 3;             // the shortest barrier shows most
constexpr double kWorthTelling = 0.1;  // seconds

}  // namespace

ClockSkew CompareWallClocks(const comm::Communicator& world, double (*now)()) {
  if (world.Size() == 1) return {};
  std::array<double, 2 * kRounds> mine{}, most{};  // entries, negated exits
  for (int round = 0; round < kRounds; ++round) {
    mine[2 * round] = now();
    world.Barrier();
    mine[2 * round + 1] = -now();
  }
  MPI_Allreduce(mine.data(), most.data(), 2 * kRounds, MPI_DOUBLE, MPI_MAX, world.Handle());
  ClockSkew skew;
  int best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const double proven = most[2 * round] + most[2 * round + 1];
    if (proven <= skew.seconds) continue;
    skew.seconds = proven;
    best = round;
  }
  if (skew.seconds < kWorthTelling) return {};
  std::array<int, 2> who = {world.Size(), world.Size()};
  if (mine[2 * best] == most[2 * best]) who[0] = world.Rank();
  if (mine[2 * best + 1] == most[2 * best + 1]) who[1] = world.Rank();
  MPI_Allreduce(MPI_IN_PLACE, who.data(), 2, MPI_INT, MPI_MIN, world.Handle());
  skew.ahead = who[0];
  skew.behind = who[1];
  return skew;
}

}  // namespace trireme::tools
