// A site's deck: defaults that a centre gives to everybody on its machine, weaker than a user's
// deck.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "trireme/deck/deck.hpp"

namespace trireme::app {

// Environment variable that names the file; unset or empty: the site has none.
inline constexpr const char* kSiteDeckVariable = "TRIREME_SITE_DECK";

// Keys that a site may give: they say how jobs use the machine and change no number that a run
// computes.
std::span<const std::string_view> SiteKeys();

// Supplies the values of the site's deck, whose file `path` holds `text`, where the user's deck and
// command line give none; of keys that decide on one thing together, none if the user gives one.
// Throws InputError naming path and line for what Deck::Parse refuses and for other keys than
// SiteKeys(), all in one message.
void SupplySite(const deck::Schema& schema, const std::string& text, const std::string& path,
                deck::Deck& user);

// Small files shared between jobs, through POSIX calls: read within bounds, never through a
// symbolic link.

struct SmallFile {
  bool exists = false;
  std::string fault;        // why an existing one cannot be used; empty: `text` is its content
  bool unreadable = false;  // the fault is a failed call, and may pass
  std::string text;
};

// Reads at most `most_bytes`; a longer file, a symbolic link, a folder and the like have a fault.
SmallFile ReadSmallFile(const std::string& path, std::size_t most_bytes);

}  // namespace trireme::app
