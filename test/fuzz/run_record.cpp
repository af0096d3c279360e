// Fuzz target: run.json as a job reads it: parsed, broadcast as text, read by type, its model given
// to a deck, and held against what a continued run would write.
#include "trireme/app/run_record.hpp"

#include "fuzz.hpp"
#include "trireme/deck/json_text.hpp"

namespace trireme::fuzz {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;  // more than any input here

const deck::Schema& ModelSchema() {
  static const deck::Schema schema = [] {
    deck::Schema made;
    model::Declare(made);
    return made;
  }();
  return schema;
}

nlohmann::json Now(const model::Options& options) {
  return {{"seed", 1},
          {"batch", 16},
          {"precision", "fp32"},
          {"model", app::ModelJson(options)},
          {"optimizer", {{"beta1", "0.9"}, {"learning_rate", "1e-3"}}},
          {"schedule", {{"epochs", "1"}, {"stop_at", "10"}}}};
}

void Try(const std::string& text) {
  const auto read = deck::ParseJson(text, "run.json", kMostBytes);
  const auto received = nlohmann::json::parse(read.dump());
  Require(received == read, "another value after the broadcast");
  const app::RunRecord record = app::ParseRunRecord(received, "run.json");
  deck::Deck deck = deck::Deck::Parse(ModelSchema(), "", "a.in", {});
  model::ResolvePreset(deck);
  app::TakeModel(ModelSchema(), record, false, deck);
  model::Resolve(deck);
  const model::Options options = model::Read(deck);
  for (const std::string& change : app::Changes(record, Now(options))) {
    RequireGoodMessage(InputError(change));
  }
}

}  // namespace
}  // namespace trireme::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  trireme::fuzz::Accepted([&] { trireme::fuzz::Try(trireme::fuzz::Text(data, size)); });
  return 0;
}
