// Linear layers on a GPU, and the loss with the head's product.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "multiply_testing.hpp"
#include "trireme/base/json.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/kernels/vocabulary_loss.hpp"

namespace trireme::test {
namespace {

using kernels::ActivationKind;
using kernels::Form;
using kernels::Matrix;

// The vocabulary head on a GPU against the CPU's in fp64: losses and gradients for slices of the
// vocabulary, smoothing, z, masked rows.

struct Problem {
  std::int64_t rows, vocabulary, dim;
  kernels::LossTerms terms;
  Dtype dtype = Dtype::kFloat32;
  Values x, weight, before;  // before: what dweight is added to
  std::vector<std::int32_t> targets;
};

// Targets all over the vocabulary, several rows with the same one; every fifth masked.
Problem MakeProblem(std::int64_t rows, std::int64_t vocabulary, std::int64_t dim,
                    const kernels::LossTerms& terms, Dtype dtype) {
  Problem p{rows,
            vocabulary,
            dim,
            terms,
            dtype,
            Random(rows * dim, 1, dtype, 2),
            Random(vocabulary * dim, 2, dtype),
            Random(vocabulary * dim, 3, SumTypeOf(dtype)),
            {}};
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t target =
        r % 4 == 1 ? vocabulary / 2 : (r * 37 + vocabulary - 1) % vocabulary;
    p.targets.push_back(r % 5 == 3 ? -1 : static_cast<std::int32_t>(target));
  }
  return p;
}

struct Result {
  Values losses, dx, dweight;
  std::vector<std::vector<unsigned char>> bits;  // of all that was computed
};

Result OnTheCpu(Problem p) {
  HostMatrix x(p.rows, p.dim, p.x), weight(p.vocabulary, p.dim, p.weight);
  HostMatrix dx(p.rows, p.dim), dweight(p.vocabulary, p.dim, p.before);
  HostMatrix scratch(1,
                     kernels::VocabularyScratch({.threads = 1}, p.rows, p.vocabulary, p.dim, true));
  Values statistics(static_cast<std::size_t>(p.rows * kernels::kSoftmaxStatistics));
  Result result{Values(static_cast<std::size_t>(p.rows)), {}, {}, {}};
  const kernels::VocabularyTile tile{x.View(), weight.View(), p.targets.data(), 0, p.vocabulary,
                                     p.terms,  true};
  kernels::VocabularyStatistics({}, tile, scratch.View(), statistics.data());
  kernels::VocabularyLosses({}, tile, statistics.data(), 1, result.losses.data());
  kernels::VocabularyGradient({}, tile, scratch.View(), statistics.data(), 1, dx.View(),
                              dweight.View());
  result.dx = dx.Numbers();
  result.dweight = dweight.Numbers();
  return result;
}

class VocabularyTest : public ProductsTest {
 protected:
  // Rows of the matrix but the last `spare`.
  static Matrix Without(Matrix m, std::int64_t spare) {
    m.rows -= spare;
    return m;
  }
  // Rows of the values from the problem, with `spare` of zeros behind them.
  static Values RowsOf(const Values& values, const Part& range, std::int64_t dim,
                       std::int64_t spare) {
    Values rows(values.begin() + range.begin * dim, values.begin() + range.end * dim);
    rows.resize(rows.size() + static_cast<std::size_t>(spare * dim));
    return rows;
  }
  // Slice by slice, as ranks of a tensor group do it. shift: bytes, of the scratch memory from a
  // boundary of 16. with_spare: tables have the rows of zeros that products may take along.
  Result InSlices(const Problem& p, int parts, std::int64_t shift = 0, bool with_spare = false) {
    const auto spare_of = [&](const Part& range) {
      return with_spare ? kernels::VocabularySpareRows(Stream(), range.Size()) : 0;
    };
    const GpuMatrix x(Stream(), p.dtype, p.rows, p.dim, p.x);
    const OnGpu targets(Stream(), p.targets);
    const std::int64_t count = p.rows * kernels::kSoftmaxStatistics;
    const OnGpu statistics(Stream(), Values(static_cast<std::size_t>(parts * count), 7));
    const OnGpu losses(Stream(), Values(static_cast<std::size_t>(p.rows), 7));
    std::vector<kernels::VocabularyTile> tiles;
    std::vector<std::unique_ptr<GpuMatrix>> weights, scratch;
    for (int part = 0; part < parts; ++part) {
      const Part range = PartOf(p.vocabulary, part, parts);
      const std::int64_t spare = spare_of(range);
      weights.push_back(std::make_unique<GpuMatrix>(Stream(), p.dtype, range.Size() + spare, p.dim,
                                                    RowsOf(p.weight, range, p.dim, spare)));
      scratch.push_back(std::make_unique<GpuMatrix>(
          Stream(), p.dtype, 1,
          kernels::VocabularyScratch(Stream(), p.rows, range.Size(), p.dim, true), Values{}, 0,
          shift / static_cast<std::int64_t>(SizeOf(p.dtype))));
      tiles.push_back({x.View(), Without(weights.back()->View(), spare), targets.As<std::int32_t>(),
                       static_cast<std::int32_t>(range.begin), p.vocabulary, p.terms, true, nullptr,
                       spare});
      kernels::VocabularyStatistics(Stream(), tiles.back(), scratch.back()->View(),
                                    statistics.As<double>() + part * count);
    }
    kernels::VocabularyLosses(Stream(), tiles[0], statistics.As<double>(), parts,
                              losses.As<double>());
    Result result{losses.Out<double>(), Values(static_cast<std::size_t>(p.rows * p.dim)), {}, {}};
    result.bits.push_back(losses.Out<unsigned char>());
    for (int part = 0; part < parts; ++part) {
      const Part range = PartOf(p.vocabulary, part, parts);
      const auto which = static_cast<std::size_t>(part);
      const GpuMatrix dx(Stream(), p.dtype, p.rows, p.dim, {}, p.dim + 1);
      const std::int64_t spare = spare_of(range);
      const GpuMatrix dweight(Stream(), SumTypeOf(p.dtype), range.Size() + spare, p.dim,
                              RowsOf(p.before, range, p.dim, spare));
      kernels::VocabularyGradient(Stream(), tiles[which], scratch[which]->View(),
                                  statistics.As<double>(), parts, dx.View(),
                                  Without(dweight.View(), spare));
      const Values slice = dx.Values();
      Values rows = dweight.Values();
      const auto own = rows.begin() + range.Size() * p.dim;
      EXPECT_TRUE(std::all_of(own, rows.end(), [](double value) { return value == 0; }));
      rows.erase(own, rows.end());
      for (std::size_t i = 0; i < slice.size(); ++i) result.dx[i] += slice[i];
      result.dweight.insert(result.dweight.end(), rows.begin(), rows.end());
      EXPECT_TRUE(dx.GapsUntouched());
      result.bits.push_back(dx.Bits());
      result.bits.push_back(dweight.Bits());
    }
    return result;
  }
};

TEST_F(VocabularyTest, AgreesWithTheCpuInEverySlicing) {
  // Of logits and their sums; bf16 logits are rounded before and behind the softmax.
  const auto bound = [](Dtype dtype) {
    return dtype == Dtype::kBfloat16 ? 0.03 : 80 * UnitOf(dtype);
  };
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16}) {
    for (const kernels::LossTerms& terms :
         {kernels::LossTerms{}, kernels::LossTerms{0.1, 0}, kernels::LossTerms{0.1, 0.05}}) {
      for (const auto& [rows, vocabulary, dim] : {std::array<std::int64_t, 3>{1, 3, 1},
                                                  {7, 33, 5},
                                                  {21, 517, 24},
                                                  {4, 2601, 8},
                                                  {10, 64, 16}}) {
        const Problem p = MakeProblem(rows, vocabulary, dim, terms, dtype);
        const Result expected = OnTheCpu(p);
        for (int number = 2; number <= 7; ++number) {
          const int parts = number / 2;
          const bool spare = number % 2 == 1;
          SCOPED_TRACE(testing::Message()
                       << trireme::NameOf(dtype) << " smoothing " << terms.smoothing << " z "
                       << terms.z << " vocabulary " << vocabulary << " in " << parts
                       << (spare ? " with spare rows" : ""));
          const Result result = InSlices(p, parts, parts == 2 ? 8 : 0, spare);
          const double error = bound(dtype);
          ExpectClose(result.losses, expected.losses, error, error);
          ExpectClose(result.dx, expected.dx, error, 3 * error);
          ExpectClose(result.dweight, expected.dweight, error, 3 * error);
          for (std::size_t r = 0; r < p.targets.size(); ++r) {
            if (p.targets[r] >= 0) continue;
            EXPECT_EQ(result.losses[r], 0);
            for (std::int64_t d = 0; d < dim; ++d) {
              EXPECT_EQ(result.dx[r * static_cast<std::size_t>(dim) + static_cast<std::size_t>(d)],
                        0);
            }
          }
        }
      }
    }
  }
}

