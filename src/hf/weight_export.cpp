// Plans of exported files, and the writing of their tensors.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "elements.hpp"
#include "share_writer.hpp"
#include "tensor_map.hpp"
#include "tensor_names.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/hf/weights.hpp"

namespace trireme::hf {

namespace {

using checkpoint::StoredTensor;

Stored TypeOf(Storage storage) {
  return storage == Storage::kBf16   ? Stored::kBf16
         : storage == Storage::kFp16 ? Stored::kF16
                                     : Stored::kF32;
}

ExportPlan Placed(Listing listing) {
  ExportPlan plan{std::move(listing), {}};
  for (ListedFile& file : plan.listing.files) {
    plan.headers.push_back(checkpoint::PlaceTensors(file.contents));
  }
  return plan;
}

}  // namespace

ExportPlan PlanLike(const Listing& source, Family family, const model::Options& model,
                    const Options& options) {
  const std::vector<MappedTensor> map = MapTensors(family, model);
  const TensorNames names(map, source, family);
  Listing listing;
  listing.indexed = source.indexed;
  listing.parameters = source.parameters;
  for (const ListedFile& file : source.files) {
    ListedFile to{file.name, {}};
    to.contents.metadata = file.contents.metadata;
    for (const StoredTensor& tensor : file.contents.tensors) {
      if (names.Find(tensor.name) == nullptr) continue;  // a buffer
      to.contents.tensors.push_back(tensor);
      if (options.dtype == Storage::kSource) continue;
      to.contents.tensors.back().dtype = SafetensorsName(TypeOf(options.dtype));
    }
    if (!to.contents.tensors.empty()) listing.files.push_back(std::move(to));
  }
  return Placed(std::move(listing));
}

ExportPlan PlanAfresh(Family family, const model::Options& model, const Options& options) {
  const Stored type = TypeOf(options.dtype);
  Listing listing;
  std::int64_t bytes = 0;
  for (const MappedTensor& mapped : MapTensors(family, model)) {
    if (mapped.copy) continue;
    const std::int64_t size = mapped.Elements() * BytesOf(type);
    if (listing.files.empty() || bytes + size > options.shard_bytes) {
      listing.files.push_back({kSingleFile, {{{"format", "pt"}}, {}, 0}});
      bytes = 0;
    }
    bytes += size;
    listing.files.back().contents.tensors.push_back(
        {mapped.name, SafetensorsName(type), mapped.shape, 0, 0});
  }
  listing.indexed = listing.files.size() > 1;
  for (std::size_t i = 0; i < listing.files.size(); ++i) {
    ListedFile& file = listing.files[i];
    std::sort(file.contents.tensors.begin(), file.contents.tensors.end(),
              [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
    if (!listing.indexed) continue;
    file.name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, listing.files.size());
  }
  return Placed(std::move(listing));
}

PassingMemory ExportMemory(const ExportPlan& plan, Family family, const model::Options& model,
                           const checkpoint::TensorReader& reader, int threads) {
  const std::vector<MappedTensor> map = MapTensors(family, model);
  const TensorNames names(map, plan.listing, family);
  const bool wide = std::any_of(reader.Tensors().begin(), reader.Tensors().end(),
                                [](const StoredTensor& tensor) { return tensor.dtype == "F64"; });
  const std::int64_t size = wide ? 8 : 4;
  PassingMemory memory;
  std::int64_t written = 0;  // bytes of an element
  for (const ListedFile& file : plan.listing.files) {
    for (const StoredTensor& tensor : file.contents.tensors) {
      const MappedTensor* const mapped = names.Find(tensor.name);
      if (mapped == nullptr) continue;
      written = std::max(written, checkpoint::ElementBytes(tensor.dtype));
      if (mapped->Whole()) memory.tensor = std::max(memory.tensor, mapped->Elements() * size);
    }
  }
  // A piece as it was read and as it is written, and a segment of which another piece is wanted.
  memory.buffers = threads * (2 * kExportPiece + kExportPiece / size * written);
  return memory;
}

void WriteShare(const ExportPlan& plan, Family family, const model::Options& model,
                const checkpoint::TensorReader& reader, const std::string& folder,
                const Share& share) {
  const std::vector<MappedTensor> map = MapTensors(family, model);
  const TensorNames names(map, plan.listing, family);
  std::int64_t all = 0;
  for (const ListedFile& file : plan.listing.files) {
    for (const StoredTensor& tensor : file.contents.tensors) all += tensor.bytes;
  }
  const Part mine = PartOf(all, share.rank, share.ranks);
  ShareWriter writer(reader, folder, share.threads);
  std::int64_t at = 0;
  for (const ListedFile& file : plan.listing.files) {
    writer.Open(file.name);
    for (const StoredTensor& tensor : file.contents.tensors) {
      const MappedTensor* const mapped = names.Find(tensor.name);
      if (mapped == nullptr || mapped->shape != tensor.shape) {
        throw InputError(fmt::format("{}: not a tensor of the model", tensor.name));
      }
      // Elements that begin in this rank's part of all bytes; a tensor that is rearranged whole.
      const std::int64_t size = checkpoint::ElementBytes(tensor.dtype);
      const auto element = [&](std::int64_t byte) {
        return CeilDivide(std::clamp<std::int64_t>(byte - at, 0, tensor.bytes), size);
      };
      if (!mapped->Whole()) {
        writer.Add(*mapped, tensor, element(mine.begin), element(mine.end));
      } else if (mine.begin <= at && at < mine.end) {
        writer.AddWhole(*mapped, tensor);
      }
      at += tensor.bytes;
    }
  }
  writer.Finish();
}

}  // namespace trireme::hf
