// Ring attention on groups of 1 to 8 ranks against attention to whole sequences on one rank: same
// numbers, documented traffic, and scratch that falls with the number of ranks.
#include "trireme/parallel/ring_attention.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "defects.hpp"
#include "documents.hpp"
#include "trireme/base/error.hpp"
#include "trireme/device/memory.hpp"

namespace trireme::parallel {
namespace {

using comm::Transfer;
using kernels::AttentionShape;
using kernels::Matrix;

constexpr double kFp32 = 1e-5, kFp64 = 1e-12;  // relative to the largest element
constexpr std::uint64_t kOrdinals[] = {7, (std::uint64_t{9} << 32) + 3};

// A dense matrix with memory of its own, aligned as an arena's; NaN where nothing was written.
struct Array {
  Array(Dtype dtype, std::int64_t rows, std::int64_t columns)
      : memory(device::AllocateZeroed(rows * columns * static_cast<std::int64_t>(SizeOf(dtype)))),
        view{memory.get(), dtype, rows, columns, columns} {
    for (std::int64_t i = 0; i < rows * columns; ++i) Set(i, std::nan(""));
  }

  double At(std::int64_t i) const {
    return view.dtype == Dtype::kFloat64 ? view.As<double>()[i]
                                         : static_cast<double>(view.As<float>()[i]);
  }
  void Set(std::int64_t i, double value) const {
    DispatchDtype(view.dtype, [&](auto zero) {
      using T = decltype(zero);
      view.As<T>()[i] = static_cast<T>(value);
    });
  }

  device::Buffer memory;
  Matrix view;
};

Array Random(Dtype dtype, std::int64_t rows, std::int64_t columns, unsigned seed) {
  std::mt19937 engine(seed);
  Array array(dtype, rows, columns);
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    array.Set(i, static_cast<double>(engine() % 2048) / 512 - 2);  // exact in fp32
  }
  return array;
}

struct Results {
  Array out, lse, dqkv;
};

AttentionShape MakeShape(std::int64_t sequences, std::int64_t length, std::int64_t heads,
                         std::int64_t kv_heads, std::int64_t head_dim, bool causal = true) {
  return {sequences, length, heads, kv_heads, head_dim, 1, causal};
}

AttentionShape LocalShape(AttentionShape shape, const RingAttention& ring) {
  shape.length = ring.Own().Count();
  shape.positions = ring.Own();
  return shape;
}

// The rows of sequences of `length` that a rank holds.
Array RowsOf(const Array& whole, std::int64_t length, const Positions& own) {
  const std::int64_t n = whole.view.columns, count = own.Count();
  Array part(whole.view.dtype, whole.view.rows / length * count, n);
  for (std::int64_t i = 0; i < part.view.Size(); ++i) {
    const std::int64_t row = i / n;
    part.Set(i, whole.At((row / count * length + own.At(row % count)) * n + i % n));
  }
  return part;
}

// Largest difference over the largest element of `want` in these columns; infinite for NaN.
double Difference(const Array& got, const Array& want, std::int64_t begin, std::int64_t end) {
  double largest = 0, worst = 0;
  for (std::int64_t i = 0; i < want.view.Size(); ++i) {
    const std::int64_t column = i % want.view.columns;
    if (column < begin || column >= end) continue;
    largest = std::max(largest, std::abs(want.At(i)));
    const double difference = std::abs(got.At(i) - want.At(i));
    worst = difference <= worst ? worst : std::isnan(difference) ? HUGE_VAL : difference;
  }
  return worst == 0 ? 0 : worst / largest;
}

class RingAttentionTest : public testing::Test {
 protected:
  using Body = std::function<void(const comm::Collectives&)>;
  void OnEveryGroup(std::initializer_list<int> sizes, const Body& body) {
    for (const int size : sizes) {
      if (size > world_.Size()) continue;
      const comm::Communicator group = world_.Split(world_.Rank() < size ? 0 : 1, world_.Rank());
      if (world_.Rank() >= size) continue;
      SCOPED_TRACE("a group of " + std::to_string(size));
      ledger_.Clear();
      body({group, comm::Group::kContext, ledger_});
    }
  }

  kernels::Dropout MakeDropout(double probability, std::int64_t length) const {
    return {probability, 77, Purpose::kAttentionDropout, 2, 0, kOrdinals, length};
  }
  static std::int64_t Queries(const AttentionShape& s) { return s.heads * s.head_dim; }
  static Array WholeQkv(Dtype dtype, const AttentionShape& s) {
    return Random(dtype, s.sequences * s.length, s.Width(), 1);
  }
  static Array WholeDout(Dtype dtype, const AttentionShape& s) {
    return Random(dtype, s.sequences * s.length, Queries(s), 2);
  }

