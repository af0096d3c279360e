// Reads a checkpoint: run.json, and the tensors that this rank holds.
#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <optional>
#include <system_error>
#include <vector>

#include "exchange.hpp"
#include "folder.hpp"
#include "safetensors.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/tensor_file.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/deck/json_text.hpp"

namespace trireme::checkpoint {

namespace {

// An error in the file's bytes, not in what the caller asked for.
class Damage : public Error {
 public:
  explicit Damage(const Error& error) : Error(ExitCode::kBadInput, error.what()) {}
};

enum Fault : std::int64_t { kOther, kDamaged, kVanished };

// world.Together, but throws VanishedError if a rank that threw finds `checkpoint` gone, else
// DamagedError if any rank threw a Damage.
template <typename Body>
void TogetherReading(const comm::Communicator& world, const std::string& checkpoint,
                     const Body& body) {
  std::int64_t fault = kOther;
  try {
    world.Together([&] {
      try {
        body();
      } catch (const Damage&) {
        fault = Vanished(checkpoint) ? kVanished : kDamaged;
        throw;
      } catch (const Error&) {
        if (Vanished(checkpoint)) fault = kVanished;
        throw;
      }
    });
  } catch (const Error& error) {  // on all ranks
    fault = world.Max(fault);
    if (fault == kVanished) throw VanishedError(error.Code(), error.what());
    if (fault == kDamaged) throw DamagedError(error.Code(), error.what());
    throw;
  }
}

template <typename Body>
void AsDamage(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    throw Damage(error);
  }
}

// The bytes of a safetensors file's header, with its length in front.
std::string HeaderOf(const PositionedFile& file, std::int64_t size) {
  std::string header(kLengthBytes, '\0');
  file.Read(header.data(), kLengthBytes, 0);
  header.resize(static_cast<std::size_t>(HeaderBytes(header.data(), size, file.Path())));
  file.Read(header.data(), std::ssize(header), 0);
  return header;
}

// Serial. The same, checked against their hash.
std::string ReadHeader(const std::string& path, const FileSums& sums) {
  const PositionedFile file(path);
  std::string header;
  AsDamage([&] {
    if (const std::int64_t size = file.Size(); size != sums.bytes) {
      throw InputError(fmt::format("{}: {} bytes expected, {} found: {}", path, sums.bytes, size,
                                   size < sums.bytes ? "it is truncated" : "it has grown"));
    }
    header = HeaderOf(file, sums.bytes);
    // Checked before it is parsed, so that damage is reported as damage, not as bad JSON.
    const Segment& first = sums.segments.front();
    if (first.length != std::ssize(header)) {
      throw InputError(fmt::format("{}: the header has {} bytes, but {} says {}", path,
                                   header.size(), kChecksumsFile, first.length));
    }
    CheckSegment(first, header.data(), path, {}, ExitCode::kBadInput);
  });
  return header;
}

// What the optimizer's file has of averaged weights, by the parameters' names.
std::vector<StoredTensor> Averages(std::vector<StoredTensor> entries) {
  std::erase_if(entries,
                [](const StoredTensor& entry) { return !entry.name.starts_with(kAveragePrefix); });
  for (StoredTensor& entry : entries) entry.name.erase(0, std::string_view(kAveragePrefix).size());
  return entries;
}

// The name of the file that has what ReadTensors calls `file`.
std::string FileOf(const std::string& file) {
  return (file == kAverage ? "optimizer" : file) + ".safetensors";
}

// The file's entry for each block, in the blocks' order. Throws an InputError with the differences.
std::vector<StoredTensor> Match(const std::vector<StoredTensor>& entries,
                                const std::vector<kernels::StateBlock>& blocks,
                                const std::string& path) {
  std::map<std::string, const StoredTensor*> unused;
  for (const StoredTensor& entry : entries) unused[entry.name] = &entry;
  std::vector<StoredTensor> matched;
  std::vector<std::string> problems;
  for (const kernels::StateBlock& block : blocks) {
    const auto found = unused.find(block.name);
    if (found == unused.end()) {
      problems.push_back(
          fmt::format("tensor {}: {} expected, nothing found", block.name, ShapeText(block.shape)));
      continue;
    }
    if (found->second->shape != block.shape) {
      problems.push_back(fmt::format("tensor {}: shape {} expected, {} found", block.name,
                                     ShapeText(block.shape), ShapeText(found->second->shape)));
    }
    matched.push_back(*found->second);
    unused.erase(found);
  }
  for (const auto& [name, entry] : unused) {
    if (name.starts_with(kAveragePrefix)) continue;
    problems.push_back(fmt::format("tensor {}: nothing expected, {} {} found", deck::Shown(name),
                                   entry->dtype, ShapeText(entry->shape)));
  }
  if (problems.empty()) return matched;
  throw InputError(
      ListProblems(fmt::format("{}: does not fit this run's model or optimizer", path), problems),
      "the deck's [model] and [optimizer] must be those that wrote the checkpoint");
}

// Converts a whole block from the file's type From into its memory, of type To.
template <typename From, typename To>
void Convert(const kernels::StateBlock& block, const StoredTensor& entry, const void* bytes,
             const std::string& path) {
  const From* in = static_cast<const From*>(bytes);
  To* out = static_cast<To*>(block.data);
  for (std::int64_t i = 0; i < block.end - block.begin; ++i) {
    out[i] = static_cast<To>(in[i]);
    if (std::isfinite(in[i]) && !std::isfinite(out[i])) {
      const std::int64_t element = block.begin + i;
      throw InputError(
          fmt::format("{}: tensor {}: element {} at offset {} is {}, beyond fp32's range", path,
                      block.name, element,
                      entry.offset + element * static_cast<std::int64_t>(sizeof(From)), in[i]),
          "continue this run with run.precision = fp64");
    }
  }
}

// Memory that a file's bytes go to: the blocks themselves, or buffers if the type differs.
class Destination {
 public:
  Destination(const std::vector<kernels::StateBlock>& blocks,
              const std::vector<StoredTensor>& entries)
      : blocks_(blocks), entries_(entries), buffers_(blocks.size()) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const kernels::StateBlock& block = blocks[i];
      const Dtype type = TypeOf(entries[i]);
      const std::int64_t bytes = BytesOf(type, block.end - block.begin);
      if (bytes == 0) continue;
      char* data = static_cast<char*>(block.data);
      if (type != block.dtype) {
        buffers_[i].resize(static_cast<std::size_t>(bytes));
        data = buffers_[i].data();
      }
      targets_.push_back({entries[i].offset + BytesOf(type, block.begin), bytes, data});
      memory_.push_back(
          {0, BytesOf(block.dtype, block.end - block.begin), static_cast<char*>(block.data)});
    }
    std::ranges::sort(targets_, {}, &Target::offset);
  }

  const std::vector<Target>& Targets() const { return targets_; }
  const std::vector<Target>& Memory() const { return memory_; }  // the blocks' own
  void ConvertAll(const std::string& path) const {
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      if (buffers_[i].empty()) continue;
      if (blocks_[i].dtype == Dtype::kFloat32) {
        Convert<double, float>(blocks_[i], entries_[i], buffers_[i].data(), path);
      } else {
        Convert<float, double>(blocks_[i], entries_[i], buffers_[i].data(), path);
      }
    }
  }

 private:
  const std::vector<kernels::StateBlock>& blocks_;
  const std::vector<StoredTensor>& entries_;
  std::vector<std::vector<char>> buffers_;  // [blocks]
  std::vector<Target> targets_, memory_;
};

