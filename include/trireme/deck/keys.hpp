// Binds keys of the deck to the fields that hold their values. Each part of the program names its
// keys in one function, which serves both to declare and to read them:
//
//   void Bind(deck::Keys keys, Options& o) {
//     keys.Section("data", "The token file.")
//         .Integer("data.batch", o.batch, deck::AtLeast(1), "windows", "Windows per step.")
//         .Choice("data.staging", o.staging, kStagings, "Where tokens are kept.");
//   }
//   void Declare(deck::Schema& schema) { deck::Declare(schema, Bind); }
//   Options Read(const deck::Deck& deck) { return deck::Read(deck, Bind); }
//
// A key's default is what its field holds when the key is declared.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "trireme/deck/deck.hpp"

namespace trireme::deck {

// The names of an enum's values, in the enum's order.
template <std::size_t N>
using Names = std::array<const char*, N>;

// A key's unit. scale: its size in the unit of the field, as in {"GB/s", 1e9} for a field in
// bytes/s.
struct Unit {
  Unit(const char* text, double factor = 1) : name(text), scale(factor) {}
  std::string name;
  double scale = 1;
};

// Each function takes a key's name, the field for its value, and properties as in struct Key. Keys
// made from a schema declare the key, and throw as Schema::Add does. Keys made from a deck set the
// field to the deck's value.
class Keys {
 public:
  explicit Keys(Schema& schema) : schema_(&schema) {}
  explicit Keys(const Deck& deck) : deck_(&deck) {}

  Keys& Section(const std::string& name, const std::string& help);  // Schema::Section
  Keys& Exclusive(const std::vector<std::string>& names);           // Schema::Exclusive
  Keys& Integer(const std::string& name, std::int64_t& field, Range range, const std::string& unit,
                const std::string& help);
  Keys& Real(const std::string& name, double& field, Range range, const Unit& unit,
             const std::string& help);
  Keys& Text(const std::string& name, std::string& field, const std::string& help);
  Keys& Path(const std::string& name, std::string& field, const std::string& help);
  Keys& Choice(const std::string& name, std::string& field, const std::vector<std::string>& choices,
               const std::string& help);
  Keys& Switch(const std::string& name, bool& field, const std::string& help);

  // For other integer types. Throws std::logic_error if the range has numbers that the field cannot
  // hold.
  template <std::integral Number>
  Keys& Integer(const std::string& name, Number& field, Range range, const std::string& unit,
                const std::string& help) {
    using Limits = std::numeric_limits<Number>;
    if (std::max(range.minimum, -0x1p63) < static_cast<double>(Limits::min()) ||
        std::min(range.maximum, 0x1p63) > static_cast<double>(Limits::max())) {
      throw std::logic_error("the range of deck key " + name + " exceeds its field");
    }
    auto value = static_cast<std::int64_t>(field);
    Integer(name, value, range, unit, help);
    field = static_cast<Number>(value);
    return *this;
  }
  // For an enum: names has its values in their order. For a bool: the second name means true.
  template <typename Value, std::size_t N>
  Keys& Choice(const std::string& name, Value& field, const Names<N>& names,
               const std::string& help) {
    auto value = static_cast<std::size_t>(field);
    std::string text = names.at(value);
    Choice(name, text, {names.begin(), names.end()}, help);
    for (value = 0; text != names.at(value);) ++value;  // the schema accepts no other text
    field = static_cast<Value>(value);
    return *this;
  }

 private:
  Keys& Add(const Key& key);

  Schema* schema_ = nullptr;    // null while keys are read
  const Deck* deck_ = nullptr;  // null while keys are declared
};

// Declares the keys that `bind` names; the fields of `defaults` are their defaults.
template <typename Options>
void Declare(Schema& schema, void (*bind)(Keys, Options&), Options defaults = {}) {
  bind(Keys(schema), defaults);
}

// Reads the keys that `bind` names from the deck; other fields stay as `Options` initialises them.
template <typename Options>
Options Read(const Deck& deck, void (*bind)(Keys, Options&)) {
  Options options;
  bind(Keys(deck), options);
  return options;
}

}  // namespace trireme::deck
