// Data of a local checkpoint on its way to a file.
#include "local_data.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "trireme/base/descriptor.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/posix_file.hpp"

namespace trireme::checkpoint {

namespace {

// Bytes [first, last) of a piece.
void FillFrom(const State& state, const kernels::StateBlock& block, std::int64_t first,
              std::int64_t last, std::byte* to) {
  if (!state.read) {
    std::memcpy(to, static_cast<const std::byte*>(block.data) + first,
                static_cast<std::size_t>(last - first));
    return;
  }
  const auto size = static_cast<std::int64_t>(SizeOf(block.dtype));
  state.read(block, block.begin + first / size, block.begin + last / size, to);
}

}  // namespace

void FillData(const State& state, const LocalShares& shares,
              const std::vector<std::int64_t>& places, std::int64_t begin,
              std::span<std::byte> to) {
  const std::int64_t end = begin + std::ssize(to);
  std::int64_t done = begin;
  const auto zeros_until = [&](std::int64_t place) {
    std::memset(to.data() + (done - begin), 0, static_cast<std::size_t>(place - done));
  };
  const auto after = std::upper_bound(places.begin(), places.end() - 1, begin);
  auto i = static_cast<std::size_t>(after - places.begin());
  if (i > 0) --i;
  for (; i < shares.stored.size() && places[i] < end; ++i) {
    const std::size_t piece = shares.stored[i];
    const std::int64_t first = std::max(begin, places[i]);
    const std::int64_t last = std::min(end, places[i] + shares.needs[piece].bytes);
    if (first >= last) continue;
    zeros_until(first);
    FillFrom(state, *shares.blocks[piece], first - places[i], last - places[i],
             to.data() + (first - begin));
    done = last;
  }
  zeros_until(end);
}

void LocalDraft::Name(const std::string& folder, const LocalName& name) {
  path = folder + "/" + FileName(name);
  file.reset();
}

void LocalDraft::Open(std::int64_t bytes) {
  ::unlink(Temporary().c_str());
  bool held = true;
  const int error = Reserve(Temporary(), bytes, held);
  if (error != 0) {
    throw RunError(
        fmt::format("{}: {} cannot be reserved: {}", path, Mebibytes(bytes), ErrorText(error)));
  }
  file.emplace(Temporary(), PositionedFile::Access::kWrite, ExitCode::kFailed);
}

void LocalDraft::Publish() {
  file->Close();
  Rename(Temporary(), path);
}

void LocalDraft::Remove() const {
  if (path.empty()) return;
  ::unlink(Temporary().c_str());
  ::unlink(path.c_str());
}

}  // namespace trireme::checkpoint
