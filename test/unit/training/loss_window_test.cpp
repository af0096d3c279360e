// LossWindow: which losses are spikes, and the same answers after a stop.
#include "trireme/train/evaluation.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "trireme/base/json.hpp"

namespace trireme::train {
namespace {

constexpr std::int64_t kWindow = 8;
constexpr double kThreshold = 6;

// Alternates around 3 with a deviation of 0.1.
double Calm(int step) { return step % 2 == 0 ? 2.9 : 3.1; }

LossWindow CalmWindow() {
  LossWindow window(kWindow, kThreshold);
  for (int step = 0; step < kWindow; ++step) EXPECT_FALSE(window.Take(Calm(step)));
  return window;
}

TEST(LossWindow, JudgesNothingBeforeItIsFull) {
  LossWindow window(kWindow, kThreshold);
  for (int step = 0; step < kWindow; ++step) {
    EXPECT_FALSE(window.Take(step == kWindow - 1 ? 1000.0 : 1.0)) << step;
  }
  EXPECT_EQ(window.Losses().size(), kWindow);
}

TEST(LossWindow, CountsInStandardDeviationsAboveTheMean) {
  LossWindow window = CalmWindow();
  EXPECT_FALSE(window.Take(3.0 + 5.99 * 0.1));
  window = CalmWindow();
  const auto spike = window.Take(3.0 + 6.01 * 0.1);
  ASSERT_TRUE(spike);
  EXPECT_NEAR(spike->mean, 3, 1e-14);
  EXPECT_NEAR(spike->deviation, 0.1, 1e-14);
  EXPECT_NEAR(spike->score, 6.01, 1e-11);
  EXPECT_EQ(spike->loss, 3.0 + 6.01 * 0.1);
}

TEST(LossWindow, AFallIsNoSpike) {
  LossWindow window = CalmWindow();
  EXPECT_FALSE(window.Take(-100));
}

TEST(LossWindow, EqualLossesMakeNoSpikeOfARoundingError) {
  LossWindow window(kWindow, kThreshold);
  for (int step = 0; step < kWindow; ++step) window.Take(2);
  EXPECT_FALSE(window.Take(2 + 1e-7));
  EXPECT_FALSE(window.Take(2 * (1 + 5.9e-3)));
  EXPECT_TRUE(window.Take(2 * (1 + 7e-2)));
}

TEST(LossWindow, ASpikeDoesNotHideTheNext) {
  LossWindow window = CalmWindow();
  EXPECT_TRUE(window.Take(1e6));
  EXPECT_NEAR(window.Losses().back(), 3.6, 1e-12);  // at the threshold
  EXPECT_TRUE(window.Take(1e6));
}

TEST(LossWindow, ANewLevelIsSoonNoSpike) {
  LossWindow window = CalmWindow();
  int spikes = 0;
  for (int step = 0; step < 100; ++step) spikes += window.Take(10).has_value() ? 1 : 0;
  EXPECT_GE(spikes, 1);
  EXPECT_LT(spikes, kWindow);
}

TEST(LossWindow, PassesOverWhatIsNotFinite) {
  LossWindow window = CalmWindow();
  const std::vector<double> before = window.Losses();
  EXPECT_FALSE(window.Take(std::nan("")));
  EXPECT_FALSE(window.Take(std::numeric_limits<double>::infinity()));
  EXPECT_EQ(window.Losses(), before);
}

TEST(LossWindow, WithoutAWindowNothingIsASpike) {
  LossWindow window(0, kThreshold);
  for (const double loss : {1.0, 1.0, 1e30}) EXPECT_FALSE(window.Take(loss));
  EXPECT_TRUE(window.Losses().empty());
}

// By way of JSON, as a checkpoint keeps it.
TEST(LossWindow, GoesOnWithTheSameBits) {
  LossWindow whole(kWindow, 2);
  for (int stop = 0; stop < 40; ++stop) {
    const std::string text = nlohmann::json(whole.Losses()).dump();
    LossWindow resumed(kWindow, 2);
    resumed.Restore(nlohmann::json::parse(text).get<std::vector<double>>());
    const double loss = std::sin(stop * 0.7) / 3 + (stop % 11 == 10 ? 3 : 0);
    const auto wanted = whole.Take(loss), got = resumed.Take(loss);
    ASSERT_EQ(got.has_value(), wanted.has_value()) << stop;
    if (wanted) {
      EXPECT_EQ(got->score, wanted->score);
    }
    EXPECT_EQ(resumed.Losses(), whole.Losses());
  }
}

TEST(LossWindow, AShorterWindowKeepsTheLastLosses) {
  LossWindow window(2, kThreshold);
  window.Restore({1, 2, 3, 4});
  EXPECT_EQ(window.Losses(), (std::vector<double>{3, 4}));
}

}  // namespace
}  // namespace trireme::train
