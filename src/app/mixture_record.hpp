// The list "mixture" of run.json: the files of a run's training and how far each was used.
#ifndef TRIREME_SRC_APP_MIXTURE_RECORD_HPP_
#define TRIREME_SRC_APP_MIXTURE_RECORD_HPP_

#include <cstdint>
#include <string>

#include "trireme/base/json.hpp"
#include "trireme/app/run_record.hpp"

namespace trireme::app {

// Tokens of a training split that a run.json may tell of: sums of windows stay within 63 bits.
inline constexpr std::int64_t kMostTrainTokens = std::int64_t{1} << 50;

// Reads the list into record.mixture and the files' places into record.origin; no effect without
// one. Throws InputError naming path and member.
void ParseMixture(const nlohmann::json& run, const std::string& path, RunRecord& record);

// Difference between the mixtures of two run.json, in a sentence; empty: none.
std::string MixtureChange(const nlohmann::json& was, const nlohmann::json& now);

}  // namespace trireme::app

#endif  // TRIREME_SRC_APP_MIXTURE_RECORD_HPP_