TEST_F(VocabularyTest, SpareRowsFillWholeUnits) {
  EXPECT_EQ(kernels::VocabularySpareRows(Stream(), 50257), 47);
  EXPECT_EQ(kernels::VocabularySpareRows(Stream(), 50304), 0);
  EXPECT_EQ(kernels::VocabularySpareRows(Stream(), 0), 0);
  EXPECT_EQ(kernels::VocabularySpareRows({}, 50257), 0);
}

TEST_F(VocabularyTest, TheSameBitsTwice) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16}) {
    const Problem p = MakeProblem(13, 700, 16, {0.1}, dtype);
    const Result first = InSlices(p, 2), second = InSlices(p, 2);
    EXPECT_EQ(first.bits, second.bits);
  }
}

// Rows of logits lie in shared memory and are read once, or they are wider than a block's and read
// twice (here on a card that has less): the same bits.
TEST_F(VocabularyTest, LogitsReadOnceGiveTheSameBits) {
  device::GpuContext small = *Stream().gpu;
  small.shared_bytes = 48 << 10;
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16}) {
    for (const std::int64_t vocabulary : {1, 90, 517, 4099, 13000}) {
      for (const std::int64_t shift : {0, 8}) {
        Problem p = MakeProblem(6, vocabulary, 3, {0.1}, dtype);
        p.x[0] = 40;  // a row with a certain token
        const Result once = InSlices(p, 1, shift, shift == 0);
        const device::GpuContext* const card = std::exchange(Stream().gpu, &small);
        const Result twice = InSlices(p, 1, shift, shift == 0);
        Stream().gpu = card;
        EXPECT_EQ(once.bits, twice.bits) << trireme::NameOf(dtype) << " " << vocabulary;
      }
    }
  }
}

