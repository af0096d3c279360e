// Updates of the weights on a GPU against the CPU's, and sums of squares.
#include <cmath>
#include <limits>

#include "rowwise_testing.hpp"
#include "trireme/kernels/update.hpp"

namespace trireme::test {
namespace {

using kernels::UpdateScalars;

const UpdateScalars kScalars{.learning_rate = 0.01,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .epsilon = 1e-8,
                             .correction1 = 0.271,
                             .correction2 = 0.1426,
                             .gradient_scale = 0.25};

// Storage of one range: element by element behind an odd offset, or on a boundary.
struct Storage {
  Storage(const device::Stream& stream, Dtype dtype, const HostRows& host, std::int64_t offset)
      : on(stream, dtype, 1, host.columns, host.values, 0, offset) {}
  void* Data() const { return on.View().data; }
  GpuMatrix on;
};

class RowwiseUpdate : public GpuTest, public testing::WithParamInterface<Dtype> {
 protected:
  // Lengths of ranges: many, of which some are empty, one is longer than a block's share and
  // some begin on no boundary.
  static std::vector<std::int64_t> Lengths() {
    std::vector<std::int64_t> lengths = {5000, 0, 1, 2, 3, 1024, 1023};
    while (lengths.size() < 130) lengths.push_back(static_cast<std::int64_t>(lengths.size()) % 9);
    return lengths;
  }
  RowwiseTolerance Near() const {
    return GetParam() == Dtype::kFloat32 ? RowwiseTolerance{2e-6, 2e-7}
                                         : RowwiseTolerance{1e-14, 1e-15};
  }
};
INSTANTIATE_TEST_SUITE_P(All, RowwiseUpdate, testing::Values(Dtype::kFloat32, Dtype::kFloat64),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

// All ranges' four arrays on either side.
struct UpdateProblem {
  std::vector<HostRows> gradients, values, first, second;
  std::vector<Storage> gradients_on, values_on, first_on, second_on, copies_on;
  std::vector<kernels::UpdateRange> host, card;

  UpdateProblem(const device::Stream& stream, Dtype dtype, const std::vector<std::int64_t>& lengths,
                bool copies) {
    unsigned seed = 0;
    for (const std::int64_t length : lengths) {
      const std::int64_t offset = seed % 3 == 2 ? 1 : 0;
      gradients.push_back(HostRows::Random(1, length, ++seed));
      values.push_back(HostRows::Random(1, length, ++seed));
      first.push_back(HostRows::Random(1, length, ++seed));
      second.push_back(HostRows::Random(1, length, ++seed));
      for (double& value : second.back().values) value = std::abs(value);
      gradients_on.emplace_back(stream, dtype, gradients.back(), offset);
      values_on.emplace_back(stream, dtype, values.back(), offset);
      first_on.emplace_back(stream, dtype, first.back(), offset);
      second_on.emplace_back(stream, dtype, second.back(), offset);
      copies_on.emplace_back(stream, Dtype::kBfloat16, HostRows(1, length), offset);
    }
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const double decay = i % 2 == 0 ? 0.1 : 0;
      host.push_back({lengths[i], decay, gradients[i].values.data(), values[i].values.data(),
                      first[i].values.data(), second[i].values.data()});
      card.push_back({lengths[i], decay, gradients_on[i].Data(), values_on[i].Data(),
                      first_on[i].Data(), second_on[i].Data(),
                      copies && i % 5 != 4 ? copies_on[i].Data() : nullptr});
    }
  }
};

TEST_P(RowwiseUpdate, AdamW) {
  const OnGpu scalars(Stream(), std::vector<UpdateScalars>{kScalars});
  for (const bool clear : {false, true}) {
    UpdateProblem problem(Stream(), GetParam(), Lengths(), clear);
    kernels::AdamW(Stream(), GetParam(), problem.card, scalars.As<UpdateScalars>(), clear);
    kernels::AdamW({}, Dtype::kFloat64, problem.host, &kScalars, clear);
    for (std::size_t i = 0; i < problem.host.size(); ++i) {
      const std::string what = "range " + std::to_string(i);
      ExpectRows(problem.values_on[i].on.Values(), problem.values[i], Near(), what + " values");
      ExpectRows(problem.first_on[i].on.Values(), problem.first[i], Near(), what + " first");
      ExpectRows(problem.second_on[i].on.Values(), problem.second[i], Near(), what + " second");
      EXPECT_EQ(problem.gradients_on[i].on.Values(), problem.gradients[i].values) << what;
      const std::vector<double> copies = problem.copies_on[i].on.Values();
      const std::vector<double> values = problem.values_on[i].on.Values();
      for (std::size_t j = 0; j < copies.size(); ++j) {
        const bool wanted = problem.card[i].copies != nullptr;
        const double rounded =
            static_cast<double>(FromBfloat16(RoundToBfloat16(static_cast<float>(values[j]))));
        ASSERT_EQ(copies[j], wanted ? rounded : 0) << what << " copy " << j;
      }
    }
  }
}

TEST_P(RowwiseUpdate, GradientDescentNeedsNoMoments) {
  const OnGpu scalars(Stream(), std::vector<UpdateScalars>{kScalars});
  UpdateProblem problem(Stream(), GetParam(), Lengths(), false);
  for (kernels::UpdateRange& range : problem.card) range.first = range.second = nullptr;
  kernels::GradientDescent(Stream(), GetParam(), problem.card, scalars.As<UpdateScalars>(), true);
  kernels::GradientDescent({}, Dtype::kFloat64, problem.host, &kScalars, true);
  for (std::size_t i = 0; i < problem.host.size(); ++i) {
    ExpectRows(problem.values_on[i].on.Values(), problem.values[i], Near(),
               "range " + std::to_string(i));
    EXPECT_EQ(problem.gradients_on[i].on.Values(), problem.gradients[i].values);
  }
  kernels::AdamW(Stream(), GetParam(), {}, scalars.As<UpdateScalars>(), true);
}

TEST_P(RowwiseUpdate, GradientDescentScalesByASumOnTheCard) {
  const OnGpu scalars(Stream(), std::vector<UpdateScalars>{kScalars});
  const std::vector<double> squares = {0.0, 6.25};
  const OnGpu squares_there(Stream(), squares);
  UpdateProblem problem(Stream(), GetParam(), Lengths(), false);
  for (std::size_t i = 0; i < problem.host.size(); ++i) {
    problem.card[i].scale = problem.host[i].scale = -1.5;
    if (i % 3 == 0) continue;
    problem.card[i].squares = squares_there.As<double>() + i % 2;
    problem.host[i].squares = squares.data() + i % 2;
  }
  kernels::GradientDescent(Stream(), GetParam(), problem.card, scalars.As<UpdateScalars>(), false);
  kernels::GradientDescent({}, Dtype::kFloat64, problem.host, &kScalars, false);
  for (std::size_t i = 0; i < problem.host.size(); ++i) {
    ExpectRows(problem.values_on[i].on.Values(), problem.values[i], Near(),
               "range " + std::to_string(i));
  }
}

TEST_P(RowwiseUpdate, SumsOfSquares) {
  std::vector<HostRows> host;
  std::vector<Storage> card;
  std::vector<kernels::FlatRange> on_host, on_card;
  unsigned seed = 0;
  std::vector<std::int64_t> lengths = Lengths();
  lengths.push_back(70000);  // several blocks
  for (const std::int64_t length : lengths) {
    host.push_back(HostRows::Random(1, length, ++seed));
    card.emplace_back(Stream(), GetParam(), host.back(), seed % 3 == 2 ? 1 : 0);
  }
  HostRows want(1, static_cast<std::int64_t>(lengths.size()));
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    on_host.push_back({lengths[i], host[i].values.data()});
    on_card.push_back({lengths[i], card[i].Data()});
  }
  const GpuMatrix sums(Stream(), Dtype::kFloat64, 1, want.columns,
                       std::vector<double>(lengths.size(), 9));
  kernels::SquareSums(Stream(), GetParam(), on_card, sums.View().As<double>());
  kernels::SquareSums({}, Dtype::kFloat64, on_host, want.values.data());
  ExpectRows(sums.Values(), want, {1e-14, 0}, "sums");
  const double total = kernels::SquareSum({}, Dtype::kFloat64, on_host);
  const double found = kernels::SquareSum(Stream(), GetParam(), on_card);
  EXPECT_NEAR(found, total, 1e-13 * total);
  EXPECT_EQ(kernels::SquareSum(Stream(), GetParam(), on_card), found);
  EXPECT_EQ(kernels::SquareSum(Stream(), GetParam(), {}), 0);
}

TEST_P(RowwiseUpdate, SumsOfSquaresThatAreNotFinite) {
  for (const double bad :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    for (const std::size_t at : {0, 1000, 4098}) {
      HostRows values = HostRows::Random(1, 4099, 1);
      values.values[at] = bad;
      const Storage on(Stream(), GetParam(), values, 0);
      const kernels::FlatRange range{values.columns, on.Data()};
      EXPECT_FALSE(std::isfinite(kernels::SquareSum(Stream(), GetParam(), {&range, 1}))) << at;
    }
  }
}

}  // namespace
}  // namespace trireme::test
