// Model, ranks, grid and sharding of a resumed run against those of its checkpoint.
#include <fmt/format.h>

#include "trireme/base/error.hpp"
#include "trireme/app/run_record.hpp"

namespace trireme::app {

void RequireSameModel(const RunRecord& was, const RunRecord& now) {
  if (was.json.value("model", nlohmann::json()) == now.json.value("model", nlohmann::json()))
    return;
  throw InputError(fmt::format("{}: another model than that of {}", now.path, was.path),
                   "Name one checkpoint with -r.");
}

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

}  // namespace trireme::app
