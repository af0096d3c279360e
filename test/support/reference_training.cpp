// ReferenceTraining: a step of AdamW on the reference model, tensor by tensor.
#include "reference_training.hpp"

#include <cmath>
#include <utility>

namespace trireme::test {

ReferenceTraining::ReferenceTraining(const model::Options& options,
                                     const train::OptimizerOptions& optimizer, Parameters start,
                                     std::uint32_t seed)
    : options_(options), optimizer_(optimizer), seed_(seed), values_(std::move(start)) {}

double ReferenceTraining::Step(const data::Entry& batch, double learning_rate) {
  ++step_;
  const ReferenceResult result =
      RunReference(options_, values_, batch, seed_, optimizer_.label_smoothing, true);
  const auto count = static_cast<double>(result.valid);
  double squares = 0;  // of the mean's gradient
  for (const auto& [name, gradient] : result.gradients) {
    for (const double g : gradient) squares += g / count * (g / count);
  }
  const double norm = std::sqrt(squares);
  const double clip = norm > optimizer_.clip_norm ? optimizer_.clip_norm / norm : 1;
  for (const auto& [name, gradient] : result.gradients) {
    Update(name, gradient, clip / count, learning_rate);
  }
  return result.loss_sum / count;
}

// Loshchilov and Hutter 2019, algorithm 2; norms and biases do not decay.
void ReferenceTraining::Update(const std::string& name, const std::vector<double>& gradient,
                               double factor, double rate) {
  const double beta1 = optimizer_.beta1, beta2 = optimizer_.beta2;
  const bool vector = name.ends_with(".bias") || name.ends_with("norm.weight");
  const double decay = vector ? 0 : optimizer_.weight_decay;
  const double correction1 = 1 - std::pow(beta1, static_cast<double>(step_));
  const double correction2 = 1 - std::pow(beta2, static_cast<double>(step_));
  std::vector<double>& values = values_.at(name);
  std::vector<double>&first = first_[name], &second = second_[name];
  first.resize(values.size());
  second.resize(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double g = gradient[i] * factor;
    first[i] = beta1 * first[i] + (1 - beta1) * g;
    second[i] = beta2 * second[i] + (1 - beta2) * g * g;
    const double step =
        first[i] / correction1 / (std::sqrt(second[i] / correction2) + optimizer_.epsilon);
    values[i] -= rate * (step + decay * values[i]);
  }
}

}  // namespace trireme::test
