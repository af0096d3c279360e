// ManualPage: the page trireme(1) in the macros of man(7). Each line of it holds at most one
// sentence, as roff's checkers like it.
#include <fmt/ranges.h>
#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <sstream>
#include <stdexcept>

#include "trireme/base/utf8.hpp"
#include "trireme/deck/schema.hpp"
#include "value.hpp"

namespace trireme::deck {

namespace {

// How '-' is printed. kMinus: as a minus sign, so that options and numbers can be copied to a
// shell. kInWords: as a hyphen between two letters, elsewhere as a minus sign.
enum class Hyphen { kMinus, kInWords };

constexpr std::size_t kRoffColumns = 78;

bool IsLetter(char character) { return std::isalpha(static_cast<unsigned char>(character)) != 0; }

// Ends a line, and keeps roff from taking it for a request (a command to roff).
std::string Line(const std::string& escaped) {
  const bool request = escaped.starts_with('.') || escaped.starts_with('\'');
  return (request ? "\\&" : "") + escaped + "\n";
}

// Escapes `text` (UTF-8) so that roff prints it unchanged; the result is ASCII. At the beginning of
// a line, a dot would still be a request (see Line).
std::string Escaped(const std::string& text, Hyphen hyphen) {
  constexpr std::array<std::pair<char, const char*>, 7> kEscapes = {{{'\\', "\\e"},
                                                                     {'-', "\\-"},
                                                                     {'\'', "\\(aq"},
                                                                     {'"', "\\(dq"},
                                                                     {'`', "\\(ga"},
                                                                     {'^', "\\(ha"},
                                                                     {'~', "\\(ti"}}};
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const bool in_word = hyphen == Hyphen::kInWords && text[i] == '-' && i > 0 &&
                         i + 1 < text.size() && IsLetter(text[i - 1]) && IsLetter(text[i + 1]);
    const auto* const escape =
        std::ranges::find(kEscapes, text[i], &decltype(kEscapes)::value_type::first);
    const char32_t code = NextCodePoint(text, i);
    if (escape != kEscapes.end() && !in_word) {
      out += escape->second;
    } else if (code < 0x80) {
      out += static_cast<char>(code);
    } else {
      out += fmt::format("\\[u{:04X}]", static_cast<std::uint32_t>(code));
    }
  }
  return out;
}

// The escaped text as a line of its own, in bold.
std::string Bold(const std::string& text) {
  return "\\fB" + Escaped(text, Hyphen::kMinus) + "\\fP\n";
}

// The words of `text` in lines of at most 78 columns, a new one after each sentence; empty if there
// are no words.
std::string Prose(const std::string& text) {
  std::istringstream words(text);
  std::string out, line, word;
  const auto flush = [&] {
    if (!line.empty()) out += Line(line);
    line.clear();
  };
  while (words >> word) {
    const bool ends = word.ends_with('.');
    word = Escaped(word, Hyphen::kInWords);
    if (!line.empty() && line.size() + 1 + word.size() > kRoffColumns) flush();
    line += (line.empty() ? "" : " ") + word;
    if (ends) flush();
  }
  flush();
  return out;
}

// The paragraphs of the help text, which are separated by blank lines.
std::vector<std::vector<std::string>> Paragraphs(const std::string& text) {
  std::vector<std::vector<std::string>> paragraphs(1);
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (!line.empty()) {
      paragraphs.back().push_back(line);
    } else if (!paragraphs.back().empty()) {
      paragraphs.emplace_back();
    }
  }
  if (paragraphs.back().empty()) paragraphs.pop_back();
  return paragraphs;
}

// The section SYNOPSIS. Where forms of the command share a line, at least 3 blanks separate them.
std::string Synopsis(const std::vector<std::string>& lines) {
  std::string out = ".SH SYNOPSIS\n.nf\n";
  for (std::string line : lines) {
    if (line.starts_with("usage:")) line.erase(0, line.find(':') + 1);
    for (std::string rest = Trim(line); !rest.empty();) {
      const std::size_t gap = rest.find("   ");
      out += Escaped(rest.substr(0, gap), Hyphen::kMinus) + "\n";
      rest = gap == std::string::npos ? "" : Trim(rest.substr(gap));
    }
  }
  return out + ".fi\n";
}

// Where, in a line of --help, an option's name ends and its description begins. column: where
// descriptions usually begin (0: unknown); after a longer name, two blanks precede the description.
struct SectionCut {
  std::size_t end, begin;
};
SectionCut CutOf(const std::string& line, std::size_t column) {
  const bool in_column = column > 0 && column < line.size() && line[column - 1] == ' ' &&
                         line[column] != ' ' && line.find("  ", 2) >= column - 1;
  if (in_column) return {column - 1, column};
  const std::size_t end = line.find("  ", line.find_first_not_of(' '));
  if (end == std::string::npos) throw std::logic_error("--help: no description: " + line);
  return {end, line.find_first_not_of(' ', end)};
}

