// Contents of a support archive: named texts of bounded size, and notes on what is missing.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::tools {

struct Entry {
  std::string name;  // path within the archive
  std::string text;
  std::string note;  // how `text` differs from the file: "900 of its 4000 bytes left out"
};

struct Contents {
  std::vector<Entry> entries;
  std::vector<std::string> notes;  // on files that are missing or unreadable
};

// Beginning of the line that replaces what was cut out of a file.
inline constexpr const char* kGapMark = "[left out: ";

// Bytes kept at a file's beginning and end; the middle of a longer file is cut out.
struct Bounds {
  std::size_t head = 0, tail = 0;
};

struct FileText {
  std::string text;  // has a line in place of what was cut out
  std::string note;  // says what was cut out; empty: nothing
};

// Reads a regular file's text within bounds. If it cannot be read, adds a note to `contents.notes`
// and returns nullopt; a missing file is noted only if it is `expected`.
std::optional<FileText> ReadBounded(const std::string& path, Bounds bounds, bool expected,
                                    Contents& contents);

// Removing from texts what nobody may see in a ticket: what a model or a user wrote, and secrets.

// Replaces passwords in addresses (https://name:password@host) and tokens after "Bearer" etc.
std::string WithoutPasswords(std::string text);

// The deck without generate.prompt and generate.stop, wherever they are given.
std::string DeckWithoutTexts(const std::string& deck);

// The log of the program or of a batch job without samples of the model's text.
std::string LogWithoutSamples(const std::string& log);

// JSON without samples, prompts and passwords, also in the decks it contains; members keep their
// order. Empty if it is damaged, because texts cannot be told apart then.
std::string JsonWithoutTexts(const std::string& json);

// Environment variables and limits that affect how a job runs.

// Sorted lines "NAME=value" of the variables that concern a job; only the name if the value looks
// like a secret. environment: elements "NAME=value", as a process has them.
std::string RelevantEnvironment(const std::vector<std::string>& environment);

// The environment of this process.
std::vector<std::string> OwnEnvironment();

// Soft and hard limits of the process, one line each.
std::string LimitsText();

}  // namespace trireme::tools
