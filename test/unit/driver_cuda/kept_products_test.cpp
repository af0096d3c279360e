// run.products: a run takes the algorithms that an earlier one chose and kept, unless their file is
// damaged, or another card's.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "one_rank.hpp"
#include "temporary_folder.hpp"

#include "trireme/base/json.hpp"

namespace trireme::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class KeptProducts : public TrainingOnGpu {
 protected:
  std::string Read() const {
    std::ifstream in(file_);
    std::stringstream text;
    text << in.rdbuf();
    return text.str();
  }
  void Write(const std::string& text) const { std::ofstream(file_) << text; }
  // Two steps with that file; the algorithms at their end.
  json Train() const {
    OneRank run = OnCard(DeckOf(kLlama), Dtype::kFloat32, true, file_);
    run.Train(2);
    return json::parse(run.Libraries().Chosen());
  }
  TemporaryFolder folder_;
  std::string file_ = folder_ / "products.json";
};

TEST_F(KeptProducts, AreTakenByTheNextRun) {
  const json first = Train();
  const json kept = json::parse(Read());
  EXPECT_GT(kept.at("products").size(), 5u);
  EXPECT_EQ(kept, first);
  EXPECT_EQ(Train(), first);
  EXPECT_EQ(json::parse(Read()), first);
  // Products that this run does not compute are kept all the same.
  json more = kept;
  more["products"].push_back(kept["products"][0]);
  more["products"].back()["product"] = "another";
  Write(more.dump());
  EXPECT_EQ(Train().at("products").size(), kept.at("products").size() + 1);
}

TEST_F(KeptProducts, AreChosenAnewWhereTheFileIsOfNoUse) {
  const json first = Train();
  json other_card = first, other_library = first, damaged = first;
  other_card["card"] = "Another card";
  other_library["library"] = "cuBLASLt 1";
  damaged["products"][0]["algorithm"] = "not hexadecimal";
  for (const std::string& text :
       {std::string("{\"card\": "), std::string("no JSON at all"), std::string("{}"),
        other_card.dump(), other_library.dump(), damaged.dump()}) {
    Write(text);
    const json chosen = Train();
    EXPECT_EQ(chosen.at("card"), first.at("card")) << text;
    EXPECT_EQ(chosen.at("products").size(), first.at("products").size()) << text;
    EXPECT_EQ(json::parse(Read()), chosen) << text;
  }
}

// Text of an algorithm, but not of this product.
TEST_F(KeptProducts, AnAlgorithmThatDoesNotFitIsNamedAndReplaced) {
  const json first = Train();
  json kept = first;
  for (json& product : kept["products"]) {
    std::string& algorithm = product["algorithm"].get_ref<std::string&>();
    algorithm.assign(algorithm.size(), 'f');
  }
  Write(kept.dump());
  testing::internal::CaptureStderr();
  const json chosen = Train();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("the algorithm kept for the matrix product "));
  EXPECT_THAT(said, HasSubstr("run.products"));
  EXPECT_EQ(chosen.at("products").size(), first.at("products").size());
  for (const json& product : chosen["products"]) {
    EXPECT_NE(product.at("algorithm").get<std::string>().find_first_not_of('f'), std::string::npos);
  }
  EXPECT_EQ(json::parse(Read()), chosen);
}

TEST_F(KeptProducts, AFileThatCannotBeWrittenIsAWarning) {
  Write("no folder");
  testing::internal::CaptureStderr();
  OneRank run = OnCard(DeckOf(kLlama), Dtype::kFloat32, true, file_ + "/products.json");
  const std::vector<double> losses = run.Train(2);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("could not be kept"));
  EXPECT_EQ(losses.size(), 2u);
}

}  // namespace
}  // namespace trireme::test
