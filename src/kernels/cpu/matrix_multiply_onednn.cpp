// Products of oneDNN: dnnl_sgemm in fp32. oneDNN has no fp64 product, so that is Eigen's. Inside a
// parallel region both use the calling thread alone.
#include <dnnl.h>
#include <fmt/format.h>
#include <omp.h>
#include <Eigen/Core>
#include <algorithm>
#include <dnnl.hpp>
#include <string>
#include <vector>

#include "cpu/product/multiply.hpp"
#include "matrix_library.hpp"
#include "rows.hpp"
#include "trireme/base/error.hpp"

namespace trireme::kernels {

namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using View = Eigen::Map<RowMajor, Eigen::Unaligned, Eigen::OuterStride<>>;

View AsEigen(const Matrix& m) {
  return {m.As<double>(), m.rows, m.columns, Eigen::OuterStride<>(m.stride)};
}

// Calls body(form(x)).
template <typename X, typename Body>
void WithForm(Form form, const X& x, const Body& body) {
  form == Form::kPlain ? body(x) : body(x.transpose());
}

void MultiplyDouble(const MatrixProduct& p) {
  View c = AsEigen(p.c);
  WithForm(p.form_a, AsEigen(p.a), [&](const auto& a) {
    WithForm(p.form_b, AsEigen(p.b), [&](const auto& b) {
      if (p.accumulate) {
        c.noalias() += a * b;
      } else {
        c.noalias() = a * b;
      }
    });
  });
}

}  // namespace

void LibraryMultiply(const MatrixProduct& p) {
  if (p.c.dtype == Dtype::kFloat64) return MultiplyDouble(p);
  const dnnl_status_t status = dnnl_sgemm(
      p.form_a == Form::kPlain ? 'N' : 'T', p.form_b == Form::kPlain ? 'N' : 'T', p.c.rows,
      p.c.columns, p.Inner(), 1.0f, p.a.As<float>(), p.a.stride, p.b.As<float>(), p.b.stride,
      p.accumulate ? 1.0f : 0.0f, p.c.As<float>(), p.c.stride);
  if (status == dnnl_success) return;
  throw RunError(fmt::format("oneDNN refused the product of {} x {} x {}: {}", p.c.rows, p.Inner(),
                             p.c.columns,
                             status == dnnl_out_of_memory ? "out of memory" : "invalid arguments"),
                 "Lower data.micro_batch, or use fewer ranks on a node.");
}

const char* MatrixLibrary() {
  static const std::string text = [] {
    const dnnl_version_t* version = dnnl_version();
    return "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
           std::to_string(version->patch);
  }();
  return text.c_str();
}

// oneDNN's product in bf16, for CPUs with AMX: both operands are rounded first, in their layout,
// then a matmul primitive multiplies them. A primitive runs with the number of threads for which it
// was created; each thread caches the primitives that it used last.

namespace {

struct Shape {
  std::int64_t rows = 0, columns = 0, inner = 0;
  std::int64_t stride = 0;  // of c
  bool transposed_a = false, transposed_b = false, accumulate = false;
  int threads = 1;
  bool operator==(const Shape&) const = default;
};

// A dense bf16 operand [rows, columns], or the transposed view of a dense [columns, rows].
dnnl::memory::desc Operand(std::int64_t rows, std::int64_t columns, bool transposed) {
  const dnnl::memory::dims strides =
      transposed ? dnnl::memory::dims{1, rows} : dnnl::memory::dims{columns, 1};
  return {{rows, columns}, dnnl::memory::data_type::bf16, strides};
}

// A primitive and the memory objects of its arguments, which have no data yet.
struct Matmul {
  Shape shape;
  std::uint64_t used = 0;
  dnnl::matmul primitive;
  dnnl::memory a, b, c, scratch;

