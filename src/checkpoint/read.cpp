// Reading a checkpoint: run.json, and the tensors that this rank holds.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
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

// The header's bytes, checked against its checksum. Local: rank 0 does it for all.
std::string ReadHeader(ParallelFile& file, const FileSums& sums) {
  const std::int64_t size = file.Size();
  if (size != sums.bytes) {
    throw InputError(fmt::format("{}: {} bytes expected, {} found: {}", file.Path(), sums.bytes,
                                 size, size < sums.bytes ? "it is truncated" : "it has grown"));
  }
  std::string header(kLengthBytes, '\0');
  file.ReadAt(0, header.data(), kLengthBytes);
  header.resize(static_cast<std::size_t>(HeaderBytes(header.data(), size, file.Path())));
  file.ReadAt(0, header.data(), static_cast<std::int64_t>(header.size()));
  // Checked before it is parsed: damage is then called damage, not bad JSON.
  const Segment& first = sums.segments.front();
  if (first.length == static_cast<std::int64_t>(header.size())) {
    CheckSegment(first, header.data(), file.Path(), {}, ExitCode::kBadInput);
  }
  return header;
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

// Reads elements of type From into the block's memory of type To, in bounded pieces.
template <typename From, typename To>
void ReadConverted(ParallelFile& file, const tensor::StateBlock& block, std::int64_t offset) {
  constexpr std::int64_t kPiece = kSegmentBytes / static_cast<std::int64_t>(sizeof(From));
  std::vector<From> buffer(static_cast<std::size_t>(std::min(kPiece, block.end - block.begin)));
  To* out = static_cast<To*>(block.data);
  for (std::int64_t first = block.begin; first < block.end; first += kPiece) {
    const std::int64_t count = std::min(kPiece, block.end - first);
    const std::int64_t at = offset + first * static_cast<std::int64_t>(sizeof(From));
    file.ReadAt(at, buffer.data(), count * static_cast<std::int64_t>(sizeof(From)));
    for (std::int64_t i = 0; i < count; ++i) {
      const From value = buffer[static_cast<std::size_t>(i)];
      out[first - block.begin + i] = static_cast<To>(value);
      if (std::isfinite(value) && !std::isfinite(out[first - block.begin + i])) {
        throw InputError(
            fmt::format("{}: tensor {}: element {} at offset {} is {}, beyond fp32's range",
                        file.Path(), block.name, first + i,
                        at + i * static_cast<std::int64_t>(sizeof(From)), value),
            "continue this run with run.precision = fp64");
      }
    }
  }
}

void ReadBlock(ParallelFile& file, const tensor::StateBlock& block, const Entry& entry) {
  if (block.begin == block.end) return;
  const auto size = static_cast<std::int64_t>(SizeOf(entry.dtype));
  if (block.dtype == entry.dtype) {
    file.ReadAt(entry.offset + block.begin * size, block.data, (block.end - block.begin) * size);
  } else if (entry.dtype == Dtype::kFloat64) {
    ReadConverted<double, float>(file, block, entry.offset);
  } else {
    ReadConverted<float, double>(file, block, entry.offset);
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
  std::string header;
  world.Together([&] {
    if (world.IsRoot()) header = ReadHeader(input, sums);
  });
  header = world.Broadcast(header);
  Layout layout;
  std::vector<Entry> entries;
  world.Together([&] {
    layout = ParseLayout(header, sums.bytes, path);
    entries = Match(layout, blocks, path);
  });
  VerifyTogether(world, input, sums, layout.entries);
  world.Together([&] {
    for (std::size_t i = 0; i < blocks.size(); ++i) ReadBlock(input, blocks[i], entries[i]);
  });
}

}  // namespace trireme::checkpoint