// The statistics leave the gradients where the tile has the whole vocabulary, and logits elsewhere.
TEST_F(VocabularyTest, GradientsComeWithTheStatistics) {
  const auto change = [&](std::int64_t slice, std::int64_t vocabulary, Dtype dtype, bool gradient) {
    Values logits(static_cast<std::size_t>(slice));
    logits[0] = 3;
    const GpuMatrix x(Stream(), dtype, 1, 1, {1}), weight(Stream(), dtype, slice, 1, logits);
    const OnGpu targets(Stream(), std::vector<std::int32_t>{0});
    const OnGpu statistics(Stream(), Values(kernels::kSoftmaxStatistics));
    const GpuMatrix scratch(Stream(), dtype, 1,
                            kernels::VocabularyScratch(Stream(), 1, slice, 1, gradient), {});
    const kernels::VocabularyTile tile{.x = x.View(),
                                       .weight = weight.View(),
                                       .targets = targets.As<std::int32_t>(),
                                       .vocabulary = vocabulary,
                                       .gradient = gradient};
    kernels::VocabularyStatistics(Stream(), tile, scratch.View(), statistics.As<double>());
    return scratch.Values()[0] != 3;
  };
  EXPECT_TRUE(change(2, 2, Dtype::kFloat32, true));
  EXPECT_FALSE(change(2, 2, Dtype::kFloat32, false));
  EXPECT_FALSE(change(2, 3, Dtype::kFloat32, true));
  EXPECT_TRUE(change(28'672, 28'672, Dtype::kFloat32, true));
  EXPECT_FALSE(change(28'673, 28'673, Dtype::kFloat32, true));
  EXPECT_TRUE(change(57'344, 57'344, Dtype::kBfloat16, true));
  EXPECT_FALSE(change(57'345, 57'345, Dtype::kBfloat16, true));
}