// The section OPTIONS, from lines like "  -i DECK    the input deck"; deeper lines continue a text.
std::string Options(const std::vector<std::string>& lines) {
  std::string out = ".SH OPTIONS\n", description;
  std::size_t column = 0;
  for (const std::string& line : lines) {
    constexpr std::size_t kDepthOfOptions = 2;
    if (line.find_first_not_of(' ') > kDepthOfOptions) {
      description += " " + Trim(line);
      continue;
    }
    const SectionCut cut = CutOf(line, column);
    if (column == 0) column = cut.begin;
    out += Prose(description) + ".TP\n" + Bold(Trim(line.substr(0, cut.end)));
    description = line.substr(cut.begin);
  }
  return out + Prose(description);
}

// The section EXIT STATUS, made from lines of --help: "exit codes: 0 done; 1 failed; ...".
std::string ExitStatus(const std::vector<std::string>& lines) {
  std::string all;
  for (const std::string& line : lines) all += Trim(line) + " ";
  all.erase(0, all.find(':') + 1);
  std::string out = ".SH EXIT STATUS\n";
  while (!Trim(all).empty()) {
    const std::size_t end = all.find(';');
    const std::string code = Trim(all.substr(0, end));
    const std::size_t gap = code.find(' ');
    if (gap == std::string::npos) throw std::logic_error("--help: no meaning: " + code);
    out += ".TP\n" + Bold(code.substr(0, gap)) + Prose(Trim(code.substr(gap)));
    all.erase(0, end == std::string::npos ? end : end + 1);
  }
  return out;
}

std::string KeyEntry(const Schema& schema, const Key& key) {
  std::string out = ".TP\n" + Bold(Trim(key.name + " = " + key.fallback));
  out += Prose(KindText(key) + ".") + Prose(key.help);
  return out + Prose(ExcludesText(schema, key));
}

std::string AllKeys(const Schema& schema) {
  std::string out =
      ".SH THE DECK\n"
      "A deck is a text of\n.B [section]\nheads and\n.B key = value\nlines;\n.B #\nbegins a "
      "comment.\nOn the command line a key is written with its section, as here.\nThe default "
      "follows the =.\n";
  for (const auto& [section, help] : schema.Sections()) {
    out += ".SS " + Escaped("[" + section + "]", Hyphen::kMinus) + "\n";
    out += Prose(help);
    for (const Key& key : schema.Keys()) {
      if (key.name.starts_with(section + ".")) out += KeyEntry(schema, key);
    }
  }
  return out;
}

constexpr const char* kEnvironmentAndFiles =
    R"(.SH ENVIRONMENT
.TP
.B TRIREME_SITE_DECK
A deck with a site's defaults; a user's deck is stronger.
.TP
.B TRIREME_PYTHON
The Python that makes a run's page; else python3 of the PATH.
.TP
.B TRIREME_JOB_END_TIME
When the batch job ends, in seconds since 1970 or as Slurm writes it, if
.B SLURM_JOB_END_TIME
is not set.
.TP
.B TRIREME_CUPTI
The library of CUPTI, for profiles of GPUs.
.TP
.B TMPDIR
Folder of the self-test's files (else /tmp), and of copies of data for which
/dev/shm is too small.
.TP
.B OMP_NUM_THREADS
Threads of each rank, unless run.threads says so.
.TP
.B OMP_PROC_BIND, OMP_PLACES, GOMP_CPU_AFFINITY
Where one is set, OpenMP places the threads, not Trireme.
.TP
.B SLURM_JOB_ID
The job that the lock of a run folder names.
.PP
The MPI library, UCX, libfabric and NCCL read variables of their own.
.SH FILES
Where Trireme is installed, seen from the folder of the program:
.TP
.I ../share/trireme/input
Decks to start from.
.TP
.I ../share/trireme/jobscripts
Scripts for Slurm, and facts of machines.
.TP
.I ../share/trireme/vis
Pages and pictures of runs.
.TP
.I ../share/trireme/doc
What each part does, and how to use it.
.SH SEE ALSO
.BR mpirun (1),
.BR srun (1),
.BR sbatch (1)
)";

}  // namespace

std::string ManualPage(const Schema& schema, const ManualFacts& facts) {
  std::string name, rest, exit_status;
  for (const auto& lines : Paragraphs(facts.help)) {
    if (name.empty()) {
      std::string sentence = Trim(fmt::format("{}", fmt::join(lines, " ")));
      if (!sentence.starts_with("Trireme ") || !sentence.ends_with('.')) {
        throw std::logic_error("--help: does not begin with a sentence about Trireme");
      }
      sentence.pop_back();
      sentence.erase(0, sentence.find(' ') + 1);
      name = ".SH NAME\ntrireme \\- " + Escaped(sentence, Hyphen::kInWords) + "\n";
    } else if (lines.front().starts_with("usage:")) {
      rest += Synopsis(lines);
    } else if (lines.front().starts_with("  -")) {
      rest += Options(lines);
    } else if (lines.front().starts_with("exit codes:")) {
      exit_status = ExitStatus(lines);
    } else {
      throw std::logic_error("--help: a paragraph of no known kind: " + lines.front());
    }
  }
  return ".\\\" Made from the declarations of the keys and from --help.\n" +
         fmt::format(".TH TRIREME 1 {0} \"Trireme {1}\" \"User Commands\"\n", facts.date,
                     facts.version) +
         name + rest + AllKeys(schema) + exit_status + kEnvironmentAndFiles;
}

}  // namespace trireme::deck
