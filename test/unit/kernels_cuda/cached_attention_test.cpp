// Attention to a cache of keys and values on a GPU against the CPU's in fp64, in all types: texts
// of different lengths in slots of their own, odd sizes, caches of one piece and of several.
#include <algorithm>
#include <cmath>

#include "attention_testing.hpp"
#include "kernels/backends.hpp"

namespace trireme::test {
namespace {

using kernels::AttentionShape;

constexpr std::int64_t kSlots = 5;
const std::vector<std::int32_t> kSlotOf = {3, 0, 4};  // of each sequence

struct Case {
  AttentionShape shape;  // length: rows of the pass that attends
  std::int64_t positions;
  std::vector<std::int32_t> firsts;  // of each sequence: positions kept before
};

kernels::Matrix KeyValuesOf(const AttentionShape& shape, const kernels::Matrix& qkv) {
  return qkv.Columns(shape.heads * shape.head_dim, 2 * shape.kv_heads * shape.head_dim);
}

class CudaCachedAttentionTest : public AttentionOnGpu, public testing::WithParamInterface<Dtype> {
 protected:
  Dtype Type() const { return GetParam(); }

  // Keys and values of what lies before, one sequence after the other, then the rows that attend.
  struct Texts {
    explicit Texts(const Case& c) {
      for (std::int64_t i = 0; i < c.shape.sequences; ++i) {
        AttentionShape before = c.shape;
        before.sequences = 1;
        before.length = c.firsts[static_cast<std::size_t>(i)];
        kept.emplace_back(before, 0);
      }
      next = std::make_unique<AttentionProblem>(c.shape, 0);
      std::reverse(next->qkv.begin(), next->qkv.end());
    }
    std::vector<AttentionProblem> kept;
    std::unique_ptr<AttentionProblem> next;
  };

  static Values OnCpu(const Case& c, const Texts& texts) {
    const device::Stream stream;
    const std::int64_t elements =
        kernels::cpu::KeyValueElements(stream, c.shape, c.positions) * kSlots;
    Values memory(static_cast<std::size_t>(elements));
    const kernels::KeyValueCache cache{memory.data(), Dtype::kFloat64, kSlots, c.positions};
    const auto view = [&](Values& values, std::int64_t columns) {
      const auto size = static_cast<std::int64_t>(values.size());
      return kernels::Matrix{values.data(), Dtype::kFloat64, size / columns, columns, columns};
    };
    const std::int32_t start = 0;
    for (std::size_t i = 0; i < texts.kept.size(); ++i) {
      if (c.firsts[i] == 0) continue;
      Values qkv = texts.kept[i].qkv;
      kernels::cpu::KeepKeyValues(stream, texts.kept[i].shape,
                                  KeyValuesOf(c.shape, view(qkv, c.shape.Width())),
                                  {&kSlotOf[i], &start}, cache);
    }
    Values qkv = texts.next->qkv,
           out(static_cast<std::size_t>(texts.next->Rows() * texts.next->Queries()));
    const kernels::CachedRows rows{kSlotOf.data(), c.firsts.data()};
    kernels::cpu::KeepKeyValues(stream, c.shape, KeyValuesOf(c.shape, view(qkv, c.shape.Width())),
                                rows, cache);
    kernels::cpu::CachedAttention(stream, c.shape, view(qkv, c.shape.Width()), rows, cache,
                                  view(out, texts.next->Queries()));
    return out;
  }

  // Beyond what is kept the slots have older texts, here NaN, and so has the room of parts.
  Values OnGpu(const Case& c, const Texts& texts, Layout layout) const {
    const std::int64_t elements = kernels::KeyValueElements(Stream(), c.shape, c.positions);
    EXPECT_EQ(elements, kernels::gpu::KeyValueElements(Stream(), c.shape, c.positions));
    const std::int64_t row = kernels::gpu::CachedRow(c.shape.head_dim);
    EXPECT_GE(elements, 2 * c.shape.kv_heads * c.positions * row);
    const GpuMatrix memory(Stream(), Type(), kSlots, elements, NoNumbers(kSlots * elements),
                           elements, 8);
    const kernels::KeyValueCache cache{memory.View().data, Type(), kSlots, c.positions};
    const test::OnGpu slots(Stream(), kSlotOf), firsts(Stream(), c.firsts);
    const test::OnGpu start(Stream(), std::vector<std::int32_t>(1, 0));
    const std::int64_t width = c.shape.Width();
    for (std::size_t i = 0; i < texts.kept.size(); ++i) {
      if (c.firsts[i] == 0) continue;
      const auto qkv = OnGpuAs(Stream(), Type(), layout, width, texts.kept[i].qkv);
      kernels::KeepKeyValues(Stream(), texts.kept[i].shape, KeyValuesOf(c.shape, qkv->View()),
                             {slots.As<std::int32_t>() + i, start.As<std::int32_t>()}, cache);
      Synchronise();
    }
    const auto qkv = OnGpuAs(Stream(), Type(), layout, width, texts.next->qkv);
    const auto out = OnGpuAs(Stream(), Type(), layout, texts.next->Queries(),
                             NoNumbers(texts.next->Rows() * texts.next->Queries()));
    const kernels::CachedRows rows{slots.As<std::int32_t>(), firsts.As<std::int32_t>()};
    kernels::KeepKeyValues(Stream(), c.shape, KeyValuesOf(c.shape, qkv->View()), rows, cache);
    kernels::CachedAttention(Stream(), c.shape, qkv->View(), rows, cache, out->View());
    EXPECT_TRUE(out->GapsUntouched());
    EXPECT_TRUE(memory.GapsUntouched());
    ExpectOthersUntouched(c, memory);
    return out->Values();
  }

