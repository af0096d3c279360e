// The banner, to the letter.
#include <gtest/gtest.h>

#include "table.hpp"

namespace trireme::report {
namespace {

constexpr std::int64_t kMebi = 1 << 20;

BannerFacts Example() {
  BannerFacts facts;
  facts.version = "0.1.0";
  facts.commit = "3f2a9c1";
  facts.ranks = 2;
  facts.device = "cpu (AVX-512)";
  facts.precision = "fp32";
  facts.grid = "pipeline 1 x data 2 x context 1 x tensor 1";
  facts.model = "jsc: 2 layers, dim 128, 4 heads, vocabulary 33,278; 9.71 M parameters";
  facts.data =
      "wikitext2.h5: 2,088,628 / 217,646 / 245,569 tokens; 65,270 windows of 32, 128 steps an "
      "epoch";
  facts.memory = {{"parameters", 37 * kMebi},
                  {"gradients", 37 * kMebi},
                  {"moments", 74 * kMebi},
                  {"activations", 96 * kMebi},
                  {"vocabulary tile", 65 * kMebi}};
  facts.roof_flops = 98e9;
  return facts;
}

TEST(Banner, IsTheDesignsExample) {
  EXPECT_EQ(
      BannerText(Example()),
      "Trireme 0.1.0 (3f2a9c1)   2 ranks on 1 host, 1 thread each   device cpu (AVX-512)   "
      "precision fp32\n"
      "grid    pipeline 1 x data 2 x context 1 x tensor 1\n"
      "model   jsc: 2 layers, dim 128, 4 heads, vocabulary 33,278; 9.71 M parameters\n"
      "data    wikitext2.h5: 2,088,628 / 217,646 / 245,569 tokens; 65,270 windows of 32, 128 "
      "steps an epoch\n"
      "memory  a rank: parameters 37 + gradients 37 + moments 74 + activations 96 + vocabulary "
      "tile 65 = 309 MiB\n"
      "roof    98 GFLOP/s a rank (measured)");
}

TEST(Banner, OneRankAndNoFacts) {
  BannerFacts facts = Example();
  facts.ranks = 1;
  facts.hosts = 3;
  facts.threads = 16;
  facts.grid.clear();
  facts.memory.clear();
  facts.roof_flops = 0;
  const std::string text = BannerText(facts);
  EXPECT_EQ(text.substr(0, text.find("   device")),
            "Trireme 0.1.0 (3f2a9c1)   1 rank on 3 hosts, 16 threads");
  facts.ranks = 4;
  facts.pinned = true;
  const std::string pinned = BannerText(facts);
  EXPECT_EQ(pinned.substr(0, pinned.find("   device")),
            "Trireme 0.1.0 (3f2a9c1)   4 ranks on 3 hosts, 16 threads each, pinned");
  EXPECT_EQ(text.find("grid"), std::string::npos);
  EXPECT_EQ(text.find("memory"), std::string::npos);
  EXPECT_EQ(text.find("roof"), std::string::npos);
}

TEST(Banner, MemoryTermsAddUpToTheirSum) {
  BannerFacts facts = Example();
  facts.memory = {{"a", 20 * kMebi + kMebi / 2 - 1}, {"b", 20 * kMebi + kMebi / 2 - 1}};
  EXPECT_NE(BannerText(facts).find("a 20 + b 21 = 41 MiB"), std::string::npos) << BannerText(facts);
  facts.memory = {{"a", kMebi / 2}, {"b", 2 * kMebi}};
  EXPECT_NE(BannerText(facts).find("a 0.5 + b 2.0 = 2.5 MiB"), std::string::npos);
  facts.memory = {{"a", 512 * 1024 * kMebi}, {"b", 1536 * kMebi}};
  EXPECT_NE(BannerText(facts).find("a 512.0 + b 1.5 = 513.5 GiB"), std::string::npos);
}

TEST(Banner, TheLargestRanksMemoryIsCalledSo) {
  BannerFacts facts = Example();
  facts.memory = {{"parameters", 37 * kMebi}};
  facts.memory_differs = true;
  EXPECT_NE(BannerText(facts).find("\nmemory  largest rank: parameters 37 = 37 MiB\n"),
            std::string::npos)
      << BannerText(facts);
}

TEST(Banner, TheMapStandsInColumnsBehindTheGrid) {
  BannerFacts facts = Example();
  facts.ranks_map = {"rank 0   a", "rank 1   a", "rank 2   bcd", "rank 3   b"};
  const auto map = [&facts] {
    const std::string text = BannerText(facts);
    const std::size_t begin = text.find("\nmap     ");
    return text.substr(begin, text.find("\nmodel ") - begin);
  };
  EXPECT_EQ(map(), "\nmap     rank 0   a      rank 1   a      rank 2   bcd    rank 3   b");
  // Two of 44 characters and the gap between them fill a line of 100; a third goes below the first.
  const std::string wide(44, 'x');
  facts.ranks_map = {wide, wide, wide};
  EXPECT_EQ(map(), "\nmap     " + wide + "    " + wide + "\n        " + wide);
  facts.ranks_map = {"0", "1", "2", wide};
  EXPECT_EQ(map(),
            "\nmap     0" + std::string(47, ' ') + "2\n        1" + std::string(47, ' ') + wide);
  facts.ranks_map = {wide + "x", wide};
  EXPECT_EQ(map(), "\nmap     " + wide + "x\n        " + wide);
}

TEST(Banner, RoofScales) {
  BannerFacts facts = Example();
  facts.roof_flops = 3.14e9;
  EXPECT_NE(BannerText(facts).find("roof    3.1 GFLOP/s"), std::string::npos);
  facts.roof_flops = 312e12;
  EXPECT_NE(BannerText(facts).find("roof    312 TFLOP/s"), std::string::npos);
}

}  // namespace
}  // namespace trireme::report
