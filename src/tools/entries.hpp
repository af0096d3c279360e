// Contents of a support archive: named texts of bounded size, and notes on what is not in it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::tools {

struct Entry {
  std::string name;  // within the archive
  std::string text;
  std::string note;  // difference from the file: "its last 1,048,576 bytes"
};

struct Contents {
  std::vector<Entry> entries;
  std::vector<std::string> notes;  // on files that are missing or cannot be read
};

// Beginning of the line in place of what was cut out of a file.
inline constexpr const char* kGapMark = "[left out: ";

// Bytes at a file's beginning and end; a longer file loses those between.
struct Bounds {
  std::size_t head = 0, tail = 0;
};

struct FileText {
  std::string text;  // with a line in place of what was cut out
  std::string note;  // says so; empty: the whole file
};

// A regular file's text within bounds. Notes in `contents.notes` why it cannot be read and returns
// nothing; a missing file is noted, too, if it is `expected`.
std::optional<FileText> ReadBounded(const std::string& path, Bounds bounds, bool expected,
                                    Contents& contents);

// Texts without what nobody may see in a ticket: what a model or a user wrote, and what lets
// somebody in.

// Passwords in addresses (https://name:password@host), and words after "Bearer" or such, replaced.
std::string WithoutPasswords(std::string text);

// A deck without texts: generate.prompt and generate.stop, also given on a command line.
std::string DeckWithoutTexts(const std::string& deck);

// A log of the program or of a batch job without samples of what the model wrote.
std::string LogWithoutSamples(const std::string& log);

// JSON without samples, prompts and passwords, the decks in it likewise; layout and order as they
// were written by the program. Empty if it is damaged: then nothing tells its texts apart.
std::string JsonWithoutTexts(const std::string& json);

// Environment variables and limits that change how a job runs.

// "NAME=value" of the variables that concern a job, sorted; of one that looks like a secret the
// name alone. `environment`: as of the process, each "NAME=value".
std::string RelevantEnvironment(const std::vector<std::string>& environment);

// The process's own.
std::vector<std::string> OwnEnvironment();

// Soft and hard limits of the process, a line each.
std::string LimitsText();

}  // namespace trireme::tools
