// Libraries of a GPU that is not there: chosen products as a test has them.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trireme/kernels/libraries.hpp"

namespace trireme::test {

// Remembers what it was given.
class Listening : public kernels::Libraries {
 public:
  explicit Listening(std::string chosen) : chosen_(std::move(chosen)) {}
  std::string Chosen() const override { return chosen_; }
  bool Adopt(const std::vector<std::string>& texts) override {
    adopted_.push_back(texts);
    return true;
  }
  void Seal() override {}
  bool Sealed() const override { return false; }
  void Reserve(std::int64_t) override {}
  void KeepWeights(std::span<const kernels::Linear> /*layers*/) override {}
  void SetTraining(bool) override {}
  void QueueLargest(const device::Stream&) override {}
  std::span<float> Largest() override { return {}; }
  void UpdateScales(const device::Stream&) override {}
  bool Scaled() const override { return true; }
  std::vector<float> Scales() const override { return {}; }
  bool SetScales(const device::Stream&, std::span<const float>) override { return false; }
  const std::vector<std::vector<std::string>>& Adopted() const { return adopted_; }

 private:
  std::string chosen_;
  std::vector<std::vector<std::string>> adopted_;
};

}  // namespace trireme::test
