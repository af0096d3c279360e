// Results of evaluations as lines of the screen and as JSON.
#ifndef TRIREME_SRC_TASKS_EVALUATE_REPORT_HPP_
#define TRIREME_SRC_TASKS_EVALUATE_REPORT_HPP_

#include <cstdint>
#include <string>

#include "trireme/base/json.hpp"
#include "trireme/data/text_units.hpp"
#include "trireme/train/evaluation.hpp"

namespace trireme::tasks {

using Json = nlohmann::ordered_json;

inline constexpr const char* kIndent = "            ";  // of lines below the first

// A line, at once.
void Say(const std::string& line);

// The line of an evaluation; of: what was evaluated, behind it.
void SayLoss(const std::string& what, const train::Evaluation& result, const std::string& of);
// The line below it: by word and byte.
void SayUnits(double nats, const data::TextUnits& units);

Json AsJson(const train::Evaluation& result, const data::TextUnits& units);
Json Number(double value);  // null for one that is not finite

double PerUnit(double nats, std::int64_t units);  // not a number for no units
double BitsPerByte(double nats, const data::TextUnits& units);
// By words and line ends.
double WordPerplexity(double nats, const data::TextUnits& units);

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_EVALUATE_REPORT_HPP_
