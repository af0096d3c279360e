// Fuzz target: a deck and the command line's overrides, each after a zero byte. An accepted deck
// prints as one that parses back to the same values.
#include "trireme/deck/deck.hpp"

#include "../unit/input/example_schema.hpp"
#include "fuzz.hpp"

namespace trireme::fuzz {
namespace {

const deck::Schema& ExampleSchema() {
  static const deck::Schema schema = deck::ExampleSchema();
  return schema;
}

void ReadEveryKey(const deck::Deck& deck) {
  for (const deck::Key& key : ExampleSchema().Keys()) {
    switch (key.kind) {
      case deck::KeyKind::kInteger:
        deck.Integer(key.name);
        break;
      case deck::KeyKind::kReal:
        deck.Real(key.name);
        break;
      case deck::KeyKind::kSwitch:
        deck.Switch(key.name);
        break;
      case deck::KeyKind::kText:
      case deck::KeyKind::kChoice:
        deck.Text(key.name);
        break;
    }
  }
}

void Try(const std::string& text, const std::vector<std::string>& overrides) {
  const auto deck = deck::Deck::Parse(ExampleSchema(), text, "a.in", overrides);
  ReadEveryKey(deck);
  const auto again = ReadOwn(
      [&] { return deck::Deck::Parse(ExampleSchema(), deck.Resolved(), "resolved.in", {}); });
  for (const auto& [section, help] : ExampleSchema().Sections()) {
    Require(deck.Section(section) == again.Section(section),
            "another [" + section + "] from the resolved deck:\n" + deck.Resolved());
  }
}

}  // namespace
}  // namespace trireme::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trireme::fuzz;
  std::vector<std::string> parts(1);
  for (const char c : Text(data, size)) {
    if (c == '\0') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  const std::vector<std::string> overrides(parts.begin() + 1, parts.end());
  Accepted([&] { Try(parts.front(), overrides); });
  return 0;
}