  Matmul(const Shape& s, const dnnl::engine& engine) : shape(s) {
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    if (s.accumulate) {
      dnnl::post_ops add;
      add.append_sum();
      attributes.set_post_ops(add);
    }
    const dnnl::memory::desc c_desc({s.rows, s.columns}, dnnl::memory::data_type::f32,
                                    dnnl::memory::dims{s.stride, 1});
    const dnnl::matmul::primitive_desc desc(
        dnnl::matmul::desc(Operand(s.rows, s.inner, s.transposed_a),
                           Operand(s.inner, s.columns, s.transposed_b), c_desc),
        attributes, engine);
    primitive = dnnl::matmul(desc);
    a = dnnl::memory(desc.src_desc(), engine, nullptr);
    b = dnnl::memory(desc.weights_desc(), engine, nullptr);
    c = dnnl::memory(desc.dst_desc(), engine, nullptr);
    scratch = dnnl::memory(desc.scratchpad_desc(), engine, nullptr);
  }
};

class Matmuls {
 public:
  Matmuls() { matmuls_.reserve(kMost); }
  Matmul& Find(const Shape& shape) {
    const auto found = std::find_if(matmuls_.begin(), matmuls_.end(),
                                    [&](const Matmul& x) { return x.shape == shape; });
    if (found == matmuls_.end()) return Add(shape);
    found->used = ++clock_;
    return *found;
  }
  const dnnl::stream& Stream() const { return stream_; }

 private:
  static constexpr std::size_t kMost = 128;  // a model uses some dozens of shapes

  Matmul& Add(const Shape& shape) {
    Matmul made(shape, engine_);
    made.used = ++clock_;
    if (matmuls_.size() < kMost) return matmuls_.emplace_back(std::move(made));
    const auto oldest =
        std::min_element(matmuls_.begin(), matmuls_.end(),
                         [](const Matmul& x, const Matmul& y) { return x.used < y.used; });
    return *oldest = std::move(made);
  }

  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::vector<Matmul> matmuls_;
  std::uint64_t clock_ = 0;
};

// Rounds m, [rows, columns], into a dense matrix.
void Round(const Matrix& m, int threads, std::uint16_t* to) {
  const auto round = UsableBf16Kernels()->round;
#pragma omp parallel for num_threads(threads) if (threads > 1)
  for (std::int64_t row = 0; row < m.rows; ++row) {
    round(m.As<float>() + row * m.stride, m.columns, to + row * m.columns);
  }
}

void Execute(const Matmuls& matmuls, const Matmul& matmul) {
  const dnnl_exec_arg_t arguments[] = {{DNNL_ARG_SRC, matmul.a.get()},
                                       {DNNL_ARG_WEIGHTS, matmul.b.get()},
                                       {DNNL_ARG_DST, matmul.c.get()},
                                       {DNNL_ARG_SCRATCHPAD, matmul.scratch.get()}};
  dnnl::error::wrap_c_api(
      dnnl_primitive_execute(matmul.primitive.get(), matmuls.Stream().get(), 4, arguments),
      "the product failed");
  dnnl::error::wrap_c_api(dnnl_stream_wait(matmuls.Stream().get()), "the product failed");
}

}  // namespace

void LibraryBf16Multiply(const device::Stream& /*stream*/, const MatrixProduct& p) {
  thread_local Matmuls matmuls;
  const int threads = omp_in_parallel() != 0 ? 1 : omp_get_max_threads();
  try {
    Matmul& matmul =
        matmuls.Find({p.c.rows, p.c.columns, p.Inner(), p.c.stride, p.form_a == Form::kTransposed,
                      p.form_b == Form::kTransposed, p.accumulate, threads});
    constexpr std::int64_t kLine = 64;  // bytes: alignment of each piece of the workspace
    const auto lines = [](std::int64_t bytes) { return CeilDivide(bytes, kLine) * kLine; };
    const std::int64_t a_bytes = lines(p.a.Size() * 2), b_bytes = lines(p.b.Size() * 2);
    const auto scratch_bytes = static_cast<std::int64_t>(matmul.scratch.get_desc().get_size());
    std::byte* memory = ThreadScratch<Matmul, std::byte>(a_bytes + b_bytes + scratch_bytes);
    Round(p.a, threads, reinterpret_cast<std::uint16_t*>(memory));
    Round(p.b, threads, reinterpret_cast<std::uint16_t*>(memory + a_bytes));
    matmul.a.set_data_handle(memory);
    matmul.b.set_data_handle(memory + a_bytes);
    matmul.c.set_data_handle(p.c.data);
    matmul.scratch.set_data_handle(memory + a_bytes + b_bytes);
    Execute(matmuls, matmul);
  } catch (const dnnl::error& error) {
    throw RunError(fmt::format("oneDNN's bf16 product of {} x {} x {}: {}", p.c.rows, p.Inner(),
                               p.c.columns, error.what()),
                   "Choose run.precision = fp32, or build with -DTRIREME_MATMUL=openblas.");
  }
}

}  // namespace trireme::kernels