// Beside a target that is nearly certain the other logits still count.
TEST_F(VocabularyTest, NearlyCertainTargets) {
  Problem p = MakeProblem(1, 50, 1, {}, Dtype::kFloat32);
  p.x = {20};
  p.weight.assign(50, 0);
  p.weight[17] = 1;
  p.targets = {17};
  const Result result = InSlices(p, 1);
  const double expected = std::log1p(49 * std::exp(-20.0));
  EXPECT_NEAR(result.losses[0], expected, 1e-5 * expected);
  const double pull = std::expm1(-expected);
  EXPECT_NEAR(result.dweight[17] - p.before[17], 20 * pull, 1e-6);
  EXPECT_NEAR(result.dx[0], pull, 1e-5 * std::fabs(pull));
}

TEST_F(VocabularyTest, WhatIsNotFiniteIsSeen) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16}) {
    for (const double bad : {kNan, kInfinity}) {
      // Among the targets' neighbours in an access, far from them, and as a target.
      for (const std::size_t token : {std::size_t{5}, std::size_t{70}, std::size_t{3}}) {
        Problem p = MakeProblem(2, 90, 1, {}, dtype);
        p.targets = {3, 4};
        p.x = {1, 1};
        p.weight[token] = bad;
        for (int parts = 1; parts <= 2; ++parts) {
          for (const double loss : InSlices(p, parts).losses) {
            EXPECT_FALSE(std::isfinite(loss)) << trireme::NameOf(dtype) << " " << token;
          }
        }
      }
    }
  }
}

// A slice of no tokens leaves the others' statistics alone.
TEST_F(VocabularyTest, EmptySlices) {
  const Problem p = MakeProblem(6, 3, 8, {0.1}, Dtype::kFloat32);
  const Result expected = OnTheCpu(p), result = InSlices(p, 5);
  ExpectClose(result.losses, expected.losses, 1e-5, 1e-5);
  ExpectClose(result.dx, expected.dx, 1e-5, 1e-5);
}

TEST_F(VocabularyTest, TilesFillHalfAGigabyteAtMost) {
  const auto tokens = [&](std::int64_t slice, Dtype dtype) {
    const std::int64_t most = kernels::VocabularyTileTokens(Stream(), 1 << 30, slice, dtype);
    EXPECT_EQ(kernels::VocabularyTileTokens(Stream(), most, slice, dtype), most);
    return most;
  };
  EXPECT_EQ(tokens(50257, Dtype::kBfloat16), 5248);
  EXPECT_EQ(tokens(50257, Dtype::kFloat32), 2560);
  EXPECT_EQ(tokens(1000, Dtype::kBfloat16), 8192);
  EXPECT_EQ(tokens(4'000'000, Dtype::kFloat64), 128);
  EXPECT_EQ(tokens(0, Dtype::kFloat32), 8192);
  EXPECT_LE(kernels::VocabularyScratch(Stream(), 5248, 50257, 768, true) * 2, 512 << 20);
}

