// CertainCut: matches of the first pattern that did not look at the end of the text.
#include "bpe_cut.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "normalize.hpp"

namespace trireme::data {

namespace {

constexpr std::size_t kTries = 64;  // matches at whose end a cut is tried
constexpr std::size_t kNear = 8;    // matches before a cut that are looked at first

// Largest offset of a character's first byte, at most `at`.
std::size_t CharacterAt(std::string_view text, std::size_t at) {
  while (at > 0 && at < text.size() && (text[at] & 0xC0) == 0x80) --at;
  return at;
}

// End of the last added token that begins before `limit`, in text[from, ...); `from` if none does.
std::size_t AfterTokens(const AddedTokens& added, std::string_view text, std::size_t from,
                        std::size_t limit) {
  std::size_t end = from;
  for (std::size_t next = from;;) {
    const AddedTokens::Found found = added.First(text, next, end);
    if (found.id < 0 || found.begin >= limit) return end;
    end = found.end;
    next = found.next;
  }
}

using Match = std::pair<std::size_t, std::size_t>;  // [begin, end)

// True if matches `from` to `last` are found in the text before the end of the last alone, too.
bool SameAlone(const Pattern& pattern, std::string_view text, const std::vector<Match>& matches,
               std::size_t from, std::size_t last, Pattern::Search& search) {
  const std::string_view part = text.substr(0, matches[last].second);
  std::size_t at = from == 0 ? 0 : matches[from - 1].second;
  for (std::size_t i = from; i <= last; ++i) {
    if (search.First(pattern, part, at) != matches[i]) return false;
    at = matches[i].second;
  }
  return true;
}

// End of the last match that stays what it is whatever follows the text, and without what follows
// it; 0: none. before_blank: a blank must follow.
std::size_t CutOf(const Pattern& pattern, std::string_view text, bool before_blank,
                  Pattern::Search& search) {
  std::vector<Match> matches;
  search.Begin(text);
  for (std::size_t from = 0;;) {
    const Match match = search.FirstWhateverFollows(pattern, text, from);
    if (match.first == text.size()) break;
    matches.push_back(match);
    from = match.second;
  }
  std::size_t tries = kTries;
  for (std::size_t last = matches.size(); last-- > 0 && tries > 0;) {
    const std::size_t end = matches[last].second;
    if (before_blank && (end == text.size() || text[end] != ' ')) continue;
    --tries;
    const std::size_t near = last < kNear ? 0 : last - kNear;  // the nearest differ first
    if (SameAlone(pattern, text, matches, near, last, search) &&
        SameAlone(pattern, text, matches, 0, last, search)) {
      return end;
    }
  }
  return 0;
}

}  // namespace

std::size_t CertainCut(std::string_view text, const BpeDefinition& definition,
                       const AddedLists& added, Pattern::Search& search) {
  if (definition.splits.empty() || definition.splits.front().pattern.LooksBehind()) return 0;
  if (definition.form_c) text = text.substr(0, LastBoundaryC(text));
  // No token that begins before `limit` depends on what follows.
  const std::size_t longest = std::max(added.raw.Longest(), added.normalized.Longest());
  if (text.size() <= longest) return 0;
  std::size_t limit = CharacterAt(text, text.size() - (longest == 0 ? 0 : longest - 1));
  if (added.raw.TakeSpaceBefore() || added.normalized.TakeSpaceBefore()) {
    limit = BeforeSpaces(text, 0, limit);
  }
  std::size_t begin = AfterTokens(added.raw, text, 0, limit);
  if (begin >= limit) return 0;
  if (definition.form_c) {
    std::string room;
    const std::string_view rest = text.substr(begin);
    if (NormalizeC(rest, room) != rest) return 0;  // places differ after normalisation
  }
  begin = AfterTokens(added.normalized, text, begin, limit);
  if (begin >= limit) return 0;

  // A blank before the text of a step that wants one; later parts then must have their own.
  const bool prefixed = definition.add_prefix_space && definition.prefix_space_before == 0;
  std::string with_blank;
  std::string_view rest = text.substr(begin, limit - begin);
  if (prefixed && !rest.starts_with(' ')) {
    with_blank = ' ';
    with_blank += rest;
    rest = with_blank;
  }
  const std::size_t cut = CutOf(definition.splits.front().pattern, rest, prefixed, search);
  if (cut == 0) return begin;
  return begin + cut - (with_blank.empty() ? 0 : 1);
}

}  // namespace trireme::data
