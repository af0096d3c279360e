// config.json of a Hugging Face model folder: translated into keys of [model], and back.
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
  std::int64_t shard_bytes = 5'000'000'000;  // maximum of an exported file; transformers' default
};

void Declare(deck::Schema& schema);  // [hf]

Options Read(const deck::Deck& deck);

// The model families. kMarian is only written, never read.
enum class Family { kGpt2, kLlama, kMistral, kQwen2, kQwen3, kMarian };
const char* NameOf(Family family);  // config.json's model_type

inline constexpr const char* kConfigFile = "config.json";

// A parsed config.json.
struct Config {
  Family family = Family::kLlama;
  nlohmann::json model;              // keys of [model] without "model.", and their values
  std::vector<std::string> unknown;  // keys that config.cpp does not know; kept unchanged
};

// Serial. The text of config.json in `folder`. Throws InputError if the folder or file does not
// exist.
std::string ReadConfigText(const std::string& folder);

// Throws InputError "path: key: ..." if a key asks for what the model cannot compute, is missing,
// or has a wrong type.
Config ParseConfig(const std::string& text, const std::string& path);

// The family that computes the same function as the model. If there is none, throws an InputError
// with the deck's line of the key of [model] that no family supports.
Family FamilyOf(const model::Options& options, const deck::Deck& deck);
// The config.json of the model in `family`. dtype: "float32", "bfloat16" or "float16". eos: id of
// the token that ends a text; -1: unknown.
nlohmann::json MakeConfig(Family family, const model::Options& options, const std::string& dtype,
                          std::int64_t eos);

}  // namespace trireme::hf