// As few as there can be, and no small one behind the others.
TEST_F(VocabularyTest, TilesAreEven) {
  const auto tokens = [&](std::int64_t rows) {
    return kernels::VocabularyTileTokens(Stream(), rows, 50257, Dtype::kBfloat16);
  };
  EXPECT_EQ(tokens(1), 1);
  EXPECT_EQ(tokens(777), 777);
  EXPECT_EQ(tokens(5249), 2688);
  EXPECT_EQ(tokens(16384), 4096);
  for (std::int64_t rows = 1; rows < 60'000; rows += 77) {
    const std::int64_t tile = tokens(rows), tiles = CeilDivide(rows, tile);
    EXPECT_LE(tile, 5248);
    EXPECT_EQ(tiles, CeilDivide(rows, 5248)) << rows;
    EXPECT_LT(tile * tiles - rows, 128 * tiles) << rows;
  }
  EXPECT_EQ(kernels::VocabularyTileTokens({}, 16384, 50257, Dtype::kFloat32), 512);
  EXPECT_EQ(kernels::VocabularyTileTokens({}, 7, 50257, Dtype::kFloat32), 7);
}

TEST_F(VocabularyTest, OfNoRows) {
  Problem p = MakeProblem(0, 20, 4, {}, Dtype::kFloat32);
  const Result result = InSlices(p, 1);
  EXPECT_EQ(result.dweight, p.before);
}

// Linear layers on a GPU against the CPU's in fp64: biases, activations and their gradients, in the
// product's epilogue or in a pass after it.

constexpr Form kLinearForms[] = {Form::kTransposed, Form::kPlain};
constexpr Dtype kTypes[] = {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16};
constexpr std::int64_t kLinearRows = 19, kIn = 24, kOut = 40;

// Rounded once or twice in the type, sums in its sums' type.
double Bound(Dtype dtype) { return 3 * UnitOf(dtype) + 32 * UnitOf(SumTypeOf(dtype)); }

class LinearTest : public ProductsTest {
 protected:
  kernels::Linear Layer(Form form, const Matrix& weight) const { return {-1, form, weight}; }
  // weight: [out, in] for kTransposed, [in, out] for kPlain.
  static std::int64_t WeightRows(Form form) { return form == Form::kTransposed ? kOut : kIn; }
  static std::int64_t WeightColumns(Form form) { return form == Form::kTransposed ? kIn : kOut; }
  std::vector<std::string> ProductTexts() {
    std::vector<std::string> texts;
    const auto chosen = nlohmann::json::parse(Libraries().Chosen());
    for (const auto& product : chosen.at("products")) {
      texts.push_back(product.at("product"));
    }
    return texts;
  }
  // A card's library may lack an epilogue; the emulated one has those that are documented.
  void ExpectEpilogue(const std::string& name, bool expected) {
    bool used = false;
    for (const std::string& text : ProductTexts()) {
      used |= text.find(", " + name + " ") != std::string::npos;
    }
    if (RefusedEpilogues() == 100) expected = false;
    const bool known = !expected || (IsEmulated() && RefusedEpilogues() == 0);
    EXPECT_TRUE(!known || used == expected) << name;
  }
  void Forward(Dtype dtype, Form form, bool with_bias, std::int64_t padding);
  void Activation(Dtype dtype, Form form, ActivationKind kind, bool with_bias, double dropout,
                  std::int64_t padding);
  void Gradients(Dtype dtype, Form form, ActivationKind kind, double dropout, std::int64_t padding);
  kernels::Dropout Drop(double probability, const std::uint64_t* ordinals) const {
    return {.probability = probability, .seed = 7, .ordinals = ordinals, .length = 5};
  }
};

constexpr std::uint64_t kLinearOrdinals[] = {3, 14, 15, 92};

