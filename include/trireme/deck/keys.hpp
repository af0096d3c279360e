// Keys of the deck and the fields that hold their values, in one statement each. A room names its
// keys in a function, by which they are declared and read:
//
//   void Bind(deck::Keys keys, Options& o) {
//     keys.Section("data", "The token file.")
//         .Integer("data.batch", o.batch, deck::AtLeast(1), "windows", "Windows per step.")
//         .Choice("data.staging", o.staging, kStagings, "Where tokens are kept.");
//   }
//   void Declare(deck::Schema& schema) { deck::Declare(schema, Bind); }
//   Options Read(const deck::Deck& deck) { return deck::Read(deck, Bind); }
//
// The default of a key is what its field holds when the key is declared.
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

// Names of all values of an enum, in the enum's order.
template <std::size_t N>
using Names = std::array<const char*, N>;

// Unit of a key, and how many of the field's units it is: {"GB/s", 1e9} for a field in bytes/s.
struct Unit {
  Unit(const char* text, double factor = 1) : name(text), scale(factor) {}
  std::string name;
  double scale = 1;
};

// Each function takes a key's name, its field, and what Schema's function of the same name takes.
// Made from a schema, Keys declares the key; throws as Schema does. Made from a deck, it sets the
// field to the deck's value.
class Keys {
 public:
  explicit Keys(Schema& schema) : schema_(&schema) {}
  explicit Keys(const Deck& deck) : deck_(&deck) {}

  Keys& Section(const std::string& name, const std::string& help) {
    if (schema_ != nullptr) schema_->Section(name, help);
    return *this;
  }
  Keys& Exclusive(const std::vector<std::string>& names) {
    if (schema_ != nullptr) schema_->Exclusive(names);
    return *this;
  }

  // Throws std::logic_error for a range with numbers that the field's type cannot hold.
  template <std::integral Number>
  Keys& Integer(const std::string& name, Number& field, Range range, const std::string& unit,
                const std::string& help) {
    if (schema_ == nullptr) {
      field = static_cast<Number>(deck_->Integer(name));
      return *this;
    }
    using Limits = std::numeric_limits<Number>;
    const double least = std::max(range.minimum, -0x1p63), most = std::min(range.maximum, 0x1p63);
    if (least < static_cast<double>(Limits::min()) || most > static_cast<double>(Limits::max())) {
      throw std::logic_error("the range of deck key " + name + " exceeds its field");
    }
    schema_->Integer(name, static_cast<std::int64_t>(field), range, unit, help);
    return *this;
  }
  // An integer field takes the value rounded towards zero.
  template <typename Number>
  Keys& Real(const std::string& name, Number& field, Range range, const Unit& unit,
             const std::string& help) {
    if (schema_ != nullptr) {
      schema_->Real(name, static_cast<double>(field) / unit.scale, range, unit.name, help);
    } else {
      field = static_cast<Number>(deck_->Real(name) * unit.scale);
    }
    return *this;
  }
  Keys& Text(const std::string& name, std::string& field, const std::string& help) {
    if (schema_ != nullptr) schema_->Text(name, field, help);
    if (deck_ != nullptr) field = deck_->Text(name);
    return *this;
  }
  Keys& Path(const std::string& name, std::string& field, const std::string& help) {
    if (schema_ != nullptr) schema_->Path(name, field, help);
    if (deck_ != nullptr) field = deck_->Text(name);
    return *this;
  }
  Keys& Switch(const std::string& name, bool& field, const std::string& help) {
    if (schema_ != nullptr) schema_->Switch(name, field, help);
    if (deck_ != nullptr) field = deck_->Switch(name);
    return *this;
  }
  // The order of the names is that of the enum's values; of a bool, the second name means true.
  template <typename Value, std::size_t N>
  Keys& Choice(const std::string& name, Value& field, const Names<N>& names,
               const std::string& help) {
    if (schema_ != nullptr) {
      schema_->Choice(name, names.at(static_cast<std::size_t>(field)), {names.begin(), names.end()},
                      help);
      return *this;
    }
    const std::string& text = deck_->Text(name);  // one of the names: the schema lets no other in
    std::size_t value = 0;
    while (text != names.at(value)) ++value;
    field = static_cast<Value>(value);
    return *this;
  }
  Keys& Choice(const std::string& name, std::string& field, const std::vector<std::string>& choices,
               const std::string& help) {
    if (schema_ != nullptr) schema_->Choice(name, field, choices, help);
    if (deck_ != nullptr) field = deck_->Text(name);
    return *this;
  }

 private:
  Schema* schema_ = nullptr;    // null: the keys are read
  const Deck* deck_ = nullptr;  // null: they are declared
};

// Declares the keys that `bind` names; their defaults are the fields of `defaults`.
template <typename Options>
void Declare(Schema& schema, void (*bind)(Keys, Options&), Options defaults = {}) {
  bind(Keys(schema), defaults);
}

// The deck's values of the keys that `bind` names; other fields are as `Options` initialises them.
template <typename Options>
Options Read(const Deck& deck, void (*bind)(Keys, Options&)) {
  Options options;
  bind(Keys(deck), options);
  return options;
}

}  // namespace trireme::deck
