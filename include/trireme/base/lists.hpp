// Words of a text, and look-ups in small files and folders (/proc, /sys) that may fail.
#pragma once

#include <string>
#include <vector>

namespace trireme {

// The words of a text, between blanks and newlines.
std::vector<std::string> WordsIn(const std::string& text);

// The first line of a file, or what comes before `end`; empty if it cannot be read.
std::string FirstLine(const std::string& path, char end = '\n');

// Names of the entries of a folder, sorted; as many as can be listed.
std::vector<std::string> NamesIn(const std::string& folder);

}  // namespace trireme
