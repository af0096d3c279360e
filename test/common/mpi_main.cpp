// main() of every test program: starts MPI (also for one process), lets only rank 0 print, and
// fails on every rank when a test failed on any.
#include <gtest/gtest.h>

#include "trireme/comm/runtime.hpp"

namespace {

// Prints failures of other ranks too: a failure without its text helps nobody.
class QuietListener : public testing::EmptyTestEventListener {
 public:
  explicit QuietListener(int rank) : rank_(rank) {}
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d: %s:%d: %s\n", rank_,
                 result.file_name() ? result.file_name() : "?", result.line_number(),
                 result.summary());
  }

 private:
  int rank_;
};

}  // namespace

int main(int argc, char** argv) {
  trireme::comm::Runtime runtime(&argc, &argv);
  testing::InitGoogleTest(&argc, argv);
  if (!runtime.World().IsRoot()) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new QuietListener(runtime.World().Rank()));
  }
  const std::int64_t failed = RUN_ALL_TESTS();
  return runtime.World().Max(failed) == 0 ? 0 : 1;
}
