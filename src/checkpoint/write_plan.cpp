// Cutting the blocks of all ranks into segments, and checking that they make up the file.
#include "write_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>
#include <sstream>

#include "trireme/base/error.hpp"
#include "trireme/checkpoint/writer.hpp"

namespace trireme::checkpoint {

namespace {

void CheckBlocks(const std::string& file, const std::vector<tensor::StateBlock>& blocks) {
  std::set<std::string> names;
  for (const tensor::StateBlock& block : blocks) {
    const std::string where = fmt::format("{}: tensor {}", file, block.name);
    const std::int64_t count = tensor::ElementCount(block.shape);
    if (block.name.empty() || block.name == "__metadata__") {
      throw RunError(where + ": safetensors does not allow this name");
    }
    if (!names.insert(block.name).second) throw RunError(where + ": registered twice");
    if (block.begin < 0 || block.begin > block.end || block.end > count) {
      throw RunError(fmt::format("{}: elements {} to {} registered of {}", where, block.begin,
                                 block.end, count));
    }
    if (block.data == nullptr && block.begin < block.end) throw RunError(where + ": has no data");
    if (block.replica < 0 || block.replica >= block.replicas) {
      throw RunError(
          fmt::format("{}: registered as replica {} of {}", where, block.replica, block.replicas));
    }
  }
}

// One line a tensor: what all ranks must agree on.
std::string Listing(const std::vector<tensor::StateBlock>& blocks) {
  std::string text;
  for (const tensor::StateBlock& block : blocks) {
    text += fmt::format("{} {} {}\n", block.name, ShapeText(block.shape), NameOf(block.dtype));
  }
  return text;
}

void CheckSameListing(const std::string& file, const std::string& own, const std::string& root) {
  if (own == root) return;
  std::istringstream own_lines(own), root_lines(root);
  std::string own_line, root_line;
  do {
    if (!std::getline(own_lines, own_line)) own_line = "nothing";
    if (!std::getline(root_lines, root_line)) root_line = "nothing";
  } while (own_line == root_line);
  throw RunError(fmt::format("{}: ranks register different tensors: \"{}\" where rank 0 has \"{}\"",
                             file, own_line, root_line));
}

// A segment as its rank announces it to the others.
struct Claim {
  std::int64_t offset = 0, length = 0;  // bytes of the file
  std::int64_t rank = 0;
};

// A segment of this rank before its place among all is known.
struct Candidate {
  Claim claim;
  OwnSegment own;
};

// Segments of one block that this rank writes. Copies take turns, starting with another one for
// each tensor, so that many small tensors spread as well. Segments lie at the same places of the
// tensor whatever the block: copies that are cut into blocks at other places agree.
void AddSegments(const tensor::StateBlock& block, std::size_t index, std::int64_t tensor_offset,
                 std::vector<Candidate>& segments) {
  const auto size = static_cast<std::int64_t>(SizeOf(block.dtype));
  const std::int64_t step = kSegmentBytes / size;  // elements
  for (std::int64_t first = block.begin; first < block.end;) {
    const std::int64_t segment = first / step;
    const std::int64_t last = std::min((segment + 1) * step, block.end);
    if ((static_cast<std::int64_t>(index) + segment) % block.replicas == block.replica) {
      segments.push_back({{tensor_offset + first * size, (last - first) * size, 0},
                          {.segment = 0, .block = index, .first = first, .last = last}});
    }
    first = last;
  }
}

std::string Pack(const std::vector<Candidate>& segments, int rank) {
  std::string text;
  for (const Candidate& segment : segments) {
    Claim claim = segment.claim;
    claim.rank = rank;
    text.append(reinterpret_cast<const char*>(&claim), sizeof claim);
  }
  return text;
}

std::vector<Claim> Unpack(const std::vector<std::string>& texts) {
  std::vector<Claim> claims;
  for (const std::string& text : texts) {
    const std::size_t at = claims.size();
    claims.resize(at + text.size() / sizeof(Claim));
    std::memcpy(claims.data() + at, text.data(), text.size());
  }
  std::stable_sort(claims.begin(), claims.end(),
                   [](const Claim& a, const Claim& b) { return a.offset < b.offset; });
  return claims;
}

// Puts the claims of all ranks into the plan, and finds the places of this rank's own.
void PutInOrder(const std::vector<Claim>& claims, const std::vector<Candidate>& own, int rank,
                WritePlan& plan) {
  plan.sums.bytes = plan.layout.bytes;
  std::size_t next = 0;  // own ones are in the order of their offsets, too
  for (std::size_t i = 0; i < claims.size(); ++i) {
    plan.sums.segments.push_back({claims[i].offset, claims[i].length, 0});
    plan.holders.push_back(static_cast<int>(claims[i].rank));
    if (claims[i].rank != rank) continue;
    plan.own.push_back(own[next++].own);
    plan.own.back().segment = i;
  }
}

// Throws unless the segments cover the file exactly once.
void CheckCover(const WritePlan& plan) {
  const auto complain = [&](std::int64_t from, std::int64_t to, const char* what) {
    for (const Entry& entry : plan.layout.entries) {
      if (from < entry.offset || from >= entry.offset + entry.bytes) continue;
      const auto size = static_cast<std::int64_t>(SizeOf(entry.dtype));
      const std::int64_t end = std::min(to, entry.offset + entry.bytes);
      throw RunError(fmt::format("{}: tensor {}: elements {} to {} of {} are held {}", plan.file,
                                 entry.name, (from - entry.offset) / size,
                                 (end - entry.offset) / size, entry.bytes / size, what));
    }
    throw RunError(fmt::format("{}: bytes {} to {} are held {}", plan.file, from, to, what));
  };
  std::int64_t at = 0;
  for (const Segment& segment : plan.sums.segments) {
    if (segment.offset > at) complain(at, segment.offset, "by no rank");
    if (segment.offset < at) {
      complain(segment.offset, std::min(at, segment.offset + segment.length),
               "by several ranks that are not numbered as replicas");
    }
    at = segment.offset + segment.length;
  }
  if (at < plan.layout.bytes) complain(at, plan.layout.bytes, "by no rank");
}

}  // namespace

std::int64_t CopyBytes(const std::vector<tensor::StateBlock>& blocks) {
  std::vector<Candidate> segments;
  for (std::size_t i = 0; i < blocks.size(); ++i) AddSegments(blocks[i], i, 0, segments);
  std::int64_t bytes = 0;
  for (const Candidate& segment : segments) bytes += segment.claim.length;
  return bytes;
}

const OwnSegment& OwnOf(const WritePlan& plan, std::size_t segment) {
  return *std::lower_bound(
      plan.own.begin(), plan.own.end(), segment,
      [](const OwnSegment& each, std::size_t other) { return each.segment < other; });
}

WritePlan MakeWritePlan(const comm::Communicator& world, const std::string& file,
                        const std::vector<tensor::StateBlock>& blocks) {
  WritePlan plan;
  plan.file = file;
  std::string listing;
  world.Together([&] {
    CheckBlocks(file, blocks);
    plan.layout = BuildLayout(blocks);
    listing = Listing(blocks);
  });
  const std::string root_listing = world.Broadcast(listing);
  std::vector<Candidate> own;
  std::string claims;
  world.Together([&] {
    CheckSameListing(file, listing, root_listing);
    if (world.IsRoot()) own.push_back({{0, std::ssize(plan.layout.header), 0}, {}});
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      AddSegments(blocks[i], i, plan.layout.entries[i].offset, own);
    }
    claims = Pack(own, world.Rank());
  });
  const std::vector<std::string> all_claims = world.Gather(claims);
  world.Together([&] {
    PutInOrder(Unpack(all_claims), own, world.Rank(), plan);
    CheckCover(plan);
  });
  return plan;
}

}  // namespace trireme::checkpoint
