// Work of a step as the planned rank's log tells it, summed for a fit.
#ifndef TRIREME_SRC_PREDICT_WORK_HPP_
#define TRIREME_SRC_PREDICT_WORK_HPP_

#include <cstdint>
#include <vector>

#include "trireme/device/work_log.hpp"

namespace trireme::predict {

struct Work {
  struct Product {
    double m = 0, n = 0, k = 0;
  };
  Dtype type = Dtype::kFloat32;   // of the products
  std::vector<Product> products;  // in the order of the step
  double attention_flops = 0;
  double bytes = 0;    // of passes over memory
  double kernels = 0;  // of all kinds
};

class WorkSum final : public device::WorkLog {
 public:
  explicit WorkSum(Work& work) : work_(work) {}

  void Product(std::int64_t m, std::int64_t n, std::int64_t k, Dtype type, bool /*fp8*/) override {
    if (m == 0 || n == 0 || k == 0) return;
    work_.type = type;
    work_.products.push_back(
        {static_cast<double>(m), static_cast<double>(n), static_cast<double>(k)});
    ++work_.kernels;
  }
  void Attention(double flops, double /*bytes*/, Dtype /*type*/) override {
    work_.attention_flops += flops;
    ++work_.kernels;
  }
  void Pass(double bytes) override {
    work_.bytes += bytes;
    ++work_.kernels;
  }
  int Start(const device::LoggedTransfer& /*transfer*/) override { return 0; }
  void Wait(int /*number*/) override {}
  void BeginTask(int /*kind*/, int /*micro_batch*/, int /*chunk*/) override {}
  void EndTask() override {}

 private:
  Work& work_;
};

}  // namespace trireme::predict

#endif  // TRIREME_SRC_PREDICT_WORK_HPP_
