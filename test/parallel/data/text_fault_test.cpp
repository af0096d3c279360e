// Tokenising by several ranks: a broken text of one rank ends the work of the others.
#include <chrono>
#include <thread>

#include "text_fixture.hpp"

namespace trireme::data {
namespace {

// Takes its time, and counts.
class SlowTokenizer : public ByteTokenizer {
 public:
  void Encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    ByteTokenizer::Encode(text, ids);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ++texts;
  }
  int texts = 0;
};

TEST_F(Texts, AFaultOfOneRankEndsTheOthersWork) {
  constexpr int kFiles = 400;  // by 10 ms
  const comm::Communicator world = comm::Communicator::Adopt(MPI_COMM_WORLD);
  if (world.Size() == 1) GTEST_SKIP() << "one rank: nobody else to end";
  const std::string folder = world.Broadcast(folder_);
  if (world.IsRoot()) {
    // The largest file is the first rank's, alone.
    Write("0.jsonl", "{" + std::string(1'000'000, ' '));
    for (int i = 1; i <= kFiles; ++i) Write(std::to_string(i) + ".jsonl", "{\"text\": \"x\"}\n");
  }
  world.Barrier();
  TextPlan plan;
  plan.encode.eos = {256};
  plan.files = FindTextFiles(folder + "/*.jsonl", Split::kTrain);
  SlowTokenizer slow;
  const std::string message =
      MessageOf([&] { TokenizeTexts(world, slow, plan, folder + "/a.h5", {}); });
  EXPECT_THAT(message, testing::HasSubstr("0.jsonl: record at byte 0: "));
  EXPECT_LT(slow.texts, kFiles / world.Size() / 2);
  world.Barrier();
  EXPECT_FALSE(std::filesystem::exists(folder + "/a.h5"));
  world.Barrier();
}

}  // namespace
}  // namespace trireme::data