// Facts about a file, read by rank 0; of averages, only their part of the file is shared.
struct FileFacts {
  std::int64_t bytes = 0;      // of the file; on all ranks
  std::string header;          // on all ranks
  std::vector<Segment> share;  // segments that this rank reads, without the header
};
FileFacts SharedFacts(const comm::Communicator& world, const std::string& checkpoint,
                      const std::string& file) {
  const std::string name = FileOf(file);
  FileFacts facts;
  std::vector<Segment> all;
  TogetherReading(world, checkpoint, [&] {
    if (!world.IsRoot()) return;
    FileSums sums;
    AsDamage([&] { sums = ReadSums(checkpoint, name); });
    facts.header = ReadHeader(checkpoint + "/" + name, sums);
    facts.bytes = sums.bytes;
    all.assign(sums.segments.begin() + 1, sums.segments.end());
    if (file != kAverage) return;
    const std::vector<StoredTensor> wanted =
        Averages(ParseLayout(facts.header, facts.bytes, checkpoint + "/" + name).entries);
    std::erase_if(all, [&](const Segment& segment) {
      return wanted.empty() || segment.offset + segment.length <= wanted.front().offset ||
             segment.offset >= wanted.back().offset + wanted.back().bytes;
    });
  });
  world.Broadcast(&facts.bytes, sizeof facts.bytes);
  facts.header = world.Broadcast(facts.header);
  facts.share = ShareSegments(world, all);
  return facts;
}

}  // namespace