  // Forward and backward on the rows that the ring leaves to this rank.
  Results Run(const RingAttention& ring, Dtype dtype, const AttentionShape& whole,
              double probability) const {
    AttentionShape shape = LocalShape(whole, ring);
    std::vector<std::int32_t> begins;
    if (whole.begins != nullptr) {
      const std::int64_t count = whole.sequences * whole.length;
      begins = test::BeginsAt({whole.begins, whole.begins + count}, whole.length, ring.Own());
      shape.begins = begins.data();
    }
    const Array qkv = RowsOf(WholeQkv(dtype, whole), whole.length, ring.Own());
    const Array dout = RowsOf(WholeDout(dtype, whole), whole.length, ring.Own());
    const kernels::Dropout dropout = MakeDropout(probability, shape.length);
    const std::int64_t rows = shape.sequences * shape.length;
    Results results = {Array(dtype, rows, Queries(shape)), Array(dtype, rows, shape.heads),
                       Array(dtype, rows, shape.Width())};
    const Array buffers(dtype, 1, ring.BufferElements(stream_, shape, dtype, dropout.Active()));
    ring.Forward(stream_, shape, qkv.view, dropout, results.out.view, results.lse.view,
                 buffers.view);
    ring.Backward(stream_, shape, qkv.view, dropout, results.out.view, dout.view, results.lse.view,
                  results.dqkv.view, buffers.view);
    return results;
  }
  // The same rows of what one rank computes.
  Results Serial(const RingAttention& ring, Dtype dtype, const AttentionShape& whole,
                 double probability) const {
    const Results all = Run({comm::Collectives(), whole.length}, dtype, whole, probability);
    return {RowsOf(all.out, whole.length, ring.Own()), RowsOf(all.lse, whole.length, ring.Own()),
            RowsOf(all.dqkv, whole.length, ring.Own())};
  }

  static double Difference(const Results& got, const Results& want, const AttentionShape& s) {
    const std::int64_t q = Queries(s), kv = s.kv_heads * s.head_dim;
    double worst = std::max(parallel::Difference(got.out, want.out, 0, q),
                            parallel::Difference(got.lse, want.lse, 0, s.heads));
    const Part parts[] = {{0, q}, {q, q + kv}, {q + kv, s.Width()}};
    for (const Part& part : parts) {
      // On one position alone the scores' gradients are rounding.
      if (part.begin < q + kv && got.dqkv.view.rows <= s.sequences) continue;
      worst = std::max(worst, parallel::Difference(got.dqkv, want.dqkv, part.begin, part.end));
    }
    return worst;
  }

