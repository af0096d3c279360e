// The keys of [hf].
#include "trireme/hf/config.hpp"

#include "trireme/deck/keys.hpp"

namespace trireme::hf {

namespace {
constexpr deck::Names<4> kStorages = {"source", "fp32", "bf16", "fp16"};

void Bind(deck::Keys keys, Options& o) {
  keys.Section("hf", "Model folders of Hugging Face (job.task = import, export).")
      .Path("hf.path", o.path,
            "Folder that import reads, with config.json and safetensors files, and that export "
            "writes; an existing one is never written to.")
      .Choice("hf.dtype", o.dtype, kStorages,
              "Type of exported weights. source: as imported, tensor by tensor; fp32 for a model "
              "that was not imported.")
      .Integer("hf.shard_bytes", o.shard_bytes, deck::AtLeast(1), "bytes",
               "Exported weights are cut into files of at most this size, or of one tensor. An "
               "imported model keeps its cut.");
}

}  // namespace

void Declare(deck::Schema& schema) { deck::Declare(schema, Bind); }

Options Read(const deck::Deck& deck) { return deck::Read(deck, Bind); }

}  // namespace trireme::hf