bool Vanished(const std::string& checkpoint) {
  std::error_code error;
  const auto type = std::filesystem::status(checkpoint, error).type();
  return type == std::filesystem::file_type::not_found;
}

nlohmann::json ReadRun(const std::string& checkpoint) {
  const std::string path = checkpoint + "/" + kRunFile;
  const std::string text = ReadText(path, kMostRunBytes);
  const Checksums sums = ReadChecksums(checkpoint);
  const auto found = sums.find(kRunFile);
  if (found == sums.end() || found->second.bytes != std::ssize(text)) {
    throw InputError(
        fmt::format("{}: its {} bytes are not what {} says", path, text.size(), kChecksumsFile),
        "take another checkpoint of the run");
  }
  for (const Segment& segment : found->second.segments) {
    CheckSegment(segment, text.data() + segment.offset, path, {}, ExitCode::kBadInput);
  }
  return deck::ParseJson(text, path, kMostRunBytes);
}

nlohmann::json ReadRun(const comm::Communicator& world, const std::string& checkpoint) {
  std::string text;
  TogetherReading(world, checkpoint, [&] {
    if (world.IsRoot()) text = ReadRun(checkpoint).dump();
  });
  return nlohmann::json::parse(world.Broadcast(text));
}

void ReadTensors(const comm::Communicator& world, const std::string& checkpoint,
                 const std::string& file, const std::vector<kernels::StateBlock>& blocks,
                 const std::function<void()>& between) {
  const std::string path = checkpoint + "/" + FileOf(file);
  const FileFacts facts = SharedFacts(world, checkpoint, file);
  Layout layout;
  std::vector<StoredTensor> entries;
  std::optional<Destination> destination;
  world.Together([&] {
    layout = ParseLayout(facts.header, facts.bytes, path);
    entries = Match(file == kAverage ? Averages(layout.entries) : layout.entries, blocks, path);
    destination.emplace(blocks, entries);
  });
  std::optional<PositionedFile> opened;
  const ReadSegment read = [&](const Segment& segment, char* to) {
    if (!opened) opened.emplace(path);
    AsDamage([&] {
      opened->Read(to, segment.length, segment.offset);
      CheckSegment(segment, to, path, layout.entries, ExitCode::kBadInput);
    });
  };
  Exchange exchange(world, facts.share, destination->Targets(), read);
  for (int round = 0; round < exchange.Rounds(); ++round) {
    if (between) between();
    exchange.Run(round);
    TogetherReading(world, checkpoint, [&] { exchange.Check(); });
  }
  world.Together([&] {
    if (exchange.Receives()) destination->ConvertAll(path);
  });
  exchange.PassOn(destination->Memory());
}

