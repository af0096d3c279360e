// Attention on a GPU to sequences with padding, and of queries to the keys of another sequence,
// against the CPU in fp64. Padded keys and values are no numbers.
#include <cmath>
#include <limits>

#include "attention_testing.hpp"

namespace trireme::test {
namespace {

using kernels::AttentionShape;
using kernels::KeyValueBlock;

// One pass over `keys` rows of keys per sequence, on the CPU or a GPU.
struct AttentionPaddingOperands {
  kernels::Matrix query, keys, out, lse, dout, dquery, dkeys, scratch;
};

kernels::Matrix AttentionPaddingDoubles(Values& values, std::int64_t columns) {
  const auto size = static_cast<std::int64_t>(values.size());
  return {values.data(), Dtype::kFloat64, size / columns, columns, columns};
}

class CudaAttentionPaddingTest : public AttentionOnGpu, public testing::WithParamInterface<Dtype> {
 protected:
  Dtype Type() const { return GetParam(); }

  // Rows of keys and values beyond their sequence's length become no numbers.
  static void Poison(Values& values, std::int64_t columns, std::int64_t first, std::int64_t rows,
                     const std::vector<std::int32_t>& lengths) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) / columns;
      const bool padding = row % rows >= lengths[static_cast<std::size_t>(row / rows)];
      if (padding && static_cast<std::int64_t>(i) % columns >= first) {
        values[i] = std::numeric_limits<double>::quiet_NaN();
      }
    }
  }

  // Whole sequences.
  void Compare(const AttentionShape& whole, const std::vector<std::int32_t>& lengths,
               double probability) const {
    AttentionProblem p(whole, probability);
    p.key_lengths = lengths;
    Poison(p.qkv, whole.Width(), p.Queries(), whole.length, lengths);
    const test::OnGpu lengths_there(Stream(), lengths), ordinals(Stream(), p.ordinals);
    AttentionShape shape = whole;
    shape.key_lengths = lengths_there.As<std::int32_t>();
    for (const Layout layout : {Layout::kAligned, Layout::kOdd}) {
      const auto make = [&](std::int64_t columns, const Values& values) {
        return OnGpuAs(Stream(), Type(), layout, columns, values);
      };
      const auto qkv = make(whole.Width(), p.qkv), dout = make(p.Queries(), p.dout);
      const auto out = make(p.Queries(), NoNumbers(p.Rows() * p.Queries()));
      const auto dqkv = make(whole.Width(), NoNumbers(p.Rows() * whole.Width()));
      const auto lse = OnGpuAs(Stream(), SumTypeOf(Type()), layout, whole.heads,
                               NoNumbers(p.Rows() * whole.heads));
      const std::int64_t elements = kernels::AttentionScratch(Stream(), shape, Type(), true);
      const GpuMatrix scratch(Stream(), SumTypeOf(Type()), 1, elements, NoNumbers(elements));
      const kernels::Dropout dropout = p.DropoutWith(ordinals.As<std::uint64_t>());
      kernels::AttentionForward(Stream(), shape, qkv->View(), dropout, out->View(), lse->View(),
                                scratch.View());
      kernels::AttentionBackward(Stream(), shape, qkv->View(), dropout, out->View(), dout->View(),
                                 lse->View(), dqkv->View(), scratch.View());
      ExpectNear(p, {out->Values(), lse->Values(), dqkv->Values()}, p.OnCpu(), ToleranceOf(Type()),
                 Describe(p, Type()) + "with padding ");
    }
  }

  // shape.length queries and `keys` keys per sequence.
  void CompareOther(AttentionShape shape, std::int64_t keys,
                    const std::vector<std::int32_t>& lengths, double probability) const {
    shape.causal = false;
    shape.positions = PositionsOf(shape.length, 0, 1);
    AttentionShape of_keys = shape;
    of_keys.length = keys;
    const std::int64_t q = shape.heads * shape.head_dim, kv = 2 * shape.kv_heads * shape.head_dim;
    const std::int64_t rows = shape.sequences * shape.length;
    AttentionProblem queries(shape, probability), others(of_keys, probability);
    Values query = ColumnsOf(queries.qkv, shape.Width(), 0, q);
    Values data = ColumnsOf(others.qkv, shape.Width(), q, q + kv), dout = queries.dout;
    Poison(data, kv, 0, keys, lengths);
    const device::Stream host;
    Values out = NoNumbers(rows * q), lse = NoNumbers(rows * shape.heads), dquery = out;
    Values dkeys = NoNumbers(shape.sequences * keys * kv);
    Values memory = NoNumbers(kernels::AttentionPartScratch({.threads = host.threads}, shape, keys,
                                                            Dtype::kFloat64, true));
    shape.key_lengths = lengths.data();
    Run(host, shape, keys, queries.DropoutWith(queries.ordinals.data()),
        {AttentionPaddingDoubles(query, q), AttentionPaddingDoubles(data, kv),
         AttentionPaddingDoubles(out, q), AttentionPaddingDoubles(lse, shape.heads),
         AttentionPaddingDoubles(dout, q), AttentionPaddingDoubles(dquery, q),
         AttentionPaddingDoubles(dkeys, kv),
         AttentionPaddingDoubles(memory, static_cast<std::int64_t>(memory.size()))});
    const test::OnGpu lengths_there(Stream(), lengths), ordinals(Stream(), queries.ordinals);
    shape.key_lengths = lengths_there.As<std::int32_t>();
    const auto make = [&](std::int64_t columns, const Values& values) {
      return OnGpuAs(Stream(), Type(), Layout::kAligned, columns, values);
    };
    const auto x = make(q, query), block = make(kv, data), dy = make(q, dout);
    const auto y = make(q, NoNumbers(rows * q)), dx = make(q, NoNumbers(rows * q));
    const auto dblock = make(kv, NoNumbers(shape.sequences * keys * kv));
    const auto sums = OnGpuAs(Stream(), SumTypeOf(Type()), Layout::kAligned, shape.heads,
                              NoNumbers(rows * shape.heads));
    const std::int64_t elements =
        kernels::AttentionPartScratch(Stream(), shape, keys, Type(), false);
    const GpuMatrix scratch(Stream(), SumTypeOf(Type()), 1, elements, NoNumbers(elements));
    Run(Stream(), shape, keys, queries.DropoutWith(ordinals.As<std::uint64_t>()),
        {x->View(), block->View(), y->View(), sums->View(), dy->View(), dx->View(), dblock->View(),
         scratch.View()});
    const AttentionTolerance tolerance = ToleranceOf(Type());
    const std::string what = Describe(queries, Type()) + std::to_string(keys) + " keys ";
    ExpectNear(y->Values(), out, tolerance.out, what + "out");
    ExpectNear(dx->Values(), dquery, tolerance.gradient, what + "dquery");
    for (const auto& [begin, end] : {Part{0, kv / 2}, Part{kv / 2, kv}}) {
      ExpectNear(ColumnsOf(dblock->Values(), kv, begin, end), ColumnsOf(dkeys, kv, begin, end),
                 tolerance.gradient, what + "dkeys");
    }
  }

  static void Run(const device::Stream& stream, const AttentionShape& shape, std::int64_t keys,
                  const kernels::Dropout& dropout, const AttentionPaddingOperands& o) {
    const KeyValueBlock block = {PositionsOf(keys, 0, 1), o.keys};
    const Part all = {0, kernels::AttentionPartTasks(shape)};
    kernels::AttentionPartStart(stream, o.out, o.lse);
    kernels::AttentionPartForward(stream, shape, all, o.query, block, dropout, o.out, o.lse,
                                  o.scratch);
    kernels::AttentionPartStartBackward(stream, shape, o.dquery, o.scratch);
    kernels::AttentionPartBackward(stream, shape, all, o.query, block, dropout, o.out, o.dout,
                                   o.lse, o.dquery, o.dkeys, o.scratch);
  }
};

