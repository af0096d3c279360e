// FollowedRun: records are read as they come; the deck again when it has changed.
#include "followed_run.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "plain_text.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"

namespace trireme::tools {

namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMaxDeckBytes = 1 << 20;

constexpr const char* kGiveFolders = "Give the folders of runs: trireme --watch RUN...";

// A folder that is no run's would be waited for without an end, as would a file of something else.
std::string InFolder(const std::string& path) {
  std::error_code ignored;
  const fs::path folder(path);
  const fs::path records = folder / "metrics.jsonl";
  if (fs::exists(records, ignored) || fs::exists(folder / "deck.in", ignored)) {
    return records.string();
  }
  throw InputError(fmt::format("{}: is no run folder: neither deck.in nor metrics.jsonl is in it",
                               OneLine(path)),
                   kGiveFolders);
}

std::string OfRecords(const std::string& path) {
  constexpr std::size_t kHead = 4096;
  std::string head(kHead, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(head.data(), std::ssize(head));
  head.resize(static_cast<std::size_t>(file.gcount()));
  if (head.empty() || head.find(R"({"kind")") != std::string::npos) return path;
  throw InputError(
      fmt::format("{}: holds no records of a run, as metrics.jsonl does", OneLine(path)),
      kGiveFolders);
}

std::string RecordsOf(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) return InFolder(path);
  if (fs::is_regular_file(status) && ::access(path.c_str(), R_OK) != 0) return path;
  if (fs::is_regular_file(status)) return OfRecords(path);
  std::string why = "neither a folder nor a file";
  if (status.type() == fs::file_type::not_found) why = "no such run folder";
  if (!fs::status_known(status)) why = error.message();
  throw InputError(fmt::format("{}: {}", OneLine(path), why), kGiveFolders);
}

std::string FolderOf(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) ? path : fs::path(path).parent_path().string();
}

std::string Name(const std::string& path) {
  std::string name = OneLine(path, 200);
  while (name.size() > 1 && name.ends_with('/')) name.pop_back();
  return name;
}

}  // namespace

FollowedRun::FollowedRun(const std::string& path)
    : name(Name(path)), folder(FolderOf(path)), file(RecordsOf(path)) {
  // A file that can never be read is told at once.
  const Descriptor found(file.Path(), O_RDONLY | O_NONBLOCK);
  if (found.Valid() || errno == ENOENT) return;
  throw InputError(fmt::format("{}: cannot be read: {}", OneLine(file.Path()), ErrorText(errno)));
}

void FollowedRun::ReadDeck() {
  const fs::path path = fs::path(folder) / "deck.in";
  std::error_code error;
  const auto date = fs::last_write_time(path, error).time_since_epoch().count();
  if (error || date == deck_date_ || !fs::is_regular_file(path, error) ||
      fs::file_size(path, error) > kMaxDeckBytes) {
    return;
  }
  std::ifstream deck(path);
  std::ostringstream text;
  text << deck.rdbuf();
  if (!deck.good() && !deck.eof()) return;
  schedule = ReadSchedule(text.str());
  deck_date_ = date;
}

bool FollowedRun::ReadOn(double seconds) {
  ReadDeck();
  const double end = Seconds() + seconds;
  const FollowedFile::Visit visit{.line = [this](std::string_view line) { state.Take(line); },
                                  .restart = [this] { state.Clear(); }};
  do {
    condition = file.Read(visit);
  } while (condition == FollowedFile::State::kBehind && Seconds() < end);
  return condition == FollowedFile::State::kBehind;
}

}  // namespace trireme::tools
