// Reading a checkpoint: run.json, and the tensors that this rank holds.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <vector>

#include "checksums.hpp"
#include "folder.hpp"
#include "parallel_file.hpp"
#include "posix_file.hpp"
#include "safetensors.hpp"
#include "trireme/base/error.hpp"
#include "trireme/checkpoint/checkpoint.hpp"

namespace trireme::checkpoint {

namespace {

constexpr std::size_t kShownProblems = 8;

// Collective. The header's bytes, read by rank 0, checked against their checksum and sent to all.
std::string ReadHeader(const comm::Communicator& world, ParallelFile& file, const FileSums& sums) {
  const auto read = [&](std::string& bytes) {
    std::vector<Target> targets;
    if (world.IsRoot()) {
      targets.push_back({0, static_cast<std::int64_t>(bytes.size()), bytes.data()});
    }
    file.ReadAll(targets);
  };
  world.Together([&] {
    const std::int64_t size = file.Size();
    if (size == sums.bytes) return;
    throw InputError(fmt::format("{}: {} bytes expected, {} found: {}", file.Path(), sums.bytes,
                                 size, size < sums.bytes ? "it is truncated" : "it has grown"));
  });
  std::string header(kLengthBytes, '\0');
  read(header);
  world.Together([&] {
    if (!world.IsRoot()) return;
    header.resize(static_cast<std::size_t>(HeaderBytes(header.data(), sums.bytes, file.Path())));
  });
  read(header);
  world.Together([&] {
    // Checked before it is parsed: damage is then called damage, not bad JSON.
    const Segment& first = sums.segments.front();
    if (world.IsRoot() && first.length == static_cast<std::int64_t>(header.size())) {
      CheckSegment(first, header.data(), file.Path(), {}, ExitCode::kBadInput);
    }
  });
  return world.Broadcast(header);
}

// The file's entry for each block, in the blocks' order. Throws InputError listing every
// difference.
std::vector<Entry> Match(const Layout& layout, const std::vector<tensor::StateBlock>& blocks,
                         const std::string& path) {
  std::map<std::string, const Entry*> unused;
  for (const Entry& entry : layout.entries) unused[entry.name] = &entry;
  std::vector<Entry> matched;
  std::vector<std::string> problems;
  for (const tensor::StateBlock& block : blocks) {
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
    problems.push_back(fmt::format("tensor {}: nothing expected, {} {} found", name,
                                   SafetensorsName(entry->dtype), ShapeText(entry->shape)));
  }
  if (problems.empty()) return matched;
  std::string text = fmt::format("{}: does not fit this run's model or optimizer", path);
  for (std::size_t i = 0; i < std::min(problems.size(), kShownProblems); ++i) {
    text += "\n  " + problems[i];
  }
  if (problems.size() > kShownProblems) {
    text += fmt::format("\n  and {} more differences", problems.size() - kShownProblems);
  }
  throw InputError(text,
                   "the deck's [model] and [optimizer] must be those that wrote the checkpoint");
}

// Elements [first, first + count) of a block, stored in the file as another type.
struct Conversion {
  const tensor::StateBlock* block = nullptr;
  std::int64_t first = 0, count = 0;
  std::int64_t offset = 0;  // in the file
};

// From `buffer`, of type From, into the block's memory, of type To.
template <typename From, typename To>
void Convert(const Conversion& piece, const void* buffer, const std::string& path) {
  const tensor::StateBlock& block = *piece.block;
  const From* in = static_cast<const From*>(buffer);
  To* out = static_cast<To*>(block.data) + (piece.first - block.begin);
  for (std::int64_t i = 0; i < piece.count; ++i) {
    out[i] = static_cast<To>(in[i]);
    if (std::isfinite(in[i]) && !std::isfinite(out[i])) {
      throw InputError(
          fmt::format("{}: tensor {}: element {} at offset {} is {}, beyond fp32's range", path,
                      block.name, piece.first + i,
                      piece.offset + i * static_cast<std::int64_t>(sizeof(From)), in[i]),
          "continue this run with run.precision = fp64");
    }
  }
}

// Collective. Fills this rank's blocks, those of the file's type in place and others by way of a
// buffer, in bounded pieces.
void ReadBlocks(ParallelFile& file, const std::vector<tensor::StateBlock>& blocks,
                const std::vector<Entry>& entries) {
  std::vector<Target> targets;
  std::vector<Conversion> conversions;  // those of the last targets
  std::vector<std::byte> buffer;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto size = static_cast<std::int64_t>(SizeOf(entries[i].dtype));
    const auto place = [&](std::int64_t element) { return entries[i].offset + element * size; };
    const tensor::StateBlock& block = blocks[i];
    if (block.dtype == entries[i].dtype) {
      targets.push_back({place(block.begin), (block.end - block.begin) * size, block.data});
      continue;
    }
    const std::int64_t step = kSegmentBytes / size;
    for (std::int64_t first = block.begin; first < block.end; first += step) {
      const std::int64_t count = std::min(step, block.end - first);
      conversions.push_back({&block, first, count, place(first)});
    }
  }
  const std::size_t in_place = targets.size();
  if (!conversions.empty()) buffer.resize(static_cast<std::size_t>(kSegmentBytes));
  for (const Conversion& piece : conversions) {
    const Dtype stored = piece.block->dtype == Dtype::kFloat32 ? Dtype::kFloat64 : Dtype::kFloat32;
    const auto size = static_cast<std::int64_t>(SizeOf(stored));
    targets.push_back({piece.offset, piece.count * size, buffer.data()});
  }
  file.ReadAll(targets, [&](std::size_t i) {
    if (i < in_place) return;
    const Conversion& piece = conversions[i - in_place];
    if (piece.block->dtype == Dtype::kFloat32) {
      Convert<double, float>(piece, buffer.data(), file.Path());
    } else {
      Convert<float, double>(piece, buffer.data(), file.Path());
    }
  });
}

// Checks the segments that lie wholly in this rank's memory: when the rank that reads for others
// fails, not every MPI tells the others.
void CheckMemory(const std::string& path, const std::vector<tensor::StateBlock>& blocks,
                 const std::vector<Entry>& entries, const FileSums& sums) {
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].dtype != entries[i].dtype) continue;
    const auto size = static_cast<std::int64_t>(SizeOf(entries[i].dtype));
    const std::int64_t begin = entries[i].offset + blocks[i].begin * size;
    const std::int64_t end = entries[i].offset + blocks[i].end * size;
    auto segment = std::lower_bound(
        sums.segments.begin(), sums.segments.end(), begin,
        [](const Segment& each, std::int64_t offset) { return each.offset < offset; });
    for (; segment != sums.segments.end() && segment->offset + segment->length <= end; ++segment) {
      CheckSegment(*segment, static_cast<const char*>(blocks[i].data) + (segment->offset - begin),
                   path, entries, ExitCode::kBadInput);
    }
  }
}