void LinearTest::Forward(Dtype dtype, Form form, bool with_bias, std::int64_t padding) {
  const Values x = Random(kLinearRows * kIn, 1, dtype), w = Random(kIn * kOut, 2, dtype);
  const Values b = Random(kOut, 3, dtype);
  HostMatrix host_x(kLinearRows, kIn, x), host_w(WeightRows(form), WeightColumns(form), w);
  HostMatrix host_b(1, kOut, b), expected(kLinearRows, kOut);
  int calls = 0;
  const auto then = [&](const Part& rows) {
    calls += rows.begin == 0 && rows.end == kLinearRows ? 1 : 1000;
  };
  const auto ignore = [](const Part&) {};
  kernels::LinearForward({}, Layer(form, host_w.View()), host_x.View(),
                         with_bias ? host_b.View() : Matrix{}, expected.View(), ignore);
  const GpuMatrix gpu_x(Stream(), dtype, kLinearRows, kIn, x, kIn + padding);
  const GpuMatrix gpu_w(Stream(), dtype, WeightRows(form), WeightColumns(form), w);
  const GpuMatrix gpu_b(Stream(), dtype, 1, kOut, b, 0, padding);
  const GpuMatrix y(Stream(), dtype, kLinearRows, kOut, {}, kOut + padding);
  kernels::LinearForward(Stream(), Layer(form, gpu_w.View()), gpu_x.View(),
                         with_bias ? gpu_b.View() : Matrix{}, y.View(), then);
  EXPECT_EQ(calls, 1);
  ExpectClose(y.Values(), expected.Numbers(), Bound(dtype), Bound(dtype));
  EXPECT_TRUE(y.GapsUntouched());
}

TEST_F(LinearTest, ForwardWithAndWithoutBias) {
  for (const Dtype dtype : kTypes) {
    for (const Form form : kLinearForms) {
      for (const bool with_bias : {false, true}) {
        for (const std::int64_t padding : {0, 3}) {
          SCOPED_TRACE(testing::Message() << trireme::NameOf(dtype) << (with_bias ? " bias" : "")
                                          << " padding " << padding);
          Forward(dtype, form, with_bias, padding);
        }
      }
    }
    ExpectEpilogue("bias", dtype != Dtype::kFloat64);
    Open();
  }
}

void LinearTest::Activation(Dtype dtype, Form form, ActivationKind kind, bool with_bias,
                            double dropout, std::int64_t padding) {
  const bool gated = kind == ActivationKind::kSwiglu, relu = kind == ActivationKind::kRelu;
  const std::int64_t width = gated ? kOut / 2 : kOut;
  const Values x = Random(kLinearRows * kIn, 1, dtype), w = Random(kIn * kOut, 2, dtype, 0.5);
  const Values b = Random(kOut, 3, dtype);
  HostMatrix host_x(kLinearRows, kIn, x), host_w(WeightRows(form), WeightColumns(form), w);
  HostMatrix host_b(1, kOut, b), host_pre(kLinearRows, kOut), host_out(kLinearRows, width);
  kernels::LinearActivation(
      {}, Layer(form, host_w.View()), host_x.View(), with_bias ? host_b.View() : Matrix{}, kind,
      Drop(dropout, kLinearOrdinals), host_pre.View(), relu ? host_pre.View() : host_out.View());
  const OnGpu ordinals(Stream(), kLinearOrdinals, sizeof kLinearOrdinals);
  const GpuMatrix gpu_x(Stream(), dtype, kLinearRows, kIn, x);
  const GpuMatrix gpu_w(Stream(), dtype, WeightRows(form), WeightColumns(form), w);
  const GpuMatrix gpu_b(Stream(), dtype, 1, kOut, b);
  const GpuMatrix pre(Stream(), dtype, kLinearRows, kOut, {}, kOut + padding);
  const GpuMatrix out(Stream(), dtype, kLinearRows, width, {}, width + padding);
  kernels::LinearActivation(
      Stream(), Layer(form, gpu_w.View()), gpu_x.View(), with_bias ? gpu_b.View() : Matrix{}, kind,
      Drop(dropout, ordinals.As<std::uint64_t>()), pre.View(), relu ? pre.View() : out.View());
  ExpectClose(pre.Values(), host_pre.Numbers(), Bound(dtype), Bound(dtype));
  if (!relu) ExpectClose(out.Values(), host_out.Numbers(), 2 * Bound(dtype), 2 * Bound(dtype));
  EXPECT_TRUE(pre.GapsUntouched());
  EXPECT_TRUE(out.GapsUntouched());
}

