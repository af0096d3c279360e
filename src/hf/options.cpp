// The keys of [hf].
#include "trireme/hf/config.hpp"

#include "trireme/deck/deck.hpp"

namespace trireme::hf {

namespace {
constexpr deck::Names<4> kStorages = {"source", "fp32", "bf16", "fp16"};
constexpr std::int64_t kShardBytes = 5'000'000'000;  // as transformers cuts
}  // namespace

void Declare(deck::Schema& schema) {
  schema.Section("hf", "Model folders of Hugging Face (job.task = import, export).")
      .Path("hf.path", "",
            "Folder that import reads, with config.json and safetensors files, and that export "
            "writes; an existing one is never written to.")
      .Choice("hf.dtype", "source", deck::Choices(kStorages),
              "Type of exported weights. source: as imported, tensor by tensor; fp32 for a model "
              "that was not imported.")
      .Integer("hf.shard_bytes", kShardBytes, deck::AtLeast(1), "bytes",
               "Exported weights are cut into files of at most this size, or of one tensor. An "
               "imported model keeps its cut.");
}

Options Read(const deck::Deck& deck) {
  return {.path = deck.Text("hf.path"),
          .dtype = deck::Pick<Storage>(deck.Text("hf.dtype"), kStorages),
          .shard_bytes = deck.Integer("hf.shard_bytes")};
}

}  // namespace trireme::hf
