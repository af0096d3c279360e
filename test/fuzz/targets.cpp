// Fuzz targets: texts and headers that parsers read. token_file.cpp has the one of HDF5.
#include <cstring>

#include "../unit/deck/example_schema.hpp"
#include "fuzz.hpp"
#include "safetensors.hpp"
#include "tensor_map.hpp"
#include "trireme/app/run_record.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/deck/json_text.hpp"
#include "trireme/hf/config.hpp"

namespace trireme::fuzz {

// checksums.json. Accepted sums, written again, read as the same.

namespace {

void TryChecksums(const std::string& text) {
  const auto sums = checkpoint::ParseChecksums(text, "checksums.json");
  const auto again =
      ReadOwn([&] { return checkpoint::ParseChecksums(checkpoint::ChecksumsText(sums), "again"); });
  Require(checkpoint::ChecksumsText(sums) == checkpoint::ChecksumsText(again), "other sums");
  for (const auto& [name, file] : sums) {
    std::int64_t at = 0;
    for (const checkpoint::Segment& segment : file.segments) {
      Require(segment.offset == at && segment.length > 0, "a hole in " + name);
      at += segment.length;
    }
    Require(at == file.bytes, "segments do not end with " + name);
  }
}

}  // namespace

int FuzzChecksums(const std::uint8_t* data, std::size_t size) {
  Accepted([&] { TryChecksums(Text(data, size)); });
  return 0;
}

// config.json of a model folder as an import reads it: parsed, its model given to a
// deck, its tensors named; and written again as an export does, which must mean the same model.

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

void TryConfig(const std::string& text) {
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

int FuzzConfig(const std::uint8_t* data, std::size_t size) {
  Accepted([&] { TryConfig(Text(data, size)); });
  return 0;
}

// a deck and the command line's overrides, each after a zero byte. An accepted deck
// prints as one that parses back to the same values.

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

void TryDeck(const std::string& text, const std::vector<std::string>& overrides) {
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

int FuzzDeck(const std::uint8_t* data, std::size_t size) {
  std::vector<std::string> parts(1);
  for (const char c : Text(data, size)) {
    if (c == '\0') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  const std::vector<std::string> overrides(parts.begin() + 1, parts.end());
  Accepted([&] { TryDeck(parts.front(), overrides); });
  return 0;
}

// run.json as a job reads it: parsed, broadcast as text, read by type, its model given
// to a deck, and held against what a continued run would write.

namespace {

constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;  // more than any input here

nlohmann::json Now(const model::Options& options) {
  return {{"seed", 1},
          {"batch", 16},
          {"precision", "fp32"},
          {"model", app::ModelJson(options)},
          {"optimizer", {{"beta1", "0.9"}, {"learning_rate", "1e-3"}}},
          {"schedule", {{"epochs", "1"}, {"stop_at", "10"}}}};
}

void TryRunRecord(const std::string& text) {
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

int FuzzRunRecord(const std::uint8_t* data, std::size_t size) {
  Accepted([&] { TryRunRecord(Text(data, size)); });
  return 0;
}

// the start of a safetensors file after 8 bytes with the length of its data. An
// accepted header, written again by ours, reads as the same tensors.

namespace {

void RequireSameTensors(const checkpoint::Layout& layout, const checkpoint::Layout& again) {
  Require(layout.entries.size() == again.entries.size(), "another number of tensors");
  for (std::size_t i = 0; i < layout.entries.size(); ++i) {
    const checkpoint::StoredTensor &a = layout.entries[i], &b = again.entries[i];
    Require(a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.bytes == b.bytes,
            "another tensor " + std::to_string(i));
  }
}

// As a checkpoint's reader does it: the length, then no more than that.
void TrySafetensors(const std::string& file, std::int64_t file_bytes) {
  const std::int64_t bytes = checkpoint::HeaderBytes(file.data(), file_bytes, "a.safetensors");
  Require(bytes <= file_bytes, "a header longer than the file");
  const std::string header = file.substr(0, static_cast<std::size_t>(bytes));
  if (std::ssize(header) < bytes) return;  // a reader has the whole header, or fails before
  // Every file of a checkpoint is one of the format.
  const auto any = checkpoint::ParseTensorFile(header, file_bytes, "a.safetensors");
  const auto layout = checkpoint::ParseLayout(header, file_bytes, "a.safetensors");
  Require(any.tensors.size() == layout.entries.size(), "another number of tensors");
  std::vector<kernels::StateBlock> blocks(layout.entries.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const checkpoint::StoredTensor& entry = layout.entries[i];
    Require(entry.offset >= bytes && entry.bytes >= 0 && entry.bytes <= file_bytes - entry.offset,
            "a tensor outside the file");
    blocks[i].name = entry.name;
    blocks[i].dtype = checkpoint::TypeOf(entry);
    blocks[i].shape = entry.shape;
  }
  const checkpoint::Layout written = checkpoint::BuildLayout(blocks);
  RequireSameTensors(layout, ReadOwn([&] {
                       return checkpoint::ParseLayout(written.header, written.bytes, "again");
                     }));
}

}  // namespace

int FuzzSafetensors(const std::uint8_t* data, std::size_t size) {
  std::uint64_t tensor_bytes = 0;
  if (size < sizeof tensor_bytes + checkpoint::kLengthBytes) return 0;
  std::memcpy(&tensor_bytes, data, sizeof tensor_bytes);
  const std::string file = Text(data + sizeof tensor_bytes, size - sizeof tensor_bytes);
  // Of a file that exists: its length fits 63 bits, and holds what was read of it.
  const auto file_bytes = static_cast<std::int64_t>(tensor_bytes >> 2) + std::ssize(file);
  Accepted([&] { TrySafetensors(file, file_bytes); });
  return 0;
}

}  // namespace trireme::fuzz
