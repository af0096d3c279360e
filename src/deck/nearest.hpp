// "Did you mean ...?": edit distance between names.
#ifndef TRIREME_SRC_DECK_NEAREST_HPP_
#define TRIREME_SRC_DECK_NEAREST_HPP_

#include <string>
#include <vector>

namespace trireme::deck {

// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b` (optimal
// string alignment).
int EditDistance(const std::string& a, const std::string& b);

// The largest distance at which a name of this length still counts as a slip of the pen.
int NearDistance(const std::string& name);

// The candidate nearest to `name`; empty if none is near.
std::string NearestOf(const std::string& name, const std::vector<std::string>& candidates);

}  // namespace trireme::deck

#endif  // TRIREME_SRC_DECK_NEAREST_HPP_