// checksums.json's record of one file, read by rank 0 and sent to all.
FileSums SharedSums(const comm::Communicator& world, const std::string& checkpoint,
                    const std::string& name) {
  std::string text;
  world.Together([&] {
    if (!world.IsRoot()) return;
    const Checksums all = ReadChecksums(checkpoint);
    const auto found = all.find(name);
    if (found == all.end() || found->second.segments.empty()) {
      throw InputError(fmt::format("{}/{}: does not list {}", checkpoint, kChecksumsFile, name));
    }
    text = ChecksumsText({*found});
  });
  text = world.Broadcast(text);
  return ParseChecksums(text, checkpoint + "/" + kChecksumsFile).at(name);
}

}  // namespace

nlohmann::json ReadRun(const comm::Communicator& world, const std::string& checkpoint) {
  const std::string path = checkpoint + "/" + kRunFile;
  std::string text;
  world.Together([&] {
    if (!world.IsRoot()) return;
    text = ReadText(path);
    const Checksums sums = ReadChecksums(checkpoint);
    const auto found = sums.find(kRunFile);
    if (found == sums.end() || found->second.bytes != static_cast<std::int64_t>(text.size())) {
      throw InputError(
          fmt::format("{}: its {} bytes are not what {} says", path, text.size(), kChecksumsFile),
          "take another checkpoint of the run");
    }
    for (const Segment& segment : found->second.segments) {
      CheckSegment(segment, text.data() + segment.offset, path, {}, ExitCode::kBadInput);
    }
  });
  text = world.Broadcast(text);
  nlohmann::json run;
  world.Together([&] {
    try {
      run = nlohmann::json::parse(text);
    } catch (const nlohmann::json::exception& problem) {
      throw InputError(fmt::format("{}: is not valid JSON: {}", path, problem.what()));
    }
  });
  return run;
}

void ReadTensors(const comm::Communicator& world, const std::string& checkpoint,
                 const std::string& file, const std::vector<tensor::StateBlock>& blocks) {
  const std::string name = file + ".safetensors";
  const std::string path = checkpoint + "/" + name;
  const FileSums sums = SharedSums(world, checkpoint, name);
  ParallelFile input(world, path, ParallelFile::Access::kRead, ExitCode::kBadInput);
  const std::string header = ReadHeader(world, input, sums);
  Layout layout;
  std::vector<Entry> entries;
  world.Together([&] {
    layout = ParseLayout(header, sums.bytes, path);
    entries = Match(layout, blocks, path);
  });
  VerifyTogether(world, input, sums, layout.entries);
  ReadBlocks(input, blocks, entries);
  world.Together([&] { CheckMemory(path, blocks, entries, sums); });
}

}  // namespace trireme::checkpoint