bool ReadWeights(const comm::Communicator& world, const std::string& checkpoint,
                 const std::vector<kernels::StateBlock>& blocks,
                 const std::function<void()>& between) {
  bool averages = false;
  TogetherReading(world, checkpoint, [&] {
    if (world.IsRoot()) AsDamage([&] { averages = HasAverages(checkpoint); });
  });
  averages = world.Max(std::int64_t{averages}) == 1;
  ReadTensors(world, checkpoint, averages ? kAverage : "model", blocks, between);
  return averages;
}

bool HasAverages(const std::string& checkpoint) {
  std::error_code error;  // without the optimizer's file, the model's alone is enough
  return std::filesystem::exists(checkpoint + "/" + FileOf(kAverage), error) &&
         !TensorReader(checkpoint, kAverage).Tensors().empty();
}

// Tensor files: the header of any file, and parts of a checkpoint's, checked against its hashes.

TensorFile InspectTensorFile(const std::string& path) {
  RefuseForeignFile(path);
  const PositionedFile file(path);
  const std::int64_t size = file.Size();
  if (size < kLengthBytes) {
    throw InputError(fmt::format("{}: a safetensors file has at least {} bytes, this one {}", path,
                                 kLengthBytes, size));
  }
  return ParseTensorFile(HeaderOf(file, size), size, path);
}

struct TensorReader::State {
  explicit State(const std::string& path) : file(path) {}

  // Reads a segment into `to` and checks it.
  void Take(const Segment& segment, void* to) const {
    file.Read(to, segment.length, segment.offset);
    CheckSegment(segment, to, file.Path(), {}, ExitCode::kBadInput);
  }

  PositionedFile file;
  FileSums sums;
  std::vector<StoredTensor> tensors;
};

TensorReader::TensorReader(const std::string& checkpoint, const std::string& file)
    : state_(std::make_unique<State>(checkpoint + "/" + FileOf(file))) {
  state_->sums = ReadSums(checkpoint, FileOf(file));
  const std::string& path = state_->file.Path();
  if (const std::int64_t size = state_->file.Size(); size != state_->sums.bytes) {
    throw InputError(fmt::format("{}: {} bytes expected, {} found", path, state_->sums.bytes, size),
                     "take another checkpoint of the run");
  }
  std::string header(static_cast<std::size_t>(state_->sums.segments.front().length), '\0');
  state_->Take(state_->sums.segments.front(), header.data());
  state_->tensors = ParseLayout(header, state_->sums.bytes, path).entries;
  if (file == kAverage) state_->tensors = Averages(std::move(state_->tensors));
}

TensorReader::~TensorReader() = default;

const std::vector<StoredTensor>& TensorReader::Tensors() const { return state_->tensors; }

void TensorReader::Read(std::int64_t offset, std::int64_t bytes, void* to, Kept& kept) const {
  const std::vector<Segment>& segments = state_->sums.segments;
  char* out = static_cast<char*>(to);
  const std::int64_t end = offset + bytes;
  auto at = std::ranges::upper_bound(segments, offset, {}, &Segment::offset) - 1;
  for (; offset < end; ++at) {
    const std::int64_t stop = std::min(end, at->offset + at->length);
    if (offset == at->offset && stop == at->offset + at->length) {
      state_->Take(*at, out);
    } else {
      if (kept.offset != at->offset) {
        kept.offset = -1;
        kept.bytes.resize(static_cast<std::size_t>(at->length));
        state_->Take(*at, kept.bytes.data());
        kept.offset = at->offset;
      }
      std::memcpy(out, kept.bytes.data() + (offset - at->offset),
                  static_cast<std::size_t>(stop - offset));
    }
    out += stop - offset;
    offset = stop;
  }
}

}  // namespace trireme::checkpoint
