// Steps of small models, measured on every rank at the same time.
#ifndef TRIREME_SRC_PREDICT_CALIBRATE_STEPS_HPP_
#define TRIREME_SRC_PREDICT_CALIBRATE_STEPS_HPP_

#include <string>
#include <vector>

#include "fit.hpp"
#include "trireme/predict/calibrate.hpp"

namespace trireme::predict {

struct MeasuredStep {
  std::string text;  // "fp32, dim 256, 2 layers, 8 x 128 tokens"
  Observation observation;
};

// Collective. Appends the steps of one precision: medians over repetitions, means over ranks.
void MeasureSteps(const Subject& subject, device::Precision precision, Effort effort,
                  std::vector<MeasuredStep>& steps);

}  // namespace trireme::predict

#endif  // TRIREME_SRC_PREDICT_CALIBRATE_STEPS_HPP_
