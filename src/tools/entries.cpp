// Reads parts of files, removes texts and secrets from them, and lists the environment.
#include "entries.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <regex>
#include <sstream>

#include "trireme/base/files.hpp"
#include "trireme/base/json.hpp"

namespace trireme::tools {

// Appends the bytes [from, from + count) that the file has; false if reading fails.
static bool ReadPart(int file, std::size_t from, std::size_t count, std::string& text) {
  const std::size_t before = text.size();
  text.resize(before + count);
  const auto wanted = static_cast<std::int64_t>(count);
  const std::int64_t done =
      ReadAt(file, text.data() + before, wanted, static_cast<std::int64_t>(from));
  if (done < wanted && errno != 0) return false;
  text.resize(before + static_cast<std::size_t>(done));
  return true;
}

std::optional<FileText> ReadBounded(const std::string& path, Bounds bounds, bool expected,
                                    Contents& contents) {
  const auto give_up = [&](const std::string& why) {
    contents.notes.push_back(fmt::format("{}: {}", path, why));
    return std::nullopt;
  };
  // O_NONBLOCK: opening a pipe must not block.
  const Descriptor file(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (!file.Valid()) {
    if (errno == ENOENT && !expected) return std::nullopt;
    return give_up(errno == ENOENT ? "not there" : ErrorText(errno));
  }
  struct stat facts {};
  if (fstat(file.Get(), &facts) != 0) return give_up(ErrorText(errno));
  if (!S_ISREG(facts.st_mode)) return give_up("not a regular file");
  const auto size = static_cast<std::size_t>(facts.st_size);
  FileText result;
  if (size <= bounds.head + bounds.tail) {
    if (!ReadPart(file.Get(), 0, size, result.text)) return give_up(ErrorText(errno));
    return result;
  }
  if (!ReadPart(file.Get(), 0, bounds.head, result.text)) return give_up(ErrorText(errno));
  // Keep whole lines on both sides of the gap.
  result.text.resize(result.text.rfind('\n') + 1);  // npos + 1 is 0
  std::string end;
  if (!ReadPart(file.Get(), size - bounds.tail, bounds.tail, end)) return give_up(ErrorText(errno));
  end.erase(0, std::min(end.find('\n'), end.size() - 1) + 1);
  const std::size_t cut = size - result.text.size() - end.size();
  result.text += fmt::format("{}{} bytes]\n", kGapMark, cut);
  result.text += end;
  result.note = fmt::format("{} of its {} bytes left out", cut, size);
  return result;
}

// Recognising texts and secrets.

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kLeftOut = "(left out)";

// Whether the line comes after a sample, whose text may have several lines: a record's line, a
// closing line, or the first line of a start or an error.
bool EndsSample(const std::string& line) {
  static const std::regex next(
      R"((done|stopped) +[0-9,]+ steps?[ ,].*| *[0-9,]+( +[0-9.]+){3} .*|Trireme [0-9]+\.[0-9].*|trireme: .*)");
  return std::regex_match(line, next);
}

bool IsWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// Whether a value looks random: long, with letters and digits mixed, and without characters that
// separate parts of paths or lists.
bool LooksRandom(std::string_view value) {
  constexpr std::size_t kShortest = 20;
  std::size_t run = 0, digits = 0, letters = 0;
  for (const char c : value) {
    if (IsWord(c) || c == '_' || c == '-' || c == '+' || c == '=') {
      ++run;
      digits += std::isdigit(static_cast<unsigned char>(c)) != 0 ? 1 : 0;
      letters += std::isalpha(static_cast<unsigned char>(c)) != 0 ? 1 : 0;
    } else {
      run = digits = letters = 0;
    }
    if (run >= kShortest && digits >= 4 && letters >= 4) return true;
  }
  return false;
}

// Whether a variable's name suggests a secret: it contains TOKEN, KEY, PASSWORD or the like.
bool IsSecretName(std::string_view name) {
  std::string upper(name);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  constexpr const char* kWords =
      "TOKEN SECRET PASS PWD KEY CRED AUTH COOKIE JWT SIGNATURE CERT MUNGE PRIVATE";
  return std::ranges::any_of(WordsIn(kWords), [&](const std::string& word) {
    return upper.find(word) != std::string::npos;
  });
}

// Removes the text from "key = value" in [generate], or from generate.key=value on a command line.
std::string DeckLineWithoutText(const std::string& line, bool in_generate) {
  static const std::regex in_section(R"(^\s*(prompt|stop)\s*=\s*\S.*$)");
  static const std::regex anywhere(R"(generate\.(prompt|stop)\s*=.*$)");
  if (in_generate && std::regex_match(line, in_section)) {
    return line.substr(0, line.find('=')) + "= " + kLeftOut;
  }
  return std::regex_replace(line, anywhere, std::string("generate.$1=") + kLeftOut);
}

void Clean(Json& json) {
  if (json.is_object()) {
    for (const char* const name : {"samples", "sample", "prompt", "stop", "generate.prompt",
                                   "generate.stop", "completion"}) {
      if (json.contains(name)) json[name] = kLeftOut;
    }
  }
  if (json.is_string()) {
    const std::string text = json.get<std::string>();
    json = WithoutPasswords(text.find('\n') == std::string::npos ? text : DeckWithoutTexts(text));
  } else if (json.is_structured()) {
    for (Json& each : json) Clean(each);
  }
}

}  // namespace

std::string WithoutPasswords(std::string text) {
  static const std::regex address(R"(([A-Za-z][A-Za-z0-9+.-]*://)[^/\s@"']+@)");
  static const std::regex bearer(R"(\b([Bb]earer|[Tt]oken|[Pp]assword)([ =:]+)[^\s"',]{8,})");
  if (text.find("://") != std::string::npos) {
    text = std::regex_replace(text, address, std::string("$1") + kLeftOut + "@");
  }
  return std::regex_replace(text, bearer, std::string("$1$2") + kLeftOut);
}

std::string DeckWithoutTexts(const std::string& deck) {
  std::istringstream lines(deck);
  std::string result;
  bool in_generate = false;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t start = line.find_first_not_of(" \t");
    if (start != std::string::npos && line[start] == '[') {
      in_generate = line.compare(start, 10, "[generate]") == 0;
    }
    result += DeckLineWithoutText(line, in_generate);
    if (!lines.eof()) result += '\n';
  }
  return result;
}

std::string LogWithoutSamples(const std::string& log) {
  std::istringstream lines(log);
  std::string result;
  bool in_sample = false;
  for (std::string line; std::getline(lines, line);) {
    const bool sample = line.starts_with("sample  ");
    if (sample || line.starts_with(kGapMark)) {
      in_sample = true;  // a gap may end in the middle of a sample
      result += (sample ? std::string("sample  ") + kLeftOut : line) + "\n";
      continue;
    }
    in_sample = in_sample && !EndsSample(line);
    if (in_sample) continue;
    result += DeckLineWithoutText(line, false);
    if (!lines.eof()) result += '\n';
  }
  return result;
}

std::string JsonWithoutTexts(const std::string& json) {
  Json parsed = Json::parse(json, nullptr, false);
  if (parsed.is_discarded()) return {};
  Clean(parsed);
  return parsed.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// The environment of a process: the variables that matter in a ticket.

namespace {

constexpr const char* kPrefixes =
    "OMP_ GOMP_ KMP_ OMPI_ PRTE_ PMIX_ PMI_ HYDRA_ MPI_ MPICH_ MPIR_ I_MPI_ PSM2_ SLURM_ SLURMD_ "
    "SRUN_ SBATCH_ UCX_ FI_ NCCL_ CUDA_ TRIREME_ ROMIO_ HDF5_ DNNL_ ONEDNN_ PBS_ LSB_ "
    "XDG_CACHE_HOME";
constexpr const char* kNames =
    "LOADEDMODULES LMOD_SYSTEM_NAME TMPDIR LD_LIBRARY_PATH LD_PRELOAD LANG LC_ALL "
    "MALLOC_ARENA_MAX GLIBC_TUNABLES";

bool Concerns(std::string_view name) {
  return std::ranges::count(WordsIn(kNames), name) > 0 ||
         std::ranges::any_of(WordsIn(kPrefixes),
                             [&](const std::string& prefix) { return name.starts_with(prefix); });
}

std::string Number(rlim_t limit) {
  return limit == RLIM_INFINITY ? "unlimited" : std::to_string(limit);
}

}  // namespace

std::string RelevantEnvironment(const std::vector<std::string>& environment) {
  std::vector<std::string> lines;
  for (const std::string& each : environment) {
    const std::size_t equals = each.find('=');
    const std::string name = each.substr(0, equals);
    if (equals == std::string::npos || !Concerns(name)) continue;
    const std::string value = each.substr(equals + 1);
    const bool secret =
        IsSecretName(name) || LooksRandom(value) || WithoutPasswords(value) != value;
    std::string shown = secret ? "(left out: it may be a secret)" : value;
    // Further lines of the value could be mistaken for other variables.
    std::replace(shown.begin(), shown.end(), '\n', ' ');
    lines.push_back(fmt::format("{}={}\n", name, shown));
  }
  std::sort(lines.begin(), lines.end());
  std::string text;
  for (const std::string& line : lines) text += line;
  return text.empty() ? "none of the variables that concern a job is set\n" : text;
}

std::vector<std::string> OwnEnvironment() {
  std::vector<std::string> result;
  for (char** each = environ; each != nullptr && *each != nullptr; ++each) {
    result.emplace_back(*each);
  }
  return result;
}

std::string LimitsText() {
  constexpr auto kLimits = std::to_array<std::pair<const char*, __rlimit_resource>>(
      {{"address space, bytes", RLIMIT_AS},
       {"core file, bytes", RLIMIT_CORE},
       {"cpu time, seconds", RLIMIT_CPU},
       {"data, bytes", RLIMIT_DATA},
       {"file size, bytes", RLIMIT_FSIZE},
       {"locked memory, bytes", RLIMIT_MEMLOCK},
       {"open files", RLIMIT_NOFILE},
       {"processes", RLIMIT_NPROC},
       {"stack, bytes", RLIMIT_STACK}});
  std::string text = fmt::format("{:<22}{:>22}{:>22}\n", "limit", "soft", "hard");
  for (const auto& [name, resource] : kLimits) {
    rlimit limit{};
    if (getrlimit(resource, &limit) != 0) continue;
    text +=
        fmt::format("{:<22}{:>22}{:>22}\n", name, Number(limit.rlim_cur), Number(limit.rlim_max));
  }
  return text;
}

}  // namespace trireme::tools
