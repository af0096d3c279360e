// Kernels without rows, as on a rank that has none of a micro-batch: memory stays as it is.
#include <utility>

#include "kernel_testing.hpp"
#include "trireme/kernels/attention.hpp"
#include "trireme/kernels/elementwise.hpp"
#include "trireme/kernels/vocabulary_loss.hpp"

namespace trireme::test {
namespace {

class NoRowsTest : public KernelTest {
 protected:
  static constexpr std::int64_t kColumns = 6;
  const Array weights_ = Random(1, kColumns, 1);
  const Operand none_{GetParam(), Array(0, kColumns)};
  const Operand wide_{GetParam(), Array(0, 2 * kColumns)};
  const Operand weight_{GetParam(), weights_};
  const Operand sums_{GetParam(), weights_};
  const Operand statistics_{Dense(GetParam()), Array(0, 2)};
  const Operand scratch_{Dense(GetParam()), Array(kernels::kReductionBlocks, 2 * kColumns)};
  const kernels::Dropout dropout_ = MakeDropout(0.3, 4);

  void ExpectUntouched() const {
    for (const Operand* each : {&none_, &wide_, &statistics_}) each->Values();  // checks the marks
    EXPECT_EQ(weight_.Values().values, weights_.values);
    EXPECT_EQ(sums_.Values().values, weights_.values);
  }
};

TEST_P(NoRowsTest, Elementwise) {
  using kernels::ActivationKind;
  kernels::AddBias(Stream(), none_.View(), weight_.View());
  kernels::Add(Stream(), none_.View(), none_.View());
  kernels::Copy(Stream(), none_.View(), none_.View());
  kernels::DropoutForward(Stream(), none_.View(), dropout_, none_.View());
  kernels::ResidualForward(Stream(), none_.View(), none_.View(), weight_.View(), dropout_,
                           none_.View());
  for (const ActivationKind kind :
       {ActivationKind::kRelu, ActivationKind::kGelu, ActivationKind::kSwiglu}) {
    const kernels::Matrix pre = (kind == ActivationKind::kSwiglu ? wide_ : none_).View();
    kernels::ActivationForward(Stream(), kind, pre, None(), dropout_, none_.View());
    kernels::ActivationBackward(Stream(), kind, pre, dropout_, none_.View(), pre);
  }
  ExpectUntouched();
}

TEST_P(NoRowsTest, Norms) {
  using kernels::NormKind;
  for (const NormKind kind : {NormKind::kLayerNorm, NormKind::kRmsNorm}) {
    kernels::NormForward(Stream(), kind, none_.View(), weight_.View(), None(), 1e-5, none_.View(),
                         statistics_.View());
    kernels::NormBackwardInput(Stream(), kind, none_.View(), none_.View(), weight_.View(),
                               statistics_.View(), none_.View(), false);
  }
  kernels::NormBackwardWeight(Stream(), none_.View(), none_.View(), statistics_.View(),
                              sums_.View(), sums_.View(), scratch_.View());
  kernels::ColumnSum(Stream(), none_.View(), sums_.View(), scratch_.View());
  ExpectUntouched();
}

TEST_P(NoRowsTest, EmbeddingAndHead) {
  kernels::EmbeddingForward(Stream(), nullptr, 3, weight_.View(), 2, none_.View());
  kernels::EmbeddingBackward(Stream(), nullptr, 3, 2, none_.View(), sums_.View());
  kernels::PositionForward(Stream(), weight_.View(), nullptr, dropout_, none_.View());
  kernels::PositionBackward(Stream(), nullptr, dropout_, none_.View(), sums_.View());
  kernels::CrossEntropy(Stream(), none_.View(), nullptr, 0.1, true, nullptr);
  kernels::SoftmaxStatistics(Stream(), none_.View(), nullptr, 3, nullptr);
  kernels::CrossEntropySlice(Stream(), none_.View(), nullptr, 3, 40, 0.1, true, nullptr, 2, 1,
                             nullptr);
  ExpectUntouched();
}

TEST_P(NoRowsTest, Attention) {
  kernels::AttentionShape shape;
  shape.length = 4;
  shape.heads = shape.kv_heads = 1;
  shape.head_dim = 2;  // qkv: 6 columns
  const Operand out(GetParam(), Array(0, 2)), lse(GetParam(), Array(0, 1));
  const Operand scratch(Dense(GetParam()),
                        Array(1, kernels::AttentionScratch({.threads = Stream().threads}, shape,
                                                           Dtype::kFloat64, true)));
  const Operand table(GetParam(), Random(4, 2, 1));
  kernels::Rope(Stream(), shape, table.View(), false, none_.View());
  kernels::AttentionForward(Stream(), shape, none_.View(), dropout_, out.View(), lse.View(),
                            scratch.View());
  kernels::AttentionBackward(Stream(), shape, none_.View(), dropout_, out.View(), out.View(),
                             lse.View(), none_.View(), scratch.View());
  out.Values();
  lse.Values();
  ExpectUntouched();
}

INSTANTIATE_TEST_SUITE_P(Kernel, NoRowsTest, testing::ValuesIn(AllSettings()), NameOf);

}  // namespace
}  // namespace trireme::test