TEST_P(CudaAttentionPaddingTest, WholeSequences) {
  for (const bool causal : {true, false}) {
    for (const double probability : {0.0, 0.3}) {
      Compare({3, 31, 4, 2, 7, 0, causal}, {31, 0, 4}, probability);
      Compare({2, 32, 2, 1, 32, 2, causal}, {5, 32}, probability);
      Compare({3, 100, 2, 1, 64, 0, causal}, {100, 16, 65}, probability);
      Compare({2, 70, 1, 1, 160, 0, causal}, {33, 32}, probability);
      Compare({2, 257, 1, 1, 16, 0, causal}, {0, 200}, probability);
    }
  }
}

TEST_P(CudaAttentionPaddingTest, KeysOfAnotherSequence) {
  for (const double probability : {0.0, 0.3}) {
    CompareOther({3, 5, 4, 2, 7}, 31, {31, 0, 4}, probability);
    CompareOther({2, 100, 2, 1, 32}, 9, {9, 3}, probability);
    CompareOther({2, 33, 2, 1, 64}, 100, {100, 17}, probability);
    CompareOther({2, 90, 1, 1, 128}, 40, {33, 32}, probability);
  }
}

INSTANTIATE_TEST_SUITE_P(Kernel, CudaAttentionPaddingTest,
                         testing::Values(Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

}  // namespace
}  // namespace trireme::test
