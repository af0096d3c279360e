// Fuzz target: config.json of a model folder as an import reads it: parsed, its model given to a
// deck, its tensors named; and written again as an export does, which must mean the same model.
#include "trireme/hf/config.hpp"

#include "fuzz.hpp"
#include "tensor_map.hpp"
#include "trireme/app/run_record.hpp"

namespace trireme::fuzz {
namespace {

const deck::Schema& ModelSchema() {
  static const deck::Schema schema = [] {
    deck::Schema made;
    model::Declare(made);
    return made;
  }();
  return schema;
}

// Options of a deck that says nothing of the model, as job.task = import takes them.
model::Options OptionsOf(const hf::Config& config) {
  deck::Deck deck = deck::Deck::Parse(ModelSchema(), "", "a.in", {});
  model::ResolvePreset(deck);
  app::TakeModel(ModelSchema(), config.model, "config.json", deck);
  model::Resolve(deck);
  model::Options options = model::Read(deck);
  options.vocabulary = options.asked_vocabulary;
  return options;
}

void Try(const std::string& text) {
  const hf::Config config = hf::ParseConfig(text, "config.json");
  const model::Options options = OptionsOf(config);
  for (const hf::MappedTensor& tensor : hf::MapTensors(config.family, options)) {
    Require(tensor.Elements() == kernels::ElementCount(tensor.shape), "rows and columns: " + text);
  }
  const deck::Deck deck = deck::Deck::Parse(ModelSchema(), "", "a.in", {});
  const std::string written =
      hf::MakeConfig(hf::FamilyOf(options, deck), options, "float32", 1).dump();
  const model::Options again =
      ReadOwn([&] { return OptionsOf(hf::ParseConfig(written, "config.json")); });
  Require(app::ModelJson(again) == app::ModelJson(options), "another model in: " + written);
}

}  // namespace
}  // namespace trireme::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  trireme::fuzz::Accepted([&] { trireme::fuzz::Try(trireme::fuzz::Text(data, size)); });
  return 0;
}
