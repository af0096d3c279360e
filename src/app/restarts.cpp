// Starts in a row from one step.
#include "trireme/app/restarts.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <limits>
#include <system_error>

#include "small_file.hpp"
#include "trireme/base/descriptor.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"
#include "trireme/base/new_file.hpp"
#include "trireme/deck/json_text.hpp"

namespace trireme::app {

namespace {

constexpr std::size_t kMostBytes = 4096;

struct Note {
  std::int64_t step = 0;
  int starts = 0;
};

// The note of the last start; empty if the file is missing or damaged.
Note ReadNote(const std::string& path) {
  const auto noted = deck::TryParseJson(ReadSmallFile(path, kMostBytes).text, kMostBytes);
  if (!noted) return {};
  try {
    const deck::JsonObject object(*noted, path);
    constexpr int kMost = std::numeric_limits<int>::max() - 1;
    const auto starts = static_cast<int>(object.Integer("starts", 0, kMost));
    return {.step = object.Integer("step"), .starts = starts};
  } catch (const Error&) {
    return {};
  }
}

std::string PathIn(const std::string& folder) { return folder + "/restarts.json"; }

}  // namespace

int CountStart(const std::string& folder, std::int64_t step) {
  const std::string path = PathIn(folder);
  const Note before = ReadNote(path);
  const int starts = before.step == step ? before.starts + 1 : 1;
  const nlohmann::ordered_json object = {{"step", step}, {"starts", starts}};
  Replacement file(path, path + ".tmp");
  file.Write(object.dump() + "\n");
  std::error_code error = file.Place();
  if (!error) error = {SyncToDisk(folder), std::generic_category()};
  if (error) {
    throw RunError(
        fmt::format("{0}: cannot be written by way of {0}.tmp: {1}", path, error.message()),
        "Check the run folder's permissions and free space (job.output).");
  }
  return starts;
}

void ForgetStarts(const std::string& folder) {
  std::error_code ignored;  // a file that stays cannot be written either: CountStart tells
  std::filesystem::remove(PathIn(folder), ignored);
}

std::int64_t LastStart(const std::string& folder) { return ReadNote(PathIn(folder)).step; }

}  // namespace trireme::app
