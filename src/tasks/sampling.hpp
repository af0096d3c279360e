// The next token of a text: repetition penalty, the choice among the candidates, log-probability.
#ifndef TRIREME_SRC_TASKS_SAMPLING_HPP_
#define TRIREME_SRC_TASKS_SAMPLING_HPP_

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/tasks/evaluate.hpp"
#include "trireme/tasks/tasks.hpp"

namespace trireme::tasks {

// Uniform of (0, 1] for the added token number `position` of prompt number `prompt`
// (doc/numerics.md, "Generation").
double DrawOf(std::uint32_t seed, std::int64_t prompt, std::int64_t position);

// Divides the logits of the tokens in `seen` by `penalty`, or multiplies those below 0 by it, each
// once.
void Penalise(std::span<const std::int32_t> seen, double penalty, std::vector<double>& logits);

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_SAMPLING_HPP_
