// The keys of [hf].
#include "trireme/hf/config.hpp"

#include "trireme/deck/keys.hpp"

namespace trireme::hf {

namespace {
constexpr deck::Names<4> kStorages = {"source", "fp32", "bf16", "fp16"};

void Bind(deck::Keys keys, Options& o) {
  keys.Section("hf", "Model folders of Hugging Face (job.task = import, export).")
      .Path("hf.path", o.path,
            "Folder that import reads (config.json and safetensors files) or export writes; export "
            "refuses a folder that exists.")
      .Choice("hf.dtype", o.dtype, kStorages,
              "Type of exported weights. source: as they were imported, tensor by tensor, or fp32 "
              "if the model was not imported.")
      .Integer("hf.shard_bytes", o.shard_bytes, deck::AtLeast(1), "bytes",
               "Largest file of exported weights, unless one tensor is larger. An imported model "
               "keeps its division into files.");
}

}  // namespace

void Declare(deck::Schema& schema) { deck::Declare(schema, Bind); }

Options Read(const deck::Deck& deck) { return deck::Read(deck, Bind); }

}  // namespace trireme::hf
