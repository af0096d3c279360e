// Fit of a machine's description to measured steps.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/device/activities.hpp"
#include "trireme/predict/machine.hpp"

namespace trireme::predict {

// The work of a step, as a planned rank logs it, summed up for a fit.

struct Work {
  struct Product {
    double m = 0, n = 0, k = 0;
  };
  Dtype type = Dtype::kFloat32;   // type of the products
  std::vector<Product> products;  // in the order of the step
  double attention_flops = 0;
  double bytes = 0;    // moved by passes over memory
  double kernels = 0;  // number of kernels of all kinds
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

struct Observation {
  Work work;
  double seconds = 0;  // measured duration of the step
};

// Seconds of a step on `machine`, by the formulas of the simulation.
double SecondsOf(const Work& work, const Machine& machine);

// The x >= 0 that minimises the sum of squares of 1 - rows x (the problem of Lawson and Hanson
// 1974, solved by trying all sets of columns, which are few). rows: [observations, columns].
std::vector<double> LeastSquares(const std::vector<std::vector<double>>& rows);

// Sets efficiency and half of the observed types, the efficiency of attention, the memory's speed
// and the overheads of kernels and steps, by least squares of the relative differences between
// SecondsOf and the observations. The peaks of the observed types must be set; if a step exceeds
// one, all peaks are raised by the same factor.
void Fit(const std::vector<Observation>& observations, Machine& machine);

}  // namespace trireme::predict
