// ShareWriter: pieces of parameters, drawn by threads.
#include "share_writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "transpose.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/in_threads.hpp"
#include "trireme/base/partition.hpp"

namespace trireme::hf {

namespace {

using checkpoint::StoredTensor;

constexpr std::int64_t kWidest = 8;  // bytes of an element

Dtype TypeIn(const StoredTensor& parameter) {
  return parameter.dtype == "F64" ? Dtype::kFloat64 : Dtype::kFloat32;
}

std::int64_t SizeIn(const StoredTensor& parameter) {
  return static_cast<std::int64_t>(SizeOf(TypeIn(parameter)));
}

// At least so many bytes.
char* Room(std::vector<char>& memory, std::int64_t bytes) {
  if (std::ssize(memory) < bytes) memory.resize(static_cast<std::size_t>(bytes));
  return memory.data();
}

}  // namespace

ShareWriter::ShareWriter(const checkpoint::TensorReader& reader, const std::string& folder,
                         int threads)
    : reader_(reader), folder_(folder), scratch_(static_cast<std::size_t>(std::max(1, threads))) {
  for (const StoredTensor& tensor : reader.Tensors()) parameters_[tensor.name] = &tensor;
}

void ShareWriter::Open(const std::string& file) { name_ = file; }

const PositionedFile* ShareWriter::File() {
  const auto found = files_.find(name_);
  if (found != files_.end()) return &found->second;
  PositionedFile file(folder_ + "/" + name_, PositionedFile::Access::kWrite, ExitCode::kFailed);
  return &files_.emplace(name_, std::move(file)).first->second;
}

const StoredTensor& ShareWriter::Parameter(const MappedPart& part) const {
  const auto found = parameters_.find(part.name);
  if (found != parameters_.end() && found->second->shape == part.shape) return *found->second;
  throw InputError(fmt::format("the checkpoint has no tensor {} of the model's shape", part.name));
}

// Elements [first, last) of a parameter, cut where segments of the checkpoint end; piece.at is the
// place of `first`.
void ShareWriter::Cut(const MappedPart& part, std::int64_t first, std::int64_t last, Piece piece) {
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

void ShareWriter::Add(const MappedTensor& mapped, const StoredTensor& to, std::int64_t first,
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

void ShareWriter::AddWhole(const MappedTensor& mapped, const StoredTensor& to) {
  for (const MappedPart& part : mapped.parts) {
    Cut(part, 0, kernels::ElementCount(part.shape), {.at = part.begin * mapped.Columns()});
  }
  Room(whole_, mapped.Elements() * SizeIn(Parameter(mapped.parts.front())));
  Run();
  if (mapped.halves) SplitFeatures(mapped);
  if (mapped.transposed) {
    WriteColumns(mapped, to);
  } else {
    WriteRows(mapped, to);
  }
}

void ShareWriter::Finish() {
  Run();
  for (auto& [name, file] : files_) {
    file.Sync();
    file.Close();
  }
  files_.clear();
}

void ShareWriter::Run() {
  InThreads(
      static_cast<int>(scratch_.size()), std::ssize(pieces_), [&](std::int64_t i, int thread) {
        Work(pieces_[static_cast<std::size_t>(i)], scratch_[static_cast<std::size_t>(thread)]);
      });
  pieces_.clear();
}

void ShareWriter::Work(const Piece& piece, Scratch& scratch) {
  const StoredTensor& parameter = Parameter(*piece.part);
  if (piece.to == nullptr) {
    Load(piece, whole_.data() + piece.at * SizeIn(parameter), scratch);
    return;
  }
  Load(piece, Room(scratch.piece, piece.count * SizeIn(parameter)), scratch);
  Store(piece, TypeIn(parameter), scratch);
}

void ShareWriter::Load(const Piece& piece, char* to, Scratch& scratch) const {
  const StoredTensor& parameter = Parameter(*piece.part);
  const std::int64_t size = SizeIn(parameter);
  reader_.Read(parameter.offset + piece.first * size, piece.count * size, to, scratch.kept);
}

// Converts and writes what scratch.piece holds.
void ShareWriter::Store(const Piece& piece, Dtype type, Scratch& scratch) {
  const StoredTensor& to = *piece.to;
  const Stored stored = StoredOf(to.dtype).value_or(Stored::kF32);
  const std::int64_t size = BytesOf(stored);
  char* const bytes = Room(scratch.bytes, piece.count * size);
  const std::int64_t bad = Narrow(type, scratch.piece.data(), piece.count, stored, bytes);
  if (bad != kAllFinite) {
    throw InputError(fmt::format("tensor {}: element {} is no finite {} number", to.name,
                                 piece.at + bad, to.dtype),
                     "Choose hf.dtype = fp32 or bf16, whose range is that of fp32.");
  }
  const std::int64_t offset = to.offset + piece.at * size;
  piece.file->Write(bytes, piece.count * size, offset);
  piece.file->StartFlush(piece.count * size, offset);
}

// Puts the even features of each row of what whole_ holds before the odd ones.
void ShareWriter::SplitFeatures(const MappedTensor& mapped) {
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

// Writes what whole_ holds as it lies.
void ShareWriter::WriteRows(const MappedTensor& mapped, const StoredTensor& to) {
  const Dtype type = TypeIn(Parameter(mapped.parts.front()));
  const auto size = static_cast<std::int64_t>(SizeOf(type));
  const std::int64_t step = kExportPiece / kWidest, all = mapped.Elements();
  const PositionedFile* const file = File();
  InThreads(
      static_cast<int>(scratch_.size()), CeilDivide(all, step), [&](std::int64_t i, int thread) {
        Scratch& scratch = scratch_[static_cast<std::size_t>(thread)];
        const std::int64_t first = i * step, count = std::min(step, all - first);
        char* const piece = Room(scratch.piece, count * size);
        std::memcpy(piece, whole_.data() + first * size, static_cast<std::size_t>(count * size));
        Store({.to = &to, .file = file, .at = first, .count = count}, type, scratch);
      });
}

// Transposes what whole_ holds and writes it, some of its columns at once.
void ShareWriter::WriteColumns(const MappedTensor& mapped, const StoredTensor& to) {
  const std::int64_t rows = mapped.Rows(), columns = mapped.Columns();
  const Dtype type = TypeIn(Parameter(mapped.parts.front()));
  const auto size = static_cast<std::int64_t>(SizeOf(type));
  const std::int64_t step = std::max<std::int64_t>(1, kExportPiece / kWidest / rows);
  const PositionedFile* const file = File();
  InThreads(static_cast<int>(scratch_.size()), CeilDivide(columns, step),
            [&](std::int64_t i, int thread) {
              Scratch& scratch = scratch_[static_cast<std::size_t>(thread)];
              const std::int64_t column = i * step, count = std::min(step, columns - column);
              char* const piece = Room(scratch.piece, count * rows * size);
              Transpose(size, {whole_.data() + column * size, columns}, {piece, rows}, count, rows);
              Store({.to = &to, .file = file, .at = column * rows, .count = count * rows}, type,
                    scratch);
            });
}

}  // namespace trireme::hf
