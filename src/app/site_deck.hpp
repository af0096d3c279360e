// A site's deck: defaults that a centre sets for all users of its machine; a user's deck takes
// precedence. Also a reader of small files that jobs share.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "trireme/deck/deck.hpp"

namespace trireme::app {

// The environment variable that names the file; unset or empty: the site has no deck.
inline constexpr const char* kSiteDeckVariable = "TRIREME_SITE_DECK";

// The keys that a site may set: how jobs use the machine, but nothing that a run computes.
const std::vector<std::string>& SiteKeys();

// Sets keys that the user's deck and command line leave out to the values in the site's deck. path,
// text: the site's file and its content. Of the keys that together decide when checkpoints are
// written, none is set if the user sets one. Throws InputError with path and line like Deck::Parse,
// and one that lists all keys that are not in SiteKeys().
void SupplySite(const deck::Schema& schema, const std::string& text, const std::string& path,
                deck::Deck& user);

// A small file that jobs share, read with POSIX calls up to a limit, through no symbolic link.

struct SmallFile {
  bool exists = false;
  std::string fault;        // why an existing file cannot be used; empty: `text` is its content
  bool unreadable = false;  // a call failed, perhaps only for the moment
  std::string text;
};

// Reads at most `most_bytes` bytes. Sets `fault` for a longer file, a symbolic link or a folder.
SmallFile ReadSmallFile(const std::string& path, std::size_t most_bytes);

}  // namespace trireme::app
