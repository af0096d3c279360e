// Fit of a machine's description to measured steps.
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/device/activities.hpp"
#include "trireme/predict/machine.hpp"

namespace trireme::predict {

// Work of a step as the planned rank's log tells it, summed for a fit.

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

struct Observation {
  Work work;
  double seconds = 0;  // that a step took
};

// Seconds of a step by the description, with the formulas of a simulation.
double SecondsOf(const Work& work, const Machine& machine);

// Numbers x >= 0 that make the sum of squares of 1 - (rows x) least (Lawson and Hanson 1974, by
// trying all sets of columns: there are a few). rows: [observations, columns].
std::vector<double> LeastSquares(const std::vector<std::vector<double>>& rows);

// Sets efficiencies and halves of the types that the observations have, the efficiency of
// attention, and the speed and times of kernels and steps so that the relative differences of
// SecondsOf to the observations are least. The peaks of those types must be set; a peak rises where
// steps exceed it.
void Fit(const std::vector<Observation>& observations, Machine& machine);

}  // namespace trireme::predict
