// Plans exported files, and writes their tensors.
#include <fmt/format.h>
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "tensor_map.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/in_threads.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/checkpoint/tensor_file.hpp"
#include "trireme/hf/weights.hpp"

namespace trireme::hf {

namespace {

using checkpoint::StoredTensor;

// Bytes that a thread reads and converts at a time: mostly one whole segment of a checkpoint.
constexpr std::int64_t kExportPiece = std::int64_t{4} << 20;

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
      if (names.Find(tensor.name) == nullptr) continue;  // a buffer, without weights
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
  std::int64_t written = 0;  // bytes per element
  for (const ListedFile& file : plan.listing.files) {
    for (const StoredTensor& tensor : file.contents.tensors) {
      const MappedTensor* const mapped = names.Find(tensor.name);
      if (mapped == nullptr) continue;
      written = std::max(written, checkpoint::ElementBytes(tensor.dtype));
      if (mapped->Whole()) memory.tensor = std::max(memory.tensor, mapped->Elements() * size);
    }
  }
  // Buffers of one thread: a piece as read, as written, and a segment kept for a later piece.
  memory.buffers = threads * (2 * kExportPiece + kExportPiece / size * written);
  return memory;
}

namespace {

constexpr std::int64_t kWidest = 8;  // bytes per element

Dtype TypeIn(const StoredTensor& parameter) {
  return parameter.dtype == "F64" ? Dtype::kFloat64 : Dtype::kFloat32;
}

std::int64_t SizeIn(const StoredTensor& parameter) {
  return static_cast<std::int64_t>(SizeOf(TypeIn(parameter)));
}

// Enlarges `memory` to at least `bytes` bytes; returns its start.
char* Room(std::vector<char>& memory, std::int64_t bytes) {
  if (std::ssize(memory) < bytes) memory.resize(static_cast<std::size_t>(bytes));
  return memory.data();
}

// A rank's share of the exported tensors: threads take pieces of parameters, read them from the
// checkpoint, convert and write them.
class ShareWriter {
 public:
  // All arguments must outlive it.
  ShareWriter(const checkpoint::TensorReader& reader, const std::string& folder, int threads)
      : reader_(reader), folder_(folder), scratch_(static_cast<std::size_t>(std::max(1, threads))) {
    for (const StoredTensor& tensor : reader.Tensors()) parameters_[tensor.name] = &tensor;
  }

  // Sets the file of the tensors that are added from now on.
  void Open(const std::string& file) { name_ = file; }
  // Adds elements [first, last) of a tensor that is stored as its parameters are.
  void Add(const MappedTensor& mapped, const StoredTensor& to, std::int64_t first,
           std::int64_t last) {
    if (first >= last) return;
    const std::int64_t columns = mapped.Columns();
    for (const MappedPart& part : mapped.parts) {
      const std::int64_t begin = part.begin * columns;
      const std::int64_t from = std::max(first, begin);
      const std::int64_t until = std::min(last, begin + kernels::ElementCount(part.shape));
      Cut(part, from - begin, until - begin, {.to = &to, .file = File(), .at = from});
    }
  }

  // Loads, rearranges and writes a whole tensor.
  void AddWhole(const MappedTensor& mapped, const StoredTensor& to) {
    for (const MappedPart& part : mapped.parts) {
      Cut(part, 0, kernels::ElementCount(part.shape), {.at = part.begin * mapped.Columns()});
    }
    Room(whole_, mapped.Elements() * SizeIn(Parameter(mapped.parts.front())));
    Run();
    if (mapped.halves) SplitFeatures(mapped);
    WriteLines(mapped, to);
  }

  // Writes the remaining pieces and syncs all files. Throws as WriteShare does.
  void Finish() {
    Run();
    for (auto& [name, file] : files_) {
      file.Sync();
      file.Close();
    }
    files_.clear();
  }

 private:
  // Elements of a parameter to write into tensor `to`; if `to` is null, to load into whole_.
  struct Piece {
    const MappedPart* part = nullptr;
    const StoredTensor* to = nullptr;
    const PositionedFile* file = nullptr;
    std::int64_t at = 0;     // index of the first element in `to` or whole_
    std::int64_t first = 0;  // index of the first element in the parameter
    std::int64_t count = 0;
  };
  // One thread's buffers.
  struct Scratch {
    std::vector<char> piece;  // in the checkpoint's type
    std::vector<char> bytes;  // as written
    checkpoint::TensorReader::Kept kept;
  };

  const StoredTensor& Parameter(const MappedPart& part) const {
    const auto found = parameters_.find(part.name);
    if (found != parameters_.end() && found->second->shape == part.shape) return *found->second;
    throw InputError(
        fmt::format("the checkpoint has no tensor {} of the model's shape", part.name));
  }
  const PositionedFile* File() {
    return &files_
                .try_emplace(name_, folder_ + "/" + name_, PositionedFile::Access::kWrite,
                             ExitCode::kFailed)
                .first->second;
  }

