// The [hf] section.
#ifndef TRIREME_HF_OPTIONS_HPP_
#define TRIREME_HF_OPTIONS_HPP_

#include <cstdint>
#include <string>

#include "trireme/deck/deck.hpp"

namespace trireme::hf {

enum class Storage { kSource, kFp32, kBf16, kFp16 };

struct Options {
  std::string path;  // folder to read or to write; empty: none
  Storage dtype = Storage::kSource;
  std::int64_t shard_bytes = 0;  // of an exported file, at most
};

void Declare(deck::Schema& schema);  // [hf]

Options Read(const deck::Deck& deck);

}  // namespace trireme::hf

#endif  // TRIREME_HF_OPTIONS_HPP_
