// Comparison of clocks: each rank asks rank 0 for the time, many times, and keeps the shortest
// trip.
#include "trireme/comm/clock_comparison.hpp"

#include <algorithm>

namespace trireme::comm {

namespace {

constexpr int kTrips = 64;  // the shortest of so many met nothing else on its way
constexpr int kQuestion = 1, kAnswer = 2;

void Answer(const Communicator& group, int rank, const std::function<double()>& clock) {
  for (int i = 0; i < kTrips; ++i) {
    MPI_Recv(nullptr, 0, MPI_BYTE, rank, kQuestion, group.Handle(), MPI_STATUS_IGNORE);
    const double now = clock();
    MPI_Send(&now, 1, MPI_DOUBLE, rank, kAnswer, group.Handle());
  }
}

ClockComparison Ask(const Communicator& group, const std::function<double()>& clock) {
  ClockComparison best;
  for (int i = 0; i < kTrips; ++i) {
    const double before = clock();
    MPI_Send(nullptr, 0, MPI_BYTE, 0, kQuestion, group.Handle());
    double answer = 0;
    MPI_Recv(&answer, 1, MPI_DOUBLE, 0, kAnswer, group.Handle(), MPI_STATUS_IGNORE);
    const double after = clock(), error = (after - before) / 2;
    if (i > 0 && error >= best.error) continue;
    const double middle = before + error;
    best = {.at = middle, .offset = answer - middle, .error = error};
  }
  return best;
}

}  // namespace

ClockComparison CompareClocks(const Communicator& group, std::span<const int> ranks,
                              const std::function<double()>& clock) {
  ClockComparison mine{.at = clock()};
  if (group.IsRoot()) {
    for (const int rank : ranks) {
      if (rank != 0) Answer(group, rank, clock);
    }
  } else if (std::ranges::binary_search(ranks, group.Rank())) {
    mine = Ask(group, clock);
  }
  return mine;
}

double Drift(const ClockComparison& first, const ClockComparison& last) {
  return last.at > first.at ? (last.offset - first.offset) / (last.at - first.at) : 0;
}

double Aligned(double seconds, const ClockComparison& first, const ClockComparison& last) {
  return seconds + first.offset + Drift(first, last) * (seconds - first.at);
}

}  // namespace trireme::comm
