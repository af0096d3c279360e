// main() of every test program: starts MPI (also for one process), lets only rank 0 print, and
// fails on every rank when a test failed on any.
#include <gtest/gtest.h>

#include "runtime.hpp"

namespace {

const trireme::comm::Runtime* the_runtime = nullptr;

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

const trireme::comm::Runtime& trireme::test::TestRuntime() { return *the_runtime; }

int main(int argc, char** argv) {
  trireme::comm::Runtime runtime(&argc, &argv);
  the_runtime = &runtime;
  testing::InitGoogleTest(&argc, argv);
  if (!runtime.World().IsRoot()) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new QuietListener(runtime.World().Rank()));
  }
  const std::int64_t failed = RUN_ALL_TESTS();
  return runtime.World().Max(failed) == 0 ? 0 : 1;
}