TEST_F(LinearTest, ActivationsInTheEpilogueOrBehindIt) {
  for (const Dtype dtype : kTypes) {
    for (const ActivationKind kind :
         {ActivationKind::kRelu, ActivationKind::kGelu, ActivationKind::kSwiglu}) {
      for (const bool with_bias : {false, true}) {
        for (const double dropout : {0.0, 0.25}) {
          for (const std::int64_t padding : {0, 3, 8}) {
            SCOPED_TRACE(testing::Message() << trireme::NameOf(dtype) << " kind "
                                            << static_cast<int>(kind) << (with_bias ? " bias" : "")
                                            << " dropout " << dropout << " padding " << padding);
            Open();
            const Form form = padding == 8 ? Form::kPlain : Form::kTransposed;
            Activation(dtype, form, kind, with_bias, dropout, padding);
            const std::string bias = with_bias ? "_bias" : "";
            ExpectEpilogue("relu" + bias, kind == ActivationKind::kRelu && dropout == 0 &&
                                              dtype != Dtype::kFloat64);
            ExpectEpilogue("gelu_aux" + bias, kind == ActivationKind::kGelu && dropout == 0 &&
                                                  dtype == Dtype::kBfloat16 && padding % 8 == 0);
          }
        }
      }
    }
  }
}

// The gradient of the layer's input, with the activation before it, and of its weight.
void LinearTest::Gradients(Dtype dtype, Form form, ActivationKind kind, double dropout,
                           std::int64_t padding) {
  const bool gated = kind == ActivationKind::kSwiglu;
  const std::int64_t width = gated ? 2 * kIn : kIn;
  const Dtype sums = SumTypeOf(dtype);
  const Values dy = Random(kLinearRows * kOut, 1, dtype), w = Random(kIn * kOut, 2, dtype, 0.5);
  const Values from = Random(kLinearRows * width, 3, dtype, 2),
               x = Random(kLinearRows * kIn, 4, dtype);
  const Values before = Random(kIn * kOut, 5, sums);
  const std::int64_t w_rows = WeightRows(form), w_columns = WeightColumns(form);
  HostMatrix host_dy(kLinearRows, kOut, dy), host_w(w_rows, w_columns, w),
      host_x(kLinearRows, kIn, x);
  HostMatrix host_from(kLinearRows, width, from), host_hidden(kLinearRows, kIn),
      host_pre(kLinearRows, width);
  HostMatrix host_dx(kLinearRows, kIn), host_dw(w_rows, w_columns, before);
  const kernels::Linear host = Layer(form, host_w.View());
  kernels::LinearActivationGradient({}, host, host_dy.View(), kind, host_from.View(),
                                    Drop(dropout, kLinearOrdinals), host_hidden.View(),
                                    gated ? host_pre.View() : host_hidden.View());
  kernels::LinearInputGradient({}, host, host_dy.View(), host_dx.View());
  kernels::LinearWeightGradient({}, host, host_x.View(), host_dy.View(), host_dw.View());

  const OnGpu ordinals(Stream(), kLinearOrdinals, sizeof kLinearOrdinals);
  const GpuMatrix gpu_dy(Stream(), dtype, kLinearRows, kOut, dy),
      gpu_x(Stream(), dtype, kLinearRows, kIn, x);
  const GpuMatrix gpu_w(Stream(), dtype, w_rows, w_columns, w);
  const GpuMatrix gpu_from(Stream(), dtype, kLinearRows, width, from, width + padding);
  const GpuMatrix hidden(Stream(), dtype, kLinearRows, kIn, {}, kIn + padding);
  const GpuMatrix pre(Stream(), dtype, kLinearRows, width, {}, width + padding);
  const GpuMatrix dx(Stream(), dtype, kLinearRows, kIn, {}, kIn + padding);
  const GpuMatrix dw(Stream(), sums, w_rows, w_columns, before, w_columns + padding);
  const kernels::Linear gpu = Layer(form, gpu_w.View());
  kernels::LinearActivationGradient(Stream(), gpu, gpu_dy.View(), kind, gpu_from.View(),
                                    Drop(dropout, ordinals.As<std::uint64_t>()), hidden.View(),
                                    gated ? pre.View() : hidden.View());
  kernels::LinearInputGradient(Stream(), gpu, gpu_dy.View(), dx.View());
  kernels::LinearWeightGradient(Stream(), gpu, gpu_x.View(), gpu_dy.View(), dw.View());
  const double bound = 2 * Bound(dtype);
  if (gated) {
    ExpectClose(pre.Values(), host_pre.Numbers(), bound, 2 * bound);
  } else {
    ExpectClose(hidden.Values(), host_hidden.Numbers(), bound, 2 * bound);
  }
  ExpectClose(dx.Values(), host_dx.Numbers(), bound, bound);
  ExpectClose(dw.Values(), host_dw.Numbers(), Bound(sums), Bound(sums));
  EXPECT_TRUE(hidden.GapsUntouched() && pre.GapsUntouched() && dx.GapsUntouched() &&
              dw.GapsUntouched());
}

