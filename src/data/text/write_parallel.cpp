// The datasets' places in the file come from HDF5, their contents from positioned writes.
#include "write_parallel.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "file_cursor.hpp"
#include "hdf5_writer.hpp"
#include "stored_vocabulary.hpp"
#include "token_file_draft.hpp"
#include "token_layout.hpp"
#include "trireme/base/descriptor.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/joint_work.hpp"

namespace trireme::data {

namespace {

static_assert(std::endian::native == std::endian::little, "ids are stored as they are in memory");

using PerSplit = std::array<std::int64_t, 3>;

// First bytes of the datasets in the file.
struct Places {
  PerSplit tokens{}, documents{}, mask{};
};

// The file's structures, and the space of its datasets.
Places MakeFile(const TokenFileDraft& draft, const tokenizer::Tokenizer& tokenizer,
                const TextFacts& facts, const SplitSizes& sizes) {
  const StoredVocabulary vocabulary(tokenizer);
  const std::int64_t width = WidthOf(tokenizer);
  const hid_t id_type = width == 2 ? H5T_STD_U16LE : H5T_STD_U32LE;

  // HDF5 1.10 cannot close a file that found no space: it is tried before HDF5 begins.
  std::size_t in_all = vocabulary.Bytes() + kHdf5MetadataBytes;
  for (std::size_t s = 0; s < kSplits.size(); ++s) {
    in_all += static_cast<std::size_t>(sizes.tokens.at(s) * (width + (facts.masks ? 1 : 0)) +
                                       sizes.documents.at(s) * 8);
  }
  draft.Reserve(in_all, false);

  Hdf5Writer file(draft.Path());
  file.Attribute("format", kTokenFormat);
  vocabulary.Describe(file, facts.eos, "");
  file.Attribute("source_sha256", facts.source_sha256);
  vocabulary.Plan(file, "");
  Places places;
  for (const Split split : kSplits) {
    const auto s = static_cast<std::size_t>(split);
    const auto tokens = static_cast<std::size_t>(sizes.tokens.at(s));
    const auto plan = [&](const std::string& name, hid_t type, std::size_t count) {
      return file.Plan(fmt::format("/{}/{}", NameOf(split), name), type, type, count, nullptr);
    };
    places.tokens.at(s) = plan("tokens", id_type, tokens);
    places.documents.at(s) =
        plan("documents", H5T_STD_U64LE, static_cast<std::size_t>(sizes.documents.at(s)));
    if (facts.masks) places.mask.at(s) = plan("mask", H5T_STD_U8LE, tokens);
  }
  draft.Reserve(file.Bytes(), true);
  file.WriteAndClose();
  return places;
}

// The cursors of one split within one unit.
struct SplitCursors {
  FileCursor tokens, documents, mask;
  std::uint64_t token;  // next in the split
};

// Copies from the temporary files to the token file.
class PieceWriter {
 public:
  PieceWriter(const std::string& path, const Places& places, std::int64_t width, bool masks,
              Spills& spills, std::function<void()> poll)
      : path_(path),
        file_(path, O_RDWR | O_NOFOLLOW),
        places_(places),
        width_(width),
        masks_(masks),
        spills_(spills),
        poll_(std::move(poll)) {
    if (file_.Valid()) return;
    throw RunError(fmt::format("{}: cannot be opened: {}", path, ErrorText(errno)));
  }