  // Slots of no sequence keep their NaN.
  void ExpectOthersUntouched(const Case& c, const GpuMatrix& memory) const {
    const Values values = memory.Values();
    const std::size_t elements = values.size() / kSlots;
    for (std::int32_t slot = 0; slot < kSlots; ++slot) {
      const auto end = kSlotOf.begin() + c.shape.sequences;
      if (std::find(kSlotOf.begin(), end, slot) != end) continue;
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(slot * elements);
      EXPECT_TRUE(std::all_of(begin, begin + static_cast<std::ptrdiff_t>(elements),
                              [](double value) { return std::isnan(value); }))
          << slot;
    }
  }

  void Compare(const Case& c) const {
    const Texts texts(c);
    const Values want = OnCpu(c, texts);
    for (const Layout layout : {Layout::kAligned, Layout::kOdd}) {
      ExpectNear(OnGpu(c, texts, layout), want, ToleranceOf(Type()).out,
                 Describe(*texts.next, Type()) + std::to_string(c.positions) + " positions");
    }
  }
};

AttentionShape ShapeOf(std::int64_t sequences, std::int64_t length, std::int64_t heads,
                       std::int64_t kv_heads, std::int64_t head_dim) {
  return {.sequences = sequences,
          .length = length,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim};
}

// Caches of one piece: tiles of 64 keys, not and just filled; groups of all sizes of blocks, and
// more heads than a block has.
TEST_P(CudaCachedAttentionTest, OneTokenOfEachText) {
  Compare({ShapeOf(1, 1, 1, 1, 1), 1, {0}});
  Compare({ShapeOf(3, 1, 2, 1, 3), 12, {0, 11, 5}});
  Compare({ShapeOf(3, 1, 3, 3, 4), 65, {63, 64, 62}});
  Compare({ShapeOf(2, 1, 6, 2, 16), 131, {130, 7}});
  Compare({ShapeOf(2, 1, 18, 1, 17), 100, {40, 99}});
  Compare({ShapeOf(1, 1, 8, 2, 80), 90, {80}});
  Compare({ShapeOf(3, 1, 5, 1, 128), 70, {69, 1, 33}});
  Compare({ShapeOf(2, 1, 2, 1, 256), 70, {69, 12}});
}

// A prompt's piece behind what is kept.
TEST_P(CudaCachedAttentionTest, SeveralTokens) {
  Compare({ShapeOf(3, 3, 4, 2, 5), 72, {0, 64, 69}});
  Compare({ShapeOf(2, 17, 3, 3, 24), 90, {0, 60}});
  Compare({ShapeOf(1, 5, 4, 1, 8), 600, {590}});
}

// Texts that end in the first piece, at the edges of pieces, and in the last.
TEST_P(CudaCachedAttentionTest, CachesOfSeveralPieces) {
  const std::int64_t piece = kernels::gpu::CachedPiece(700);
  ASSERT_EQ(piece, 256);
  Compare({ShapeOf(3, 1, 2, 1, 8), 700, {255, 256, 699}});
  Compare({ShapeOf(3, 1, 3, 3, 5), 513, {512, 511, 0}});
  Compare({ShapeOf(1, 1, 10, 1, 33), 300, {299}});
  EXPECT_EQ(kernels::gpu::CachedPiece(131072), 4096);
}

TEST_P(CudaCachedAttentionTest, NoSequences) {
  const Case c{ShapeOf(0, 1, 2, 1, 8), 40, {}};
  EXPECT_TRUE(OnGpu(c, Texts(c), Layout::kAligned).empty());
}

TEST_P(CudaCachedAttentionTest, TheSameBitsTwice) {
  const Case c{ShapeOf(2, 1, 4, 2, 32), 600, {599, 300}};
  const Texts texts(c);
  EXPECT_EQ(OnGpu(c, texts, Layout::kAligned), OnGpu(c, texts, Layout::kAligned));
}

// Token by token the attention of whole sequences; then a shorter text in the same slot.
TEST_P(CudaCachedAttentionTest, TextsGrow) {
  const Case c{ShapeOf(1, 1, 4, 2, 12), 72, {0}};
  const std::int64_t elements = kernels::KeyValueElements(Stream(), c.shape, c.positions);
  const GpuMatrix memory(Stream(), Type(), 1, elements, NoNumbers(elements));
  const kernels::KeyValueCache cache{memory.View().data, Type(), 1, c.positions};
  for (const std::int64_t length : {70, 20}) {
    const AttentionProblem problem(ShapeOf(1, length, 4, 2, 12), 0);
    const auto qkv =
        OnGpuAs(Stream(), Type(), Layout::kAligned, problem.shape.Width(), problem.qkv);
    const auto out = OnGpuAs(Stream(), Type(), Layout::kAligned, problem.Queries(),
                             NoNumbers(length * problem.Queries()));
    std::vector<std::int32_t> firsts;
    for (std::int32_t i = 0; i < length; ++i) firsts.push_back(i);
    const test::OnGpu slot(Stream(), std::vector<std::int32_t>(1, 0)), at(Stream(), firsts);
    for (std::int64_t i = 0; i < length; ++i) {
      const kernels::CachedRows rows{slot.As<std::int32_t>(), at.As<std::int32_t>() + i};
      kernels::KeepKeyValues(Stream(), c.shape, KeyValuesOf(c.shape, qkv->View().Rows(i, 1)), rows,
                             cache);
      kernels::CachedAttention(Stream(), c.shape, qkv->View().Rows(i, 1), rows, cache,
                               out->View().Rows(i, 1));
    }
    ExpectNear(out->Values(), problem.OnCpu().out, ToleranceOf(Type()).out, "text");
  }
}

// Keys and values of a copy have the bits of their origin; what lies behind them stays.
TEST_P(CudaCachedAttentionTest, SlotsAreCopied) {
  const AttentionShape shape = ShapeOf(1, 30, 4, 2, 12);
  const std::int64_t positions = 600, kept = 30, row = kernels::gpu::CachedRow(12);
  const std::int64_t elements = kernels::KeyValueElements(Stream(), shape, positions);
  const GpuMatrix memory(Stream(), Type(), 3, elements, NoNumbers(3 * elements));
  const kernels::KeyValueCache cache{memory.View().data, Type(), 3, positions};
  const AttentionProblem problem(shape, 0);
  const auto qkv = OnGpuAs(Stream(), Type(), Layout::kAligned, shape.Width(), problem.qkv);
  const test::OnGpu slot(Stream(), std::vector<std::int32_t>(1, 2));
  const test::OnGpu start(Stream(), std::vector<std::int32_t>(1, 0));
  kernels::KeepKeyValues(Stream(), shape, KeyValuesOf(shape, qkv->View()),
                         {slot.As<std::int32_t>(), start.As<std::int32_t>()}, cache);
  kernels::CopyKeyValues(Stream(), shape, {2, 0, kept - 1}, cache);
  const Values values = memory.Values();
  for (std::int64_t i = 0; i < elements; ++i) {
    const auto to = static_cast<std::size_t>(i), from = static_cast<std::size_t>(2 * elements + i);
    const bool copied = i < 4 * positions * row && i % (positions * row) < (kept - 1) * row;
    if (copied) {
      ASSERT_EQ(values[to], values[from]) << i;
    } else {
      ASSERT_TRUE(std::isnan(values[to])) << i;
    }
    ASSERT_TRUE(std::isnan(values[static_cast<std::size_t>(elements + i)])) << i;
  }
}

// exp(scores) would overflow, in each piece and between them.
TEST_P(CudaCachedAttentionTest, LargeScoresStayFinite) {
  Case c{ShapeOf(1, 1, 1, 1, 8), 600, {599}};
  Texts texts(c);
  for (double& value : texts.next->qkv) value *= 32;
  for (double& value : texts.kept.front().qkv) value *= 32;
  const double tolerance = Type() == Dtype::kFloat64 ? 1e-11 : 1e-2;
  ExpectNear(OnGpu(c, texts, Layout::kAligned), OnCpu(c, texts), tolerance, "large scores");
}

INSTANTIATE_TEST_SUITE_P(Kernel, CudaCachedAttentionTest,
                         testing::Values(Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

}  // namespace
}  // namespace trireme::test
