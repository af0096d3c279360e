// HDF5 allocates the datasets; the ranks write their contents at byte offsets.
#include "write_parallel.hpp"

#include <sys/file.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <algorithm>
#include <bit>
#include <filesystem>
#include <system_error>
#include <utility>

#include "token_layout.hpp"
#include "trireme/data/pairs.hpp"

namespace trireme::data {

namespace {

// Where one split of one unit is written.
struct TextCursors {
  FileCursor tokens, documents;
  std::uint64_t token;  // index in the split of the next token
};
struct SplitCursors {
  std::vector<TextCursors> texts;
  FileCursor mask;
};

std::int64_t DocumentsOf(const UnitResult& unit) {
  return unit.documents[0] + unit.documents[1] + unit.documents[2];
}

// Makes a FileCursor usable as `put` of PieceWriter::Copy.
template <typename Sink>
auto To(Sink& sink) {
  return [&sink](const char* bytes, std::size_t count) { sink.Write(bytes, count); };
}

static_assert(std::endian::native == std::endian::little, "ids are stored as they are in memory");

// A second number of tokens, to see whether the place depends on it.
constexpr std::int64_t kManyTokens = 1 << 20;
constexpr std::size_t kSha256Digits = 64;

// Whether a host that has the file open sees what other hosts write to it. Not on NFS: there HDF5's
// stale page at the end of its structures could overwrite the first tokens.
bool SeesOthersWrites(const std::string& path) {
  struct statfs status = {};
  return ::statfs(path.c_str(), &status) == 0 && FileSystemNumber(status.f_type) != kNfsNumber;
}

// The vocabularies to store: the target's, or the only one, comes first.
std::vector<StoredVocabulary> VocabulariesOf(const TextTokenizers& tokenizers,
                                             const EncodeSettings& settings) {
  std::vector<StoredVocabulary> stored;
  stored.emplace_back(*tokenizers.back(), settings.eos.at(tokenizers.size() - 1), "");
  if (tokenizers.front() != tokenizers.back()) {
    stored.emplace_back(*tokenizers.front(), settings.eos[kSourceText], "source_");
  }
  return stored;
}

}  // namespace

PieceWriter::PieceWriter(const WrittenFile& file, Spills& spills, std::function<void()> poll)
    : to_(file), file_(file.path, O_RDWR | O_NOFOLLOW), spills_(spills), poll_(std::move(poll)) {
  if (file_.Valid()) return;
  throw RunError(fmt::format("{}: cannot be opened: {}", file.path, ErrorText(errno)));
}

template <typename Put>
void PieceWriter::Copy(Spill& from, std::int64_t begin, std::int64_t bytes, Put put) {
  while (bytes > 0) {
    room_.resize(std::min(kWriteBytes, static_cast<std::size_t>(bytes)));
    since_poll_ += room_.size();
    if (since_poll_ >= kWriteBytes) {
      since_poll_ = 0;
      poll_();
    }
    from.Read(begin, room_.data(), room_.size());
    put(room_.data(), room_.size());
    begin += static_cast<std::int64_t>(room_.size());
    bytes -= static_cast<std::int64_t>(room_.size());
  }
}

void PieceWriter::CopyTrain(const UnitResult& unit, std::int64_t before) {
  const std::int64_t width = to_.width[0];
  FileCursor train(to_.path, file_.Get(), to_.places.tokens[0].at(kTrainAt) + before * width);
  const auto keep = [this](const char* bytes, std::size_t count) {
    spills_.rest.Append(bytes, count);
  };
  const std::int64_t begin = unit.tokens_at[0] * width;
  std::int64_t copied = begin, at = begin;  // bytes of Spills::tokens
  bool trains = true;                       // bytes [copied, at) belong to train
  const auto copy = [&] {
    if (trains) {
      Copy(spills_.tokens[0], copied, at - copied, To(train));
    } else {
      Copy(spills_.tokens[0], copied, at - copied, keep);
    }
    copied = at;
  };
  const std::int64_t end = unit.documents_at + DocumentsOf(unit);
  for (std::int64_t d = unit.documents_at; d < end; ++d) {
    const SpilledDocument document = spills_.Document(d);
    if (trains != (document.split == kTrainAt)) {
      copy();
      trains = !trains;
    }
    at += static_cast<std::int64_t>(document.tokens[0]) * width;
  }
  copy();
  train.Flush();
  spills_.tokens[0].Release(begin, at);
}

void PieceWriter::Write(const UnitResult& unit, const SplitSizes& before) {
  std::vector<SplitCursors> cursors;
  const auto at = [&](std::int64_t offset) { return FileCursor(to_.path, file_.Get(), offset); };
  for (std::size_t s = 0; s < kSplits.size(); ++s) {
    SplitCursors split{{}, at(to_.places.mask.at(s) + before.tokens[0].at(s))};
    for (std::size_t t = 0; t < to_.texts; ++t) {
      const std::int64_t tokens = before.tokens.at(t).at(s);
      split.texts.push_back({at(to_.places.tokens.at(t).at(s) + tokens * to_.width.at(t)),
                             at(to_.places.documents.at(t).at(s) + before.documents.at(s) * 8),
                             static_cast<std::uint64_t>(tokens)});
    }
    cursors.push_back(std::move(split));
  }
  PerText<std::int64_t> from = unit.tokens_at;
  const std::int64_t end = unit.documents_at + DocumentsOf(unit);
  for (std::int64_t d = unit.documents_at; d < end; ++d) {
    const SpilledDocument document = spills_.Document(d);
    SplitCursors& split = cursors.at(document.split);
    if (to_.masks) {
      Copy(spills_.mask, from[0], static_cast<std::int64_t>(document.tokens[0]), To(split.mask));
    }
    for (std::size_t t = 0; t < to_.texts; ++t) {
      TextCursors& to = split.texts[t];
      const auto count = static_cast<std::int64_t>(document.tokens.at(t));
      const std::int64_t bytes = count * to_.width.at(t);
      to.documents.Write(&to.token, sizeof to.token);
      if (!spills_.copied) {
        Copy(spills_.tokens[t], from.at(t) * to_.width.at(t), bytes, To(to.tokens));
      } else if (document.split != kTrainAt) {
        Copy(spills_.rest, rest_, bytes, To(to.tokens));
        rest_ += bytes;
      }
      to.token += document.tokens.at(t);
      from.at(t) += count;
    }
  }
  for (SplitCursors& split : cursors) {
    for (TextCursors& to : split.texts) {
      to.tokens.Flush();
      to.documents.Flush();
    }
    split.mask.Flush();
  }
}

void PieceWriter::Sync() const {
  if (::fsync(file_.Get()) == 0) return;
  throw RunError(fmt::format("{}: cannot be synced: {}", to_.path, ErrorText(errno)));
}

// Rank 0's temporary file, which HDF5 keeps open. HDF5 empties a file that it opens, so it must
// open it before any rank writes tokens; it writes its own structures last.
struct ParallelTokenFile::Root {
  Root(const std::string& path, const TextTokenizers& of, const EncodeSettings& settings)
      : tokenizers(of),
        masks(settings.masks),
        vocabularies(VocabulariesOf(of, settings)),
        draft(Free(path)) {
    // HDF5 1.10 cannot close a file that found no space, so space is reserved before HDF5 begins.
    std::size_t front = kHdf5MetadataBytes;
    for (const StoredVocabulary& each : vocabularies) front += each.Bytes();
    draft.Reserve(front, false);
    file.emplace(draft.Path());
    draft.Reserve(front, true);
  }