  // Adds pieces for elements [first, last) of a parameter, cut every kExportPiece bytes of it,
  // where most segments of the checkpoint end. piece.at: where `first` goes.
  void Cut(const MappedPart& part, std::int64_t first, std::int64_t last, Piece piece) {
    const std::int64_t step = kExportPiece / SizeIn(Parameter(part));
    piece.part = &part;
    while (first < last) {
      piece.first = first;
      piece.count = std::min(last, (first / step + 1) * step) - first;
      pieces_.push_back(piece);
      piece.at += piece.count;
      first += piece.count;
    }
  }

  void Run() {
    InThreads(
        static_cast<int>(scratch_.size()), std::ssize(pieces_), [&](std::int64_t i, int thread) {
          Work(pieces_[static_cast<std::size_t>(i)], scratch_[static_cast<std::size_t>(thread)]);
        });
    pieces_.clear();
  }

  void Work(const Piece& piece, Scratch& scratch) {
    const StoredTensor& parameter = Parameter(*piece.part);
    if (piece.to == nullptr) {
      return Load(piece, whole_.data() + piece.at * SizeIn(parameter), scratch);
    }
    Load(piece, Room(scratch.piece, piece.count * SizeIn(parameter)), scratch);
    Store(piece, TypeIn(parameter), scratch);
  }

  void Load(const Piece& piece, char* to, Scratch& scratch) const {
    const StoredTensor& parameter = Parameter(*piece.part);
    const std::int64_t size = SizeIn(parameter);
    reader_.Read(parameter.offset + piece.first * size, piece.count * size, to, scratch.kept);
  }
  // Converts and writes the elements in scratch.piece.
  static void Store(const Piece& piece, Dtype type, Scratch& scratch) {
    const StoredTensor& to = *piece.to;
    const Stored stored = StoredOf(to.dtype).value_or(Stored::kF32);
    const std::int64_t size = BytesOf(stored);
    char* const bytes = Room(scratch.bytes, piece.count * size);
    const std::int64_t bad = Narrow(type, scratch.piece.data(), piece.count, stored, bytes);
    if (bad != kAllFinite) {
      throw InputError(fmt::format("tensor {}: element {} is not a finite {} number", to.name,
                                   piece.at + bad, to.dtype),
                       "Choose hf.dtype = fp32 or bf16, whose range is that of fp32.");
    }
    const std::int64_t offset = to.offset + piece.at * size;
    piece.file->Write(bytes, piece.count * size, offset);
    piece.file->StartFlush(piece.count * size, offset);
  }

  // Moves the even features of each row in whole_ before the odd ones.
  void SplitFeatures(const MappedTensor& mapped) {
    const MappedPart& part = mapped.parts.front();
    const auto size = static_cast<std::size_t>(SizeIn(Parameter(part)));
    const auto features = static_cast<std::size_t>(part.shape.back());
    std::vector<char> row(features * size);
    const auto end = static_cast<std::size_t>(mapped.Elements()) * size;
    for (char* at = whole_.data(); at < whole_.data() + end; at += row.size()) {
      for (std::size_t f = 0; f < features; ++f) {
        const std::size_t to = f / 2 + (f % 2 == 0 ? 0 : (features + 1) / 2);
        std::memcpy(row.data() + to * size, at + f * size, size);
      }
      std::memcpy(at, row.data(), row.size());
    }
  }

  // Writes the tensor in whole_ in groups of lines. A line is a row or, of a transposed tensor, a
  // column.
  void WriteLines(const MappedTensor& mapped, const StoredTensor& to) {
    const Dtype type = TypeIn(Parameter(mapped.parts.front()));
    const auto size = static_cast<std::int64_t>(SizeOf(type));
    const std::int64_t length = mapped.transposed ? mapped.Rows() : mapped.Columns();
    const std::int64_t lines = mapped.Elements() / length;
    const std::int64_t step = std::max<std::int64_t>(1, kExportPiece / kWidest / length);
    const PositionedFile* const file = File();
    const auto write = [&](std::int64_t i, int thread) {
      Scratch& scratch = scratch_[static_cast<std::size_t>(thread)];
      const std::int64_t line = i * step, rows = std::min(step, lines - line);
      const std::int64_t first = line * length, count = rows * length;
      char* const piece = Room(scratch.piece, count * size);
      if (mapped.transposed) {
        Transpose(size, {whole_.data() + line * size, lines}, {piece, length}, rows, length);
      } else {
        std::memcpy(piece, whole_.data() + first * size, static_cast<std::size_t>(count * size));
      }
      Store({.to = &to, .file = file, .at = first, .count = count}, type, scratch);
    };
    InThreads(static_cast<int>(scratch_.size()), CeilDivide(lines, step), write);
  }

  const checkpoint::TensorReader& reader_;
  const std::string& folder_;
  std::map<std::string, const StoredTensor*> parameters_;
  std::string name_;                             // name of the open file
  std::map<std::string, PositionedFile> files_;  // the files in which this rank writes
  std::vector<Piece> pieces_;                    // not yet written
  std::vector<Scratch> scratch_;                 // [threads]
  std::vector<char> whole_;                      // a tensor to rearrange, in the checkpoint's type
};

}  // namespace

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
      // This rank writes the elements (or the whole tensors) that begin in its part of all bytes.
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
