// --support: entries of the archive, and what is blacked out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "entries.hpp"
#include "folders.hpp"

namespace trireme::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using namespace trireme::tools;

// Texts of a support archive: secrets, samples and prompts are out, the rest is as it was.

TEST(SupportEnvironment, TakesWhatConcernsAJobAndNoSecret) {
  const std::string text = RelevantEnvironment(
      {"OMP_NUM_THREADS=4", "UCX_TLS=rc,sm,self", "SLURM_JOB_NODELIST=jwb[0001-0004]",
       "SLURM_JWT=abc", "TRIREME_API_KEY=12", "NCCL_SOCKET_IFNAME=ib0", "HOME=/home/me",
       "WANDB_API_KEY=0123456789abcdef0123456789abcdef", "MPI_STORE=https://me:hush@host/x",
       "OMPI_MCA_btl=^openib", "TRIREME_NOTE=ghp_0a1b2c3d4e5f6g7h8i9j0k",
       "CUDA_VISIBLE_DEVICES=0,1",
       "SLURM_SUBMIT_DIR=/p/project/very_long_name_of_a_project/user1/run_2026_11_24"});
  EXPECT_THAT(text, HasSubstr("OMP_NUM_THREADS=4\n"));
  EXPECT_THAT(text, HasSubstr("UCX_TLS=rc,sm,self\n"));
  EXPECT_THAT(text, HasSubstr("SLURM_JOB_NODELIST=jwb[0001-0004]\n"));
  EXPECT_THAT(text, HasSubstr("CUDA_VISIBLE_DEVICES=0,1\n"));
  EXPECT_THAT(text, HasSubstr("SLURM_JWT=(left out"));
  EXPECT_THAT(text, HasSubstr("TRIREME_API_KEY=(left out"));
  EXPECT_THAT(text, HasSubstr("MPI_STORE=(left out"));
  EXPECT_THAT(text, HasSubstr("TRIREME_NOTE=(left out"));
  for (const char* const secret : {"abc", "hush", "ghp_", "HOME", "WANDB", "0123456789"}) {
    EXPECT_THAT(text, Not(HasSubstr(secret)));
  }
  EXPECT_THAT(RelevantEnvironment({"OMP_A=x\nSLURM_B=y"}), HasSubstr("OMP_A=x SLURM_B=y\n"));
}

TEST(SupportTexts, ADeckLosesItsPromptsAlone) {
  const std::string deck =
      "[generate]\nprompt = once upon \"a\" time  # from a.in:3\nstop = the end\nstop_at_eos = no\n"
      "[schedule]\nstop_at = 20\n";
  const std::string clean = DeckWithoutTexts(deck);
  EXPECT_EQ(clean,
            "[generate]\nprompt = (left out)\nstop = (left out)\nstop_at_eos = no\n"
            "[schedule]\nstop_at = 20\n");
  EXPECT_EQ(DeckWithoutTexts("[data]\nfile = a.h5\n"), "[data]\nfile = a.h5\n");
}

TEST(SupportTexts, ALogLosesSamplesOfSeveralLines) {
  const std::string log =
      "Trireme 0.1.0 (abc)   2 ranks\n    step   epoch     loss\n      20    0.39   6.8102       "
      "907.0\n"
      "sample  once there\nwas a secret\n\n done with it\n"
      "done    20 steps, 2,560 tokens, 0:01\nfiles   run folder  run\n"
      "Trireme 0.1.0 (abc)   2 ranks\nsample  torn";
  const std::string clean = LogWithoutSamples(log);
  EXPECT_EQ(clean,
            "Trireme 0.1.0 (abc)   2 ranks\n    step   epoch     loss\n"
            "      20    0.39   6.8102       907.0\nsample  (left out)\n"
            "done    20 steps, 2,560 tokens, 0:01\nfiles   run folder  run\n"
            "Trireme 0.1.0 (abc)   2 ranks\nsample  (left out)\n");
  // A log that was cut may go on in the middle of a sample.
  EXPECT_EQ(LogWithoutSamples(std::string(kGapMark) +
                              "9 bytes]\na secret\n      21    0.41   6.7   812.4   1.0e-03\n"),
            std::string(kGapMark) + "9 bytes]\n      21    0.41   6.7   812.4   1.0e-03\n");
}

TEST(SupportTexts, JsonLosesSamplesAndPasswordsAndNotItsNumbers) {
  const std::string json = JsonWithoutTexts(
      R"({"loss": 5.25, "samples": ["a secret"], "deck": "[generate]\nprompt = secret\n[run]\nseed = 3\n",
          "deck_given": ["a"], "files": {"data": "https://me:hush@host/a"}, "more": [{"sample": "secret"}],
          "flat": {"generate.prompt": "secret", "run.seed": "3"}})");
  EXPECT_THAT(json, HasSubstr("5.25"));
  EXPECT_THAT(json, HasSubstr("seed = 3"));
  EXPECT_THAT(json, Not(HasSubstr("secret")));
  EXPECT_THAT(json, Not(HasSubstr("hush")));
  EXPECT_THAT(json, HasSubstr("@host/a"));
  EXPECT_EQ(JsonWithoutTexts("{\"step\": 3, \"de"), "");
}

// Reading of files within bounds: never more than that, and a reason for what is not read.

TEST(SupportEntries, LongFilesKeepWholeLinesOfBothEnds) {
  const TemporaryFolder folder;
  const std::string path = folder.Path() + "/log.txt";
  std::ofstream log(path);
  for (int i = 0; i < 10'000; ++i) log << "line " << i << "\n";
  log.close();
  Contents contents;
  const auto file = ReadBounded(path, {.head = 100, .tail = 200}, true, contents);
  ASSERT_TRUE(file);
  EXPECT_LT(file->text.size(), 400U);
  EXPECT_TRUE(file->text.starts_with("line 0\nline 1\n")) << file->text;
  EXPECT_TRUE(file->text.ends_with("line 9998\nline 9999\n"));
  EXPECT_THAT(file->text, HasSubstr(std::string("\n") + kGapMark));
  EXPECT_THAT(file->note, HasSubstr("left out"));
  const auto whole = ReadBounded(path, {.head = 200'000}, true, contents);
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->note, "");
  EXPECT_TRUE(contents.notes.empty());
  // One line longer than the bounds.
  std::ofstream(path) << std::string(1000, 'x');
  EXPECT_LT(ReadBounded(path, {.head = 10, .tail = 10}, true, contents)->text.size(), 100U);
}

TEST(SupportEntries, SaysWhatItDoesNotRead) {
  const TemporaryFolder folder;
  Contents contents;
  EXPECT_FALSE(ReadBounded(folder.Path() + "/none", {.head = 9}, false, contents));
  EXPECT_TRUE(contents.notes.empty());
  EXPECT_FALSE(ReadBounded(folder.Path() + "/none", {.head = 9}, true, contents));
  EXPECT_FALSE(ReadBounded(folder.Path(), {.head = 9}, true, contents));
  const std::string pipe = folder.Path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_FALSE(ReadBounded(pipe, {.head = 9}, true, contents));
  EXPECT_THAT(contents.notes,
              testing::ElementsAre(HasSubstr("/none: not there"), HasSubstr("not a regular file"),
                                   HasSubstr("/pipe: not a regular file")));
}

}  // namespace
}  // namespace trireme::test