  device::Stream stream_;
  comm::Ledger ledger_;
  comm::Communicator world_ = comm::Communicator::Adopt(MPI_COMM_WORLD);
};

TEST_F(RingAttentionTest, EqualsAttentionToWholeSequences) {
  const AttentionShape shapes[] = {MakeShape(2, 37, 4, 2, 5),  MakeShape(1, 13, 3, 3, 4),
                                   MakeShape(2, 7, 2, 1, 3),   MakeShape(1, 3, 2, 2, 2),
                                   MakeShape(2, 300, 1, 1, 4), MakeShape(2, 20, 4, 1, 3, false)};
  OnEveryGroup({1, 2, 3, 4, 5, 8}, [&](const comm::Collectives& context) {
    for (const AttentionShape& shape : shapes) {
      const RingAttention ring(context, shape.length);
      stream_.threads = shape.heads == 4 ? 2 : 1;
      for (const Dtype dtype : {Dtype::kFloat64, Dtype::kFloat32}) {
        for (const double probability : {0.0, 0.4}) {
          const Results got = Run(ring, dtype, shape, probability);
          const Results want = Serial(ring, dtype, shape, probability);
          EXPECT_LE(Difference(got, want, shape), dtype == Dtype::kFloat64 ? kFp64 : kFp32)
              << "length " << shape.length << ", " << NameOf(dtype) << ", dropout " << probability;
          const Results again = Run(ring, dtype, shape, probability);
          EXPECT_EQ(Difference(again, got, shape), 0) << "a repetition has the same bits";
        }
      }
    }
  });
}

// Queries and keys of one document on different ranks, and ranks whose keys nobody else sees.
TEST_F(RingAttentionTest, DocumentsEqualThoseOfWholeSequences) {
  for (AttentionShape shape : {MakeShape(2, 37, 4, 2, 5), MakeShape(2, 600, 2, 1, 4)}) {
    for (const std::int64_t mean : {3, 40, 300}) {
      const std::vector<std::int32_t> begins =
          test::RandomBegins(shape.sequences, shape.length, mean, 3);
      shape.begins = begins.data();
      OnEveryGroup({2, 4, 8}, [&](const comm::Collectives& context) {
        const RingAttention ring(context, shape.length);
        const double probability = mean == 40 ? 0.4 : 0;
        const Results got = Run(ring, Dtype::kFloat64, shape, probability);
        const Results want = Serial(ring, Dtype::kFloat64, shape, probability);
        EXPECT_LE(Difference(got, want, shape), kFp64)
            << "length " << shape.length << ", documents of " << mean;
      });
    }
  }
}

TEST_F(RingAttentionTest, NoSequencesAndOneRank) {
  OnEveryGroup({1, 2, 8}, [&](const comm::Collectives& context) {
    const RingAttention ring(context, 5);
    EXPECT_EQ(ring.Size(), context.Size());
    EXPECT_EQ(ring.Active(), context.Size() > 1);
    const Results none = Run(ring, Dtype::kFloat32, MakeShape(0, 5, 2, 1, 3), 0.5);
    EXPECT_EQ(none.out.view.rows, 0);
  });
  const RingAttention alone;
  EXPECT_FALSE(alone.Active());
  EXPECT_EQ(alone.Own().At(1234), 1234);
  const AttentionShape shape = MakeShape(1, 9, 2, 1, 3);
  EXPECT_EQ(alone.BufferElements({.threads = 2}, shape, Dtype::kFloat32, true),
            kernels::AttentionScratch({.threads = 2}, shape, Dtype::kFloat64, true));
}

// The header's formula, message by message.
TEST_F(RingAttentionTest, MovesWhatTheHeaderSays) {
  OnEveryGroup({1, 2, 3, 8}, [&](const comm::Collectives& context) {
    for (const std::int64_t length : {3, 37}) {
      const AttentionShape shape = MakeShape(2, length, 4, 2, 5);
      const RingAttention ring(context, length);
      const int ranks = context.Size(), rank = context.Rank();
      const auto bytes = [&](int other) {  // all but what the `other`th rank from here on holds
        const Positions at = PositionsOf(length, (rank + other + ranks) % ranks, ranks);
        return ranks == 1 ? 0 : 2 * (length - at.Count()) * (2 * 2 * 5) * 4;
      };
      ledger_.Clear();
      Run(ring, Dtype::kFloat32, shape, 0.1);
      const comm::Traffic& sent = ledger_.At(comm::Group::kContext, Transfer::kSend);
      const comm::Traffic& received = ledger_.At(comm::Group::kContext, Transfer::kReceive);
      // Forward and backward: blocks; backward: gradients.
      EXPECT_EQ(sent.calls, 3 * (ranks - 1));
      EXPECT_EQ(sent.payload, 2 * bytes(1) + bytes(0));
      EXPECT_EQ(received.calls, 3 * (ranks - 1));
      EXPECT_EQ(received.payload, 2 * bytes(0) + bytes(-1));
      for (const Transfer other : {Transfer::kAllReduce, Transfer::kAllGather}) {
        EXPECT_EQ(ledger_.At(comm::Group::kContext, other).calls, 0);
      }
    }
  });
}

TEST_F(RingAttentionTest, AWrongOffsetIsSeen) {
  const comm::Communicator pair = world_.Split(world_.Rank() / 2, world_.Rank());
  comm::Ledger unrecorded;
  test::SpoilingChannel front({pair, comm::Group::kContext, unrecorded},
                              test::Defect::kRingOffsetWrong, pair.Rank() == 1);
  const AttentionShape shape = MakeShape(1, 37, 2, 1, 4);
  const RingAttention wrong({pair, comm::Group::kContext, ledger_, &front}, shape.length);
  const Results got = Run(wrong, Dtype::kFloat64, shape, 0);
  const Results want = Serial(wrong, Dtype::kFloat64, shape, 0);
  const double out = parallel::Difference(got.out, want.out, 0, Queries(shape));
  if (pair.Rank() == 1) {
    EXPECT_GT(out, 1e-3);
  } else {
    EXPECT_LT(out, kFp64);
  }
}

TEST_F(RingAttentionTest, BuffersFallWithTheNumberOfRanks) {
  const auto elements = [&](const comm::Collectives& context) {
    const AttentionShape shape = MakeShape(1, 65536, 8, 4, 64);
    const RingAttention ring(context, shape.length);
    return static_cast<double>(
        ring.BufferElements({}, LocalShape(shape, ring), Dtype::kFloat32, false));
  };
  double two = 0;
  OnEveryGroup({2, 4, 8}, [&](const comm::Collectives& context) {
    if (context.Rank() > 1) return;  // was not among the first two
    if (context.Size() == 2) two = elements(context);
    EXPECT_NEAR(elements(context) / two, 2.0 / context.Size(), 0.01);
  });
}

TEST_F(RingAttentionTest, RefusesOtherLengths) {
  OnEveryGroup({2}, [&](const comm::Collectives& context) {
    const RingAttention ring(context, 8);
    const AttentionShape shape = MakeShape(1, 8, 1, 1, 2);  // a rank holds 4
    const Array x(Dtype::kFloat64, 8, 6);
    try {
      ring.Forward(stream_, shape, x.view, {}, x.view, x.view, x.view);
      FAIL() << "8 positions were taken for 4";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("8 positions of a sequence where this rank holds 4"),
                std::string::npos)
          << error.what();
    }
  });
}

}  // namespace
}  // namespace trireme::parallel