TEST_F(LinearTest, GradientsOfInputsAndWeights) {
  for (const Dtype dtype : kTypes) {
    for (const ActivationKind kind :
         {ActivationKind::kRelu, ActivationKind::kGelu, ActivationKind::kSwiglu}) {
      for (const double dropout : {0.0, 0.25}) {
        for (const std::int64_t padding : {0, 3}) {
          SCOPED_TRACE(testing::Message()
                       << trireme::NameOf(dtype) << " kind " << static_cast<int>(kind)
                       << " dropout " << dropout << " padding " << padding);
          Open();
          Gradients(dtype, padding == 0 ? Form::kPlain : Form::kTransposed, kind, dropout, padding);
          ExpectEpilogue("dgelu", kind == ActivationKind::kGelu && dropout == 0 &&
                                      dtype == Dtype::kBfloat16 && padding == 0);
        }
      }
    }
  }
}

TEST_F(LinearTest, OfNoRows) {
  const GpuMatrix weight(Stream(), Dtype::kBfloat16, kOut, kIn, {}),
      dw(Stream(), Dtype::kFloat32, kOut, kIn, {});
  const GpuMatrix x(Stream(), Dtype::kBfloat16, 1, kIn, {}),
      y(Stream(), Dtype::kBfloat16, 1, kOut, Values(kOut, 1.0));
  const kernels::Linear layer = Layer(Form::kTransposed, weight.View());
  const Matrix no_x = x.View().Rows(0, 0), no_y = y.View().Rows(0, 0);
  kernels::LinearForward(Stream(), layer, no_x, {}, no_y, [](const Part&) {});
  kernels::LinearActivation(Stream(), layer, no_x, {}, ActivationKind::kRelu, {}, no_y, no_y);
  kernels::LinearInputGradient(Stream(), layer, no_y, no_x);
  kernels::LinearActivationGradient(Stream(), layer, no_y, ActivationKind::kGelu, no_x, {}, no_x,
                                    no_x);
  kernels::LinearWeightGradient(Stream(), layer, no_x, no_y, dw.View());
  EXPECT_EQ(y.Values(), Values(kOut, 1.0));
  EXPECT_EQ(dw.Values(), Values(kOut * kIn, 0.0));
}

}  // namespace
}  // namespace trireme::test
