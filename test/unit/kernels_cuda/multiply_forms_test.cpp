// Products on a GPU against the CPU's in fp64: forms, types, strides, alignments, sums.
#include "multiply_testing.hpp"
#include "trireme/base/error.hpp"
#include "trireme/device/gpu.hpp"
#include "trireme/kernels/linear.hpp"

namespace trireme::test {
namespace {

using kernels::Form;

struct Case {
  std::int64_t rows, columns, inner;
  std::int64_t padding, offset;  // elements: between rows, and before the first
};
constexpr Case kCases[] = {{1, 1, 1, 0, 0},     {3, 5, 7, 0, 0},    {31, 33, 65, 3, 1},
                           {64, 48, 128, 8, 0}, {17, 130, 9, 1, 3}, {40, 24, 300, 0, 8}};
constexpr Form kMultipliedForms[] = {Form::kPlain, Form::kTransposed};

class MultiplyForms : public ProductsTest {
 protected:
  void Check(const Case& size, Form form_a, Form form_b, Dtype dtype, Dtype result,
             bool accumulate) {
    const bool a_turned = form_a == Form::kTransposed, b_turned = form_b == Form::kTransposed;
    const std::int64_t a_rows = a_turned ? size.inner : size.rows;
    const std::int64_t a_columns = a_turned ? size.rows : size.inner;
    const std::int64_t b_rows = b_turned ? size.columns : size.inner;
    const std::int64_t b_columns = b_turned ? size.inner : size.columns;
    const Values a = Random(a_rows * a_columns, 1, dtype), b = Random(b_rows * b_columns, 2, dtype);
    const Values c = Random(size.rows * size.columns, 3, result);
    HostMatrix host_a(a_rows, a_columns, a), host_b(b_rows, b_columns, b);
    HostMatrix expected(size.rows, size.columns, c);
    kernels::MatrixMultiply(device::Stream{}, form_a, host_a.View(), form_b, host_b.View(),
                            expected.View(), accumulate);
    const auto on_gpu = [&](Dtype type, std::int64_t rows, std::int64_t columns, const Values& v) {
      return GpuMatrix(Stream(), type, rows, columns, v, columns + size.padding, size.offset);
    };
    const GpuMatrix gpu_a = on_gpu(dtype, a_rows, a_columns, a);
    const GpuMatrix gpu_b = on_gpu(dtype, b_rows, b_columns, b);
    const GpuMatrix gpu_c = on_gpu(result, size.rows, size.columns, c);
    kernels::MatrixMultiply(Stream(), form_a, gpu_a.View(), form_b, gpu_b.View(), gpu_c.View(),
                            accumulate);
    // bf16 operands are multiplied and added up in fp32.
    const double sums = UnitOf(SumTypeOf(dtype)) * std::sqrt(static_cast<double>(size.inner)) * 16;
    // cuBLASLt's kernels for Hopper round a product to bf16 before they add it to c.
    const bool twice = accumulate && result == Dtype::kBfloat16;
    const Values& wanted = expected.Numbers();
    ExpectWithin(gpu_c.Values(), wanted, [&](std::size_t i) {
      const double product = twice ? std::fabs(wanted[i] - c[i]) : 0;
      return UnitOf(result) * (std::fabs(wanted[i]) + product) + sums;
    });
    EXPECT_TRUE(gpu_c.GapsUntouched());
  }
};

TEST_F(MultiplyForms, AgreeWithTheCpu) {
  for (const Case& size : kCases) {
    for (const Form form_a : kMultipliedForms) {
      for (const Form form_b : kMultipliedForms) {
        for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kBfloat16}) {
          for (const bool accumulate : {false, true}) {
            SCOPED_TRACE(testing::Message()
                         << size.rows << " x " << size.columns << " x " << size.inner << " "
                         << trireme::NameOf(dtype) << (form_a == Form::kPlain ? " n" : " t")
                         << (form_b == Form::kPlain ? "n" : "t") << (accumulate ? " +=" : ""));
            Check(size, form_a, form_b, dtype, dtype, accumulate);
            if (SumTypeOf(dtype) != dtype) {
              Check(size, form_a, form_b, dtype, SumTypeOf(dtype), accumulate);
            }
          }
        }
      }
    }
  }
}