  // `before`: what earlier units hold.
  void Write(const UnitResult& unit, const SplitSizes& before) {
    std::vector<SplitCursors> cursors;
    std::int64_t documents = 0;
    for (std::size_t s = 0; s < kSplits.size(); ++s) {
      const std::int64_t tokens = before.tokens.at(s);
      const auto at = [&](std::int64_t offset) { return FileCursor(path_, file_.Get(), offset); };
      cursors.push_back({at(places_.tokens.at(s) + tokens * width_),
                         at(places_.documents.at(s) + before.documents.at(s) * 8),
                         at(places_.mask.at(s) + tokens), static_cast<std::uint64_t>(tokens)});
      documents += unit.documents.at(s);
    }
    std::int64_t from = unit.tokens_at;
    for (std::int64_t d = unit.documents_at; d < unit.documents_at + documents; ++d) {
      SpilledDocument document;
      spills_.documents.Read(d * static_cast<std::int64_t>(sizeof document), &document,
                             sizeof document);
      SplitCursors& to = cursors.at(document.split);
      const auto count = static_cast<std::int64_t>(document.tokens);
      to.documents.Write(&to.token, sizeof to.token);
      Copy(spills_.tokens, from * width_, count * width_, to.tokens);
      if (masks_) Copy(spills_.mask, from, count, to.mask);
      to.token += document.tokens;
      from += count;
    }
    for (SplitCursors& to : cursors) {
      to.tokens.Flush();
      to.documents.Flush();
      to.mask.Flush();
    }
  }

  void Sync() const {
    if (::fsync(file_.Get()) == 0) return;
    throw RunError(fmt::format("{}: cannot be synced: {}", path_, ErrorText(errno)));
  }

 private:
  void Copy(Spill& from, std::int64_t begin, std::int64_t bytes, FileCursor& to) {
    while (bytes > 0) {
      room_.resize(std::min(kWriteBytes, static_cast<std::size_t>(bytes)));
      since_poll_ += room_.size();
      if (since_poll_ >= kWriteBytes) {
        since_poll_ = 0;
        poll_();
      }
      from.Read(begin, room_.data(), room_.size());
      to.Write(room_.data(), room_.size());
      begin += static_cast<std::int64_t>(room_.size());
      bytes -= static_cast<std::int64_t>(room_.size());
    }
  }

  std::string path_;
  Descriptor file_;
  Places places_;
  std::int64_t width_;
  bool masks_;
  Spills& spills_;
  std::function<void()> poll_;  // about every kWriteBytes
  std::size_t since_poll_ = 0;  // bytes
  std::vector<char> room_;
};

}  // namespace

void WriteInParallel(const comm::Communicator& world, const std::string& path,
                     const tokenizer::Tokenizer& tokenizer, const TextFacts& facts,
                     const EncodedUnits& encoded, const std::function<bool()>& stop) {
  const QuietHdf5 quiet;
  std::optional<TokenFileDraft> draft;  // of root
  Places places;
  world.Together([&] {
    if (!world.IsRoot()) return;
    draft.emplace(path);
    places = MakeFile(*draft, tokenizer, facts, SumOf(encoded.results));
  });
  world.Broadcast(&places, sizeof places);
  const std::string name = world.Broadcast(world.IsRoot() ? draft->Path() : std::string());
  comm::WorkJointly(world, [&](const comm::Poll& poll) {
    const auto ask = [&] {
      if (stop && stop()) throw RunError("stopped by a signal: no token file was written");
      poll();
    };
    ask();
    PieceWriter writer(name, places, WidthOf(tokenizer), facts.masks, encoded.spills, ask);
    std::size_t next = 0;  // of encoded.mine
    SplitSizes before;
    for (std::size_t u = 0; u < encoded.results.size() && next < encoded.mine.size(); ++u) {
      const UnitResult& own = encoded.mine[next];
      if (encoded.results[u].unit == own.unit) {
        writer.Write(own, before);
        ++next;
      }
      const SplitSizes one = SumOf(encoded.results.subspan(u, 1));
      for (std::size_t s = 0; s < kSplits.size(); ++s) {
        before.tokens.at(s) += one.tokens.at(s);
        before.documents.at(s) += one.documents.at(s);
      }
    }
    writer.Sync();
  });
  world.Together([&] {
    if (!world.IsRoot()) return;
    draft->Sync();
    InspectTokenFile(draft->Path());
    draft->Place();
  });
}

}  // namespace trireme::data
