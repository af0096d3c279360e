// Starts in a row from one step.
#include "trireme/job/restarts.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

#include "small_file.hpp"
#include "trireme/base/error.hpp"

namespace trireme::job {

namespace {

constexpr std::size_t kMostBytes = 4096;
constexpr const char* kHint = "Check the run folder's permissions and free space (job.output).";

// Starts noted for that step; 0 if the file is missing, damaged, or tells of another step.
int StartsNoted(const std::string& path, std::int64_t step) {
  const SmallFile file = ReadSmallFile(path, kMostBytes);
  const auto object = nlohmann::json::parse(file.text, nullptr, false);
  if (!object.is_object()) return 0;
  const auto noted = object.find("step"), starts = object.find("starts");
  if (noted == object.end() || !noted->is_number_integer()) return 0;
  if (starts == object.end() || !starts->is_number_unsigned()) return 0;
  const auto count = starts->get<std::uint64_t>();
  const bool sound = count < static_cast<std::uint64_t>(std::numeric_limits<int>::max());
  return sound && *noted == step ? static_cast<int>(count) : 0;
}

}  // namespace

int CountStart(const std::string& folder, std::int64_t step) {
  const std::string path = folder + "/restarts.json";
  const std::string temporary = path + ".tmp";
  const int starts = StartsNoted(path, step) + 1;
  // A leftover of a killed session; with the lock held nothing else writes here.
  if (::unlink(temporary.c_str()) != 0 && errno != ENOENT) {
    throw RunError(fmt::format("{}: a leftover cannot be removed: {}", temporary, ErrorText(errno)),
                   kHint);
  }
  const nlohmann::ordered_json object = {{"step", step}, {"starts", starts}};
  CreateDurably(temporary, object.dump() + "\n", kHint);
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    throw RunError(fmt::format("{}: cannot be replaced: {}", path, ErrorText(error)), kHint);
  }
  SyncFolder(folder);
  return starts;
}

}  // namespace trireme::job
