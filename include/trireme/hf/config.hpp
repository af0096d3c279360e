// config.json of a model folder: to the keys of [model], and back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/json.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/model/options.hpp"

namespace trireme::hf {

// The [hf] section.

enum class Storage { kSource, kFp32, kBf16, kFp16 };

struct Options {
  std::string path;  // folder to read or to write; empty: none
  Storage dtype = Storage::kSource;
  std::int64_t shard_bytes = 5'000'000'000;  // of an exported file, at most; as transformers cuts
};

void Declare(deck::Schema& schema);  // [hf]

Options Read(const deck::Deck& deck);

// kMarian is written alone.
enum class Family { kGpt2, kLlama, kMistral, kQwen2, kQwen3, kMarian };
const char* NameOf(Family family);  // config.json's model_type

inline constexpr const char* kConfigFile = "config.json";

// A configuration, understood.
struct Config {
  Family family = Family::kLlama;
  nlohmann::json model;              // keys of [model], without "model.", and their values
  std::vector<std::string> unknown;  // keys of no list here, kept as they are
};

// Serial. The text of config.json in `folder`. Throws InputError if there is no such folder or
// file.
std::string ReadConfigText(const std::string& folder);

// Throws InputError "path: key: ..." for a key with another meaning than the model can have, and
// for one that is missing or has a wrong type.
Config ParseConfig(const std::string& text, const std::string& path);

// The family that computes what the model does. Throws InputError with the deck's line of the key
// of [model] for which none does.
Family FamilyOf(const model::Options& options, const deck::Deck& deck);
// Configuration of the model in a family. dtype: "float32", "bfloat16", "float16". eos: id of the
// token at the end of a text; -1: not known.
nlohmann::json MakeConfig(Family family, const model::Options& options, const std::string& dtype,
                          std::int64_t eos);

}  // namespace trireme::hf
