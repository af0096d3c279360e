// Tournament by the circle method: one player stays, the others move on by a place every round.
#include <algorithm>

#include "trireme/tools/measure.hpp"

namespace trireme::tools {

namespace {

constexpr int kMostRounds = 16;

}  // namespace

int Rounds(int players) { return players < 2 ? 0 : players - 1 + players % 2; }

// With an odd number of players one more stands for the pause.
int Partner(int self, int round, int players) {
  const int circle = Rounds(players);
  const int fixed = circle;  // the number of the player who stays, or of the pause
  int partner = 0;
  if (self == fixed) {
    // The one place that is opposite to itself: 2 p = round modulo the circle, whose length is odd.
    partner = round % 2 == 0 ? round / 2 : (round + circle) / 2;
  } else {
    partner = (round - self + circle) % circle;
    if (partner == self) partner = fixed;
  }
  return partner < players ? partner : -1;
}

std::vector<int> ChosenRounds(int players) {
  const int all = Rounds(players), count = std::min(all, kMostRounds);
  std::vector<int> rounds;
  for (int i = 0; i < count; ++i) {
    rounds.push_back(static_cast<int>(static_cast<std::int64_t>(i) * all / count));
  }
  return rounds;
}

}  // namespace trireme::tools
