// Cuts blocks into segments, and checks that those of all ranks make up the whole file.
#include "worker.hpp"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <sstream>

#include "trireme/base/error.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/flight_recorder.hpp"

namespace trireme::checkpoint {

namespace {

void CheckBlocks(const std::string& file, const std::vector<kernels::StateBlock>& blocks) {
  std::set<std::string> names;
  for (const kernels::StateBlock& block : blocks) {
    const std::string where = fmt::format("{}: tensor {}", file, block.name);
    const std::int64_t count = kernels::ElementCount(block.shape);
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

// One line per tensor: what all ranks must agree on.
std::string Listing(const std::vector<kernels::StateBlock>& blocks) {
  std::string text;
  for (const kernels::StateBlock& block : blocks) {
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

// A segment as a rank announces it to others.
struct Claim {
  std::int64_t offset = 0, length = 0;  // bytes of the file
  std::int64_t rank = 0;                // rank in the group
};

// A segment of this rank whose index in the plan is not known yet.
struct Candidate {
  Claim claim;
  OwnSegment own;
};

// Adds the segments of one block that this rank writes. Replicas take turns, starting with another
// one for each tensor, so that small tensors spread too. Segments begin at fixed places of the
// tensor, so replicas whose blocks are cut differently agree.
void AddSegments(const kernels::StateBlock& block, std::size_t index, std::int64_t tensor_offset,
                 std::vector<Candidate>& segments) {
  const std::int64_t size = BytesOf(block.dtype, 1);
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

// Collective. The claims of all ranks of a group, ordered by offset.
std::vector<Claim> ClaimsOf(const comm::Communicator& group, const std::vector<Candidate>& own) {
  std::vector<Claim> mine;
  for (const Candidate& segment : own) {
    mine.push_back({segment.claim.offset, segment.claim.length, group.Rank()});
  }
  std::vector<Claim> claims = group.Size() == 1 ? mine : comm::GatherAll(group, mine);
  std::ranges::stable_sort(claims, {}, &Claim::offset);
  return claims;
}

// Puts the group's claims into the plan, and finds the indices of this rank's own segments.
void PutInOrder(const std::vector<Claim>& claims, const std::vector<Candidate>& own, int rank,
                WritePlan& plan) {
  std::size_t next = 0;  // in `own`, which is ordered by offset too
  for (std::size_t i = 0; i < claims.size(); ++i) {
    plan.segments.push_back({claims[i].offset, claims[i].length, 0});
    plan.holders.push_back(static_cast<int>(claims[i].rank));
    if (claims[i].rank != rank) continue;
    plan.own.push_back(own[next++].own);
    plan.own.back().segment = i;
  }
}

// Collective. True if the segments of all ranks cover `bytes` exactly once (wrong with probability
// 2^-64). Non-empty segments do so if and only if they form one chain: their starts and the file's
// end are the same set as their ends and the file's start. Sums of hashes modulo 2^64 compare the
// two sets in 8 bytes, whatever the number of ranks.
bool CoversOnce(const comm::Communicator& world, const std::vector<Candidate>& own,
                std::int64_t bytes) {
  const auto hash = [](std::int64_t place) { return Hash(&place, sizeof place); };
  std::uint64_t mine = 0, all = 0;
  for (const Candidate& segment : own) {
    mine += hash(segment.claim.offset) - hash(segment.claim.offset + segment.claim.length);
  }
  const comm::Recorded recorded(world, comm::Call::kAllReduce, sizeof mine);
  MPI_Allreduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, world.Handle());
  return all == hash(0) - hash(bytes);
}

// Throws an error that names the first gap or overlap in claims that do not cover the file once.
[[noreturn]] void ThrowUncovered(const WritePlan& plan, const std::vector<Claim>& claims) {
  const auto complain = [&](std::int64_t from, std::int64_t to, const char* what) {
    for (const StoredTensor& entry : plan.layout.entries) {
      if (from < entry.offset || from >= entry.offset + entry.bytes) continue;
      const std::int64_t size = ElementBytes(entry.dtype);
      const std::int64_t end = std::min(to, entry.offset + entry.bytes);
      throw RunError(fmt::format("{}: tensor {}: elements {} to {} of {} are held {}", plan.file,
                                 entry.name, (from - entry.offset) / size,
                                 (end - entry.offset) / size, entry.bytes / size, what));
    }
    throw RunError(fmt::format("{}: bytes {} to {} are held {}", plan.file, from, to, what));
  };
  std::int64_t at = 0;
  for (const Claim& segment : claims) {
    if (segment.offset > at) complain(at, segment.offset, "by no rank");
    if (segment.offset < at) {
      complain(segment.offset, std::min(at, segment.offset + segment.length),
               "by several ranks that are not numbered as replicas");
    }
    at = segment.offset + segment.length;
  }
  if (at < plan.layout.bytes) complain(at, plan.layout.bytes, "by no rank");
  throw RunError(plan.file + ": segments end beyond the file", "This is a bug in Trireme.");
}

}  // namespace

std::int64_t CopyBytes(const std::vector<kernels::StateBlock>& blocks) {
  std::vector<Candidate> segments;
  for (std::size_t i = 0; i < blocks.size(); ++i) AddSegments(blocks[i], i, 0, segments);
  std::int64_t bytes = 0;
  for (const Candidate& segment : segments) bytes += segment.claim.length;
  return bytes;
}

const OwnSegment& OwnOf(const WritePlan& plan, std::size_t segment) {
  return *std::ranges::lower_bound(plan.own, segment, {}, &OwnSegment::segment);
}

WritePlan MakeWritePlan(const comm::Communicator& world, const comm::Communicator& group,
                        const std::string& file, const std::vector<kernels::StateBlock>& blocks) {
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
  world.Together([&] {
    CheckSameListing(file, listing, root_listing);
    if (world.IsRoot()) own.push_back({{0, std::ssize(plan.layout.header), 0}, {}});
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      AddSegments(blocks[i], i, plan.layout.entries[i].offset, own);
    }
  });
  if (!CoversOnce(world, own, plan.layout.bytes)) {
    const std::vector<Claim> claims = ClaimsOf(world, own);
    world.Together([&] { ThrowUncovered(plan, claims); });
  }
  const std::vector<Claim> claims = ClaimsOf(group, own);
  world.Together([&] { PutInOrder(claims, own, group.Rank(), plan); });
  return plan;
}

}  // namespace trireme::checkpoint
