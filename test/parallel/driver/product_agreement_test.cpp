// Ranks agree on the algorithms of their matrix products, each list of products sent once.
#include <gtest/gtest.h>
#include <mpi.h>

#include <string>
#include <vector>

#include "listening_libraries.hpp"
#include "trireme/train/training_step.hpp"

namespace trireme::test {
namespace {

// Choice of algorithm `algorithm` for each product.
std::string Chosen(const std::vector<std::string>& products, int algorithm,
                   const std::string& card = "a card") {
  std::string list;
  for (const std::string& product : products) {
    list += (list.empty() ? "" : ", ") + std::string(R"({"product": ")") + product +
            R"(", "algorithm": )" + std::to_string(algorithm) + "}";
  }
  return R"({"card": ")" + card + R"(", "library": "a library", "products": [)" + list + "]}";
}

class ProductAgreement : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(world_.Size(), 4); }
  int Rank() const { return world_.Rank(); }
  // Texts that this rank adopts, if its own is `own`.
  std::vector<std::string> Adopted(const std::string& own) const {
    Listening libraries(own);
    train::AgreeOnChoices(world_, libraries);
    EXPECT_EQ(libraries.Adopted().size(), 1);
    return libraries.Adopted().at(0);
  }
  const comm::Communicator world_ = comm::Communicator::Adopt(MPI_COMM_WORLD);
};

using Texts = std::vector<std::string>;

TEST_F(ProductAgreement, RanksWithTheSameProductsSendTheirsOnce) {
  // Two stages of a pipeline with two replicas each, timed apart.
  const Texts products = Rank() % 2 == 0 ? Texts{"q", "p"} : Texts{"p", "head"};
  const Texts want = {Chosen({"q", "p"}, 0), Chosen({"p", "head"}, 1)};
  EXPECT_EQ(Adopted(Chosen(products, Rank())), want);
}

TEST_F(ProductAgreement, CardsOfOtherKindsAreHeard) {
  const auto of = [](int rank) { return Chosen({"p"}, rank, rank == 2 ? "another" : "a card"); };
  EXPECT_EQ(Adopted(of(Rank())), (Texts{of(0), of(2)}));
}

TEST_F(ProductAgreement, NoProductsAreNoHindrance) {
  const Texts products = Rank() == 3 ? Texts{"p"} : Texts{};
  EXPECT_EQ(Adopted(Chosen(products, 7)), (Texts{Chosen({}, 7), Chosen({"p"}, 7)}));
}

}  // namespace
}  // namespace trireme::test
