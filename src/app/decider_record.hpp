// The object "validation" of run.json: the set whose loss decides on the best checkpoint.
#ifndef TRIREME_SRC_APP_DECIDER_RECORD_HPP_
#define TRIREME_SRC_APP_DECIDER_RECORD_HPP_

#include <string>

#include "trireme/base/json.hpp"
#include "trireme/app/run_record.hpp"

namespace trireme::app {

// Reads the object into record.decider; no effect without one. Throws InputError naming path and
// member.
void ParseDecider(const nlohmann::json& run, const std::string& path, RunRecord& record);

}  // namespace trireme::app

#endif  // TRIREME_SRC_APP_DECIDER_RECORD_HPP_