  // Returns `path`; throws if another job is writing it, whose temporary file HDF5 has locked.
  static const std::string& Free(const std::string& path) {
    const Descriptor other(DraftOf(path), O_RDWR | O_NOFOLLOW | O_NONBLOCK);
    if (other.Valid() && ::flock(other.Get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      throw InputError(path + ": another job is writing this file",
                       "Let data.file name another, or wait for that job.");
    }
    return path;
  }

  // Writes the attributes and allocates all datasets; returns their places.
  Places Plan(Hdf5Writer& to, const std::string& source_sha256, const SplitSizes& sizes) const {
    to.Attribute("format", kTokenFormat);
    const bool pairs = tokenizers.size() > 1;
    if (pairs) to.Attribute("contents", std::string(kPairContents));
    for (const StoredVocabulary& each : vocabularies) each.Describe(to);
    to.Attribute("source_sha256", source_sha256);
    for (const StoredVocabulary& each : vocabularies) each.Plan(to);
    Places places;
    for (const Split split : kSplits) {
      const auto s = static_cast<std::size_t>(split);
      const auto plan = [&](Array array, Side side, hid_t type, std::int64_t count) {
        return to.Plan(PathOf(split, array, side), type, type, static_cast<std::size_t>(count),
                       nullptr);
      };
      for (std::size_t t = 0; t < tokenizers.size(); ++t) {
        const Side side = pairs ? kPairSides.at(t) : Side::kText;
        const hid_t id_type = IdTypeOf(tokenizers[t]->VocabularySize());
        places.tokens.at(t).at(s) = plan(Array::kTokens, side, id_type, sizes.tokens.at(t).at(s));
        places.documents.at(t).at(s) =
            plan(Array::kDocuments, side, H5T_STD_U64LE, sizes.documents.at(s));
      }
      if (masks) {
        places.mask.at(s) = plan(Array::kMask, Side::kText, H5T_STD_U8LE, sizes.tokens[0].at(s));
      }
    }
    return places;
  }

  // Where `tokens` train tokens would be placed (single texts), found with a trial file in memory.
  std::int64_t PlaceOf(std::int64_t tokens) const {
    Hdf5Writer trial(draft.Path(), Hdf5Writer::InMemory{});
    const SplitSizes sizes{.tokens = {{{tokens, 1, 1}}}, .documents = {1, 1, 1}};
    return Plan(trial, std::string(kSha256Digits, '0'), sizes).tokens[0].at(kTrainAt);
  }

  // Frees what was reserved beyond the end of a small file.
  void Trim() const {
    std::error_code ignored;
    std::filesystem::resize_file(draft.Path(), std::filesystem::file_size(draft.Path(), ignored),
                                 ignored);
  }

  const QuietHdf5 quiet;
  const TextTokenizers& tokenizers;
  bool masks;
  std::vector<StoredVocabulary> vocabularies;
  TokenFileDraft draft;
  std::optional<Hdf5Writer> file;  // must be closed before the draft goes
};

ParallelTokenFile::ParallelTokenFile(const comm::Communicator& world, const std::string& path,
                                     const TextTokenizers& tokenizers,
                                     const EncodeSettings& settings)
    : world_(world) {
  file_.texts = tokenizers.size();
  file_.masks = settings.masks;
  for (std::size_t t = 0; t < file_.texts; ++t)
    file_.width.at(t) = IdWidthOf(tokenizers[t]->VocabularySize());
  world.Together([&] {
    if (!world.IsRoot()) return;
    root_ = std::make_unique<Root>(path, tokenizers, settings);
    if (file_.texts > 1) return;
    std::int64_t& place = file_.places.tokens[0].at(kTrainAt);
    place = root_->PlaceOf(kEarlyTokens);
    early_ = root_->PlaceOf(kManyTokens) == place && SeesOthersWrites(root_->draft.Path());
  });
  file_.path = world.Broadcast(root_ ? root_->draft.Path() : std::string());
  world.Broadcast(&file_.places, sizeof file_.places);
  world.Broadcast(&early_, sizeof early_);
}

ParallelTokenFile::~ParallelTokenFile() = default;

std::optional<WrittenFile> ParallelTokenFile::Early() const {
  if (!early_) return std::nullopt;
  return file_;
}

bool ParallelTokenFile::Write(const EncodedUnits& encoded, const std::function<bool()>& stop) {
  const auto elsewhere = [&] {
    return encoded.spills.copied && file_.places.tokens[0].at(kTrainAt) != encoded.copied_to;
  };
  world_.Together([&] {
    if (!root_) return;
    file_.places = root_->Plan(*root_->file, encoded.source_sha256, SumOf(encoded.results));
    if (elsewhere()) return;
    root_->draft.Reserve(root_->file->Bytes(), true);
    root_->file->WriteAndClose();
    root_->Trim();
  });
  world_.Broadcast(&file_.places, sizeof file_.places);
  if (elsewhere()) return false;
  comm::WorkJointly(world_, [&](const comm::Poll& poll) {
    const auto ask = [&] {
      RequireGoingOn(stop);
      poll();
    };
    ask();
    PieceWriter writer(file_, encoded.spills, ask);
    std::size_t next = 0;  // index in encoded.mine
    SplitSizes before;
    for (std::size_t u = 0; u < encoded.results.size() && next < encoded.mine.size(); ++u) {
      const UnitResult& own = encoded.mine[next];
      if (encoded.results[u].unit == own.unit) {
        writer.Write(own, before);
        ++next;
      }
      before.Add(encoded.results[u]);
    }
    writer.Sync();
  });
  world_.Together([&] {
    if (!root_) return;
    root_->draft.Sync();
    if (file_.texts > 1) {
      CountPairs(root_->draft.Path());
    } else {
      InspectTokenFile(root_->draft.Path());
    }
    root_->draft.Place();
  });
  return true;
}

}  // namespace trireme::data
