// Plans of exported files, and the writing of their tensors.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "elements.hpp"
#include "tensor_map.hpp"
#include "tensor_names.hpp"
#include "transpose.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/base/positioned_file.hpp"
#include "trireme/hf/weights.hpp"

namespace trireme::hf {

namespace {

using checkpoint::StoredTensor;

constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;  // written at once
constexpr std::int64_t kWidest = 8;                          // bytes of an element

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

// Writes tensors of one plan from one checkpoint.
class ShareWriter {
 public:
  ShareWriter(checkpoint::TensorReader& reader, const std::string& folder)
      : reader_(reader), folder_(folder) {
    for (const StoredTensor& tensor : reader.Tensors()) parameters_[tensor.name] = &tensor;
  }

  void Open(const std::string& file) {
    Close();
    file_.emplace(folder_ + "/" + file, PositionedFile::Access::kWrite, ExitCode::kFailed);
  }
  void Close() {
    if (file_) file_->Sync();
    file_.reset();
  }
  // Elements [first, last) of a tensor that is stored as its parameters are.
  void Write(const MappedTensor& mapped, const StoredTensor& to, std::int64_t first,
             std::int64_t last);
  void WriteTransposed(const MappedTensor& mapped, const StoredTensor& to);

 private:
  const StoredTensor& Parameter(const MappedPart& part) const;
  void Load(const MappedPart& part, std::int64_t first, std::int64_t count, char* to);
  void Store(const StoredTensor& to, Dtype type, std::int64_t first, std::int64_t count);

  checkpoint::TensorReader& reader_;
  const std::string& folder_;
  std::map<std::string, const StoredTensor*> parameters_;
  std::optional<PositionedFile> file_;
  std::vector<char> piece_ = std::vector<char>(kPieceBytes);  // in the checkpoint's type
  std::vector<char> bytes_ = std::vector<char>(kPieceBytes);  // as written
  std::vector<char> whole_;
};

Dtype TypeIn(const StoredTensor& parameter) {
  return parameter.dtype == "F64" ? Dtype::kFloat64 : Dtype::kFloat32;
}

const StoredTensor& ShareWriter::Parameter(const MappedPart& part) const {
  const auto found = parameters_.find(part.name);
  if (found != parameters_.end() && found->second->shape == part.shape) return *found->second;
  throw InputError(fmt::format("the checkpoint has no tensor {} of the model's shape", part.name));
}

void ShareWriter::Load(const MappedPart& part, std::int64_t first, std::int64_t count, char* to) {
  const StoredTensor& parameter = Parameter(part);
  const auto size = static_cast<std::int64_t>(SizeOf(TypeIn(parameter)));
  reader_.Read(parameter.offset + first * size, count * size, to);
}

// Converts and writes what piece_ holds: elements of `to` from `first` on.
void ShareWriter::Store(const StoredTensor& to, Dtype type, std::int64_t first,
                        std::int64_t count) {
  const Stored stored = StoredOf(to.dtype).value_or(Stored::kF32);
  const std::int64_t bad = Narrow(type, piece_.data(), count, stored, bytes_.data());
  if (bad != kAllFinite) {
    throw InputError(
        fmt::format("tensor {}: element {} is no finite {} number", to.name, first + bad, to.dtype),
        "Choose hf.dtype = fp32 or bf16, whose range is that of fp32.");
  }
  const std::int64_t size = BytesOf(stored);
  file_->Write(bytes_.data(), count * size, to.offset + first * size);
}

void ShareWriter::Write(const MappedTensor& mapped, const StoredTensor& to, std::int64_t first,
                        std::int64_t last) {
  const std::int64_t columns = mapped.Columns();
  for (const MappedPart& part : mapped.parts) {
    const Dtype type = TypeIn(Parameter(part));
    const std::int64_t begin = part.begin * columns;
    const std::int64_t end = begin + tensor::ElementCount(part.shape);
    for (std::int64_t at = std::max(first, begin); at < std::min(last, end);) {
      const std::int64_t count = std::min({last, end, at + kPieceBytes / kWidest}) - at;
      Load(part, at - begin, count, piece_.data());
      Store(to, type, at, count);
      at += count;
    }
  }
}

void ShareWriter::WriteTransposed(const MappedTensor& mapped, const StoredTensor& to) {
  const std::int64_t rows = mapped.Rows(), columns = mapped.Columns();
  const Dtype type = TypeIn(Parameter(mapped.parts.front()));
  const auto size = static_cast<std::int64_t>(SizeOf(type));
  whole_.resize(static_cast<std::size_t>(mapped.Elements() * size));
  for (const MappedPart& part : mapped.parts) {
    Load(part, 0, tensor::ElementCount(part.shape), whole_.data() + part.begin * columns * size);
  }
  const std::int64_t step = std::max<std::int64_t>(1, kPieceBytes / kWidest / rows);
  piece_.resize(static_cast<std::size_t>(std::max(kPieceBytes, step * rows * kWidest)));
  bytes_.resize(piece_.size());
  for (std::int64_t column = 0; column < columns; column += step) {
    const std::int64_t count = std::min(step, columns - column);
    Transpose(size, {whole_.data() + column * size, columns}, {piece_.data(), rows}, count, rows);
    Store(to, type, column * rows, count * rows);
  }
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

void WriteShare(const ExportPlan& plan, Family family, const model::Options& model,
                checkpoint::TensorReader& reader, const std::string& folder, int rank, int ranks) {
  const std::vector<MappedTensor> map = MapTensors(family, model);
  const TensorNames names(map, plan.listing, family);
  std::int64_t all = 0;
  for (const ListedFile& file : plan.listing.files) {
    for (const StoredTensor& tensor : file.contents.tensors) all += tensor.bytes;
  }
  const Part mine = PartOf(all, rank, ranks);
  ShareWriter writer(reader, folder);
  std::int64_t at = 0;
  for (const ListedFile& file : plan.listing.files) {
    writer.Open(file.name);
    for (const StoredTensor& tensor : file.contents.tensors) {
      const MappedTensor* const mapped = names.Find(tensor.name);
      if (mapped == nullptr || mapped->shape != tensor.shape) {
        throw InputError(fmt::format("{}: not a tensor of the model", tensor.name));
      }
      // Elements that begin in this rank's part of all bytes; a transposed tensor whole.
      const std::int64_t size = checkpoint::ElementBytes(tensor.dtype);
      const auto element = [&](std::int64_t byte) {
        return CeilDivide(std::clamp<std::int64_t>(byte - at, 0, tensor.bytes), size);
      };
      if (!mapped->transposed) {
        writer.Write(*mapped, tensor, element(mine.begin), element(mine.end));
      } else if (mine.begin <= at && at < mine.end) {
        writer.WriteTransposed(*mapped, tensor);
      }
      at += tensor.bytes;
    }
  }
  writer.Close();
}

}  // namespace trireme::hf