TEST_F(MultiplyForms, OfNothing) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kBfloat16}) {
    const Values before = Random(3 * 4, 5, dtype);
    const GpuMatrix a(Stream(), dtype, 3, 1, {}), b(Stream(), dtype, 1, 4, {});
    const GpuMatrix c(Stream(), dtype, 3, 4, before, 7, 1);
    const auto multiply = [&](std::int64_t inner, std::int64_t rows, std::int64_t columns,
                              bool accumulate) {
      kernels::MatrixMultiply(Stream(), Form::kPlain, a.View().Rows(0, rows).Columns(0, inner),
                              Form::kPlain, b.View().Rows(0, inner).Columns(0, columns),
                              c.View().Rows(0, rows).Columns(0, columns), accumulate);
    };
    multiply(0, 3, 4, true);
    multiply(1, 0, 4, false);
    multiply(1, 3, 0, false);
    EXPECT_EQ(c.Values(), before);
    multiply(0, 3, 4, false);
    EXPECT_EQ(c.Values(), Values(12, 0.0));
    EXPECT_TRUE(c.GapsUntouched());
  }
}

// TF32 keeps 10 bits of the mantissa; 1 + 2^-20 would become 1.
TEST_F(MultiplyForms, Fp32OperandsStayWhole) {
  const double fine = 1 + std::ldexp(1, -20);
  const GpuMatrix a(Stream(), Dtype::kFloat32, 32, 32, Values(32 * 32, fine));
  Values unit(32 * 32);
  for (std::size_t i = 0; i < 32; ++i) unit[i * 33] = 1;
  const GpuMatrix b(Stream(), Dtype::kFloat32, 32, 32, unit);
  const GpuMatrix c(Stream(), Dtype::kFloat32, 32, 32, {});
  kernels::MatrixMultiply(Stream(), Form::kPlain, a.View(), Form::kPlain, b.View(), c.View(),
                          false);
  EXPECT_EQ(c.Values(), Values(32 * 32, fine));
}

TEST_F(MultiplyForms, ThenFollowsOnceWithAllRows) {
  const GpuMatrix a(Stream(), Dtype::kFloat32, 9, 4, Random(36, 1, Dtype::kFloat32));
  const GpuMatrix b(Stream(), Dtype::kFloat32, 4, 5, Random(20, 2, Dtype::kFloat32));
  const GpuMatrix c(Stream(), Dtype::kFloat32, 9, 5, {});
  int calls = 0;
  kernels::MatrixMultiplyThen(Stream(), Form::kPlain, a.View(), Form::kPlain, b.View(), c.View(),
                              false, [&](const Part& rows) {
                                ++calls;
                                EXPECT_EQ(rows.begin, 0);
                                EXPECT_EQ(rows.end, 9);
                              });
  EXPECT_EQ(calls, 1);
}

TEST_F(MultiplyForms, RefusedWithTheReason) {
  const GpuMatrix a(Stream(), Dtype::kFloat32, 4, 4, {}), c(Stream(), Dtype::kFloat32, 4, 4, {});
  const GpuMatrix d(Stream(), Dtype::kFloat64, 4, 4, {});
  const auto message = [&](const device::Stream& stream, const GpuMatrix& result) {
    try {
      kernels::MatrixMultiply(stream, Form::kPlain, a.View(), Form::kPlain, a.View(), result.View(),
                              false);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  device::Stream canonical = Stream();
  canonical.canonical = true;
  EXPECT_NE(message(canonical, c).find("no canonical product on a GPU"), std::string::npos);
  EXPECT_NE(message(Stream(), d).find("fp32 and fp32 into fp64"), std::string::npos);
  device::Stream bare = Stream();
  bare.libraries = nullptr;
  EXPECT_NE(message(bare, c).find("has no libraries"), std::string::npos);
}

TEST_F(MultiplyForms, RecordedInAGraph) {
  const Values numbers = Random(48 * 48, 1, Dtype::kBfloat16);
  const GpuMatrix a(Stream(), Dtype::kBfloat16, 48, 48, numbers);
  const GpuMatrix once(Stream(), Dtype::kFloat32, 48, 48, {});
  const GpuMatrix sums(Stream(), Dtype::kFloat32, 48, 48, {});
  const auto multiply = [&](const GpuMatrix& c) {
    kernels::MatrixMultiply(Stream(), Form::kPlain, a.View(), Form::kTransposed, a.View(), c.View(),
                            true);
  };
  multiply(once);
  device::Graph graph;
  graph.Begin(Stream());
  multiply(sums);
  graph.End(Stream());
  for (int i = 0; i < 3; ++i) graph.Launch(Stream());
  Synchronise();
  Values expected = once.Values();
  for (double& value : expected) value *= 3;
  ExpectClose(sums.Values(), expected, 1e-6, 1e-5);
}

}  // namespace
}  // namespace trireme::test
