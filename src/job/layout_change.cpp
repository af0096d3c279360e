// LayoutChange: ranks, grid and sharding of a resumed run against those of its checkpoint.
#include <fmt/format.h>

#include "trireme/job/run_record.hpp"

namespace trireme::job {

std::string LayoutChange(const RunRecord& record, const nlohmann::json& now) {
  std::string changes;
  for (const char* name : {"ranks", "grid", "sharding"}) {
    if (!record.json.contains(name) || !now.contains(name)) continue;
    const nlohmann::json &was = record.json.at(name), &is = now.at(name);
    if (was == is) continue;
    const auto text = [](const nlohmann::json& value) {
      return value.is_string() ? value.get<std::string>() : value.dump();
    };
    changes +=
        fmt::format("{}{} {} after {}", changes.empty() ? "" : "; ", name, text(is), text(was));
  }
  return changes;
}

}  // namespace trireme::job
