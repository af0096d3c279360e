// How fast this machine does the matrix products of a training step when they are all it does: each
// distinct product by itself, at the size, form and strides that the model uses.
#ifndef TRIREME_TEST_BENCHMARK_ROOFS_HPP_
#define TRIREME_TEST_BENCHMARK_ROOFS_HPP_

#include <cstdint>
#include <vector>

#include "trireme/device/memory.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/model/options.hpp"

namespace trireme::benchmark {

// c = form_a(a) form_b(b), [m, n] with k inner indices.
struct Product {
  kernels::Form form_a = kernels::Form::kPlain, form_b = kernels::Form::kPlain;
  std::int64_t m = 0, n = 0, k = 0;
  bool accumulate = false;
  bool head = false;  // of the vocabulary, whose logits need not be kept
  double times = 0;   // in a step
};

// All products of a step but attention's own, forward, input gradient and weight gradient.
// rows: tokens of a micro-batch.
std::vector<Product> ProductsOf(const model::Options& options, std::int64_t rows,
                                std::int64_t micro_batches);
// Operations of attention's products in a token's forward and backward pass.
double AttentionFlopsPerToken(const model::Options& options, std::int64_t length);

class ProductRoof {
 public:
  // Allocates operands of their own for every product, in ordinary memory.
  ProductRoof(const device::Stream& stream, std::vector<Product> products);

  // Seconds that all products of a step take now, each done in the fastest of the ways there are:
  // by the library or (fp32) by Trireme's own product; in bf16 or, where that is faster, in fp32;
  // the head's whole or in blocks of the vocabulary.
  double Seconds() const;

 private:
  struct Operands {
    device::Buffer storage[3];
    kernels::Matrix a, b, c;
  };
  double Fastest(const Product& product, const Operands& operands) const;

  std::vector<device::Stream> ways_;
  std::vector<Product> products_;
  std::vector<Operands> operands_;
};

}  // namespace trireme::benchmark

#endif  // TRIREME_TEST_BENCHMARK_ROOFS_HPP_
