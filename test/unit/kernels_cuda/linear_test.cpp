// Linear layers on a GPU against the CPU's in fp64: biases, activations and their gradients, in the
// product's epilogue or in a pass after it.

#include "trireme/kernels/linear.hpp"
#include "multiply_testing.hpp"
#include "trireme/base/json.hpp"

namespace trireme::test {
namespace {

using kernels::ActivationKind;
using kernels::Form;
using kernels::Matrix;

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
