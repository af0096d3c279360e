// Encodes this rank's units, exchanges their sizes and writes the file, whose datasets HDF5
// allocates and all ranks fill at byte offsets; makes units of single texts.
#include "tokenize_texts.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <algorithm>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "token_arrays.hpp"
#include "token_file_draft.hpp"
#include "token_layout.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/data/pairs.hpp"

namespace trireme::data {

namespace {

// A rank without work pauses this long between looks at the rounds.
constexpr std::chrono::milliseconds kWait{2};

constexpr std::size_t kWriteBytes = std::size_t{1} << 20;  // bytes per write

// A place in the file that advances with what is written there, in large pieces.
class FileCursor {
 public:
  FileCursor(const std::string& path, int file, std::int64_t offset)
      : path_(path), file_(file), offset_(offset) {}
  FileCursor(FileCursor&&) = default;
  FileCursor(const FileCursor&) = delete;
  FileCursor& operator=(const FileCursor&) = delete;

  void Append(const void* bytes, std::size_t count) {
    const char* const begin = static_cast<const char*>(bytes);
    buffer_.insert(buffer_.end(), begin, begin + count);
    if (buffer_.size() >= kWriteBytes) Flush();
  }
  void Flush() {
    if (buffer_.empty()) return;  // sync_file_range would take 0 bytes as all bytes to the end
    const std::int64_t count = std::ssize(buffer_);
    if (WriteAt(file_, buffer_.data(), count, offset_) < count) {
      const int error = errno;
      throw RunError(fmt::format("{}: cannot be written: {}", path_, ErrorText(error)),
                     error == ENOSPC || error == EDQUOT
                         ? "Free some space, or let data.file name another disk."
                         : "");
    }
    // The disk starts now instead of when everything is written.
    ::sync_file_range(file_, offset_, count, SYNC_FILE_RANGE_WRITE);
    offset_ += count;
    buffer_.clear();
  }

 private:
  const std::string& path_;
  int file_;
  std::int64_t offset_;
  std::vector<char> buffer_;
};

// Bytes at which the datasets begin in the file, by Split.
struct Places {
  PerText<std::array<std::int64_t, 3>> tokens{}, documents{};
  std::array<std::int64_t, 3> mask{};
};

// What a writer has to know about the token file.
struct WrittenFile {
  std::string path;
  Places places;
  std::size_t texts = 1;          // per document
  PerText<std::int64_t> width{};  // bytes per id
  bool masks = false;
};

std::int64_t DocumentsOf(const UnitResult& unit) {
  return unit.documents[0] + unit.documents[1] + unit.documents[2];
}

static_assert(std::endian::native == std::endian::little, "ids are stored as they are in memory");

// RootFile::PlaceOf is asked for this number of tokens too, to see whether the place depends on it.
constexpr std::int64_t kManyTokens = 1 << 20;
constexpr std::size_t kSha256Digits = 64;

// Whether a host that has the file open sees what other hosts write to it. False on NFS, where rank
// 0's stale copy of the page in which the first tokens begin could overwrite them.
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

// Copies documents from a rank's temporary files to the token file. All functions throw RunError
// with the path.
class PieceWriter {
 public:
  // poll: called about once per MiB.
  PieceWriter(const WrittenFile& file, Spills& spills, std::function<void()> poll)
      : to_(file), file_(file.path, O_RDWR | O_NOFOLLOW), spills_(spills), poll_(std::move(poll)) {
    if (file_.Valid()) return;
    throw RunError(fmt::format("{}: cannot be opened: {}", file.path, ErrorText(errno)));
  }

  // Copies a unit's train tokens behind the `before` tokens of earlier units, moves its other
  // tokens to Spills::rest, and frees the space of both. Units must ascend.
  void CopyTrain(const UnitResult& unit, std::int64_t before) {
    const std::int64_t width = to_.width[0];
    FileCursor train(to_.path, file_.Get(), to_.places.tokens[0].at(kTrainAt) + before * width);
    const std::int64_t begin = unit.tokens_at[0] * width;
    std::int64_t copied = begin, at = begin;  // bytes of Spills::tokens
    bool trains = true;                       // bytes [copied, at) belong to train
    const auto copy = [&] {
      if (trains) {
        Copy(spills_.tokens[0], copied, at - copied, train);
      } else {
        Copy(spills_.tokens[0], copied, at - copied, spills_.rest);
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

  // Copies a whole unit, except for what CopyTrain has copied if Spills::copied. before: sizes of
  // all earlier units. Units must ascend.
  void Write(const UnitResult& unit, SplitSizes before) {
    // By Split: for the mask, then for each text one for its tokens and one for its documents.
    std::array<std::vector<FileCursor>, 3> cursors;
    for (std::size_t s = 0; s < cursors.size(); ++s) {
      const auto add = [&](std::int64_t offset) {
        cursors.at(s).emplace_back(to_.path, file_.Get(), offset);
      };
      add(to_.places.mask.at(s) + before.tokens[0].at(s));
      for (std::size_t t = 0; t < to_.texts; ++t) {
        add(to_.places.tokens.at(t).at(s) + before.tokens.at(t).at(s) * to_.width.at(t));
        add(to_.places.documents.at(t).at(s) + before.documents.at(s) * 8);
      }
    }
    PerText<std::int64_t> from = unit.tokens_at;
    const std::int64_t end = unit.documents_at + DocumentsOf(unit);
    for (std::int64_t d = unit.documents_at; d < end; ++d) {
      const SpilledDocument document = spills_.Document(d);
      std::vector<FileCursor>& to = cursors.at(document.split);
      if (to_.masks) {
        Copy(spills_.mask, from[0], static_cast<std::int64_t>(document.tokens[0]), to[0]);
      }
      for (std::size_t t = 0; t < to_.texts; ++t) {
        const auto count = static_cast<std::int64_t>(document.tokens.at(t));
        const std::int64_t bytes = count * to_.width.at(t);
        std::int64_t& token = before.tokens.at(t).at(document.split);
        to[2 * t + 2].Append(&token, sizeof token);
        if (!spills_.copied) {
          Copy(spills_.tokens[t], from.at(t) * to_.width.at(t), bytes, to[2 * t + 1]);
        } else if (document.split != kTrainAt) {
          Copy(spills_.rest, rest_, bytes, to[2 * t + 1]);
          rest_ += bytes;
        }
        token += count;
        from.at(t) += count;
      }
    }
    for (auto& of_split : cursors) {
      for (FileCursor& cursor : of_split) cursor.Flush();
    }
  }

  void Sync() const {
    if (::fsync(file_.Get()) == 0) return;
    throw RunError(fmt::format("{}: cannot be synced: {}", to_.path, ErrorText(errno)));
  }

 private:
  // Copies bytes from offset `begin` of a temporary file to a FileCursor or a Spill.
  template <typename Sink>
  void Copy(Spill& from, std::int64_t begin, std::int64_t bytes, Sink& to) {
    while (bytes > 0) {
      room_.resize(std::min(kWriteBytes, static_cast<std::size_t>(bytes)));
      since_poll_ += room_.size();
      if (since_poll_ >= kWriteBytes) {
        since_poll_ = 0;
        poll_();
      }
      from.Read(begin, room_.data(), room_.size());
      to.Append(room_.data(), room_.size());
      begin += static_cast<std::int64_t>(room_.size());
      bytes -= static_cast<std::int64_t>(room_.size());
    }
  }

  WrittenFile to_;
  Descriptor file_;
  Spills& spills_;
  std::function<void()> poll_;
  std::size_t since_poll_ = 0;  // bytes since the last poll
  std::int64_t rest_ = 0;       // bytes of Spills::rest that Write has used
  std::vector<char> room_;
};

// What encoding has produced.
struct EncodedUnits {
  std::vector<UnitResult> results;  // all ranks' units, in order; the same on every rank
  std::vector<UnitResult>& mine;    // this rank's units, which are in `spills`, in order
  Spills& spills;                   // its `copied` is the same on every rank
  std::int64_t copied_to = 0;       // if spills.copied: where train's tokens begin in the file
  std::string source_sha256 = {};
};

// Rank 0's temporary file, which HDF5 keeps open. HDF5 empties a file that it opens, so it must
// open it before any rank writes tokens; it writes its own structures last.
struct RootFile {
  RootFile(const std::string& path, const TextTokenizers& of, const EncodeSettings& settings)
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
    Hdf5Writer trial(draft.Path(), true);
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

// A token file with a temporary name until all is written: an error leaves nothing behind.
class ParallelTokenFile {
 public:
  // tokenizers: must outlive the object. Collective.
  ParallelTokenFile(const comm::Communicator& world, const std::string& path,
                    const TextTokenizers& tokenizers, const EncodeSettings& settings)
      : world_(world) {
    file_.texts = tokenizers.size();
    file_.masks = settings.masks;
    for (std::size_t t = 0; t < file_.texts; ++t)
      file_.width.at(t) = IdWidthOf(tokenizers[t]->VocabularySize());
    world.Together([&] {
      if (!world.IsRoot()) return;
      root_ = std::make_unique<RootFile>(path, tokenizers, settings);
      if (file_.texts > 1) return;
      std::int64_t& place = file_.places.tokens[0].at(kTrainAt);
      place = root_->PlaceOf(kEarlyTokens);
      early_ = root_->PlaceOf(kManyTokens) == place && SeesOthersWrites(root_->draft.Path());
    });
    file_.path = world.Broadcast(root_ ? root_->draft.Path() : std::string());
    world.Broadcast(&file_.places, sizeof file_.places);
    world.Broadcast(&early_, sizeof early_);
  }

  // The file with the place that HDF5 will give train's tokens if there are at least kEarlyTokens;
  // nullopt if that depends on their number, and for pairs.
  std::optional<WrittenFile> Early() const {
    if (!early_) return std::nullopt;
    return file_;
  }

  // Writes what was not copied before, and renames the file. stop: asked about once per MiB; true
  // ends all ranks with an error. Returns false, with nothing written, if train tokens were copied
  // to a place that is not theirs. Collective; an error on one rank is thrown on all.
  bool Write(const EncodedUnits& encoded, const std::function<bool()>& stop) {
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
      const auto ask = Asking(stop, poll);
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

 private:
  const comm::Communicator& world_;
  WrittenFile file_;
  bool early_ = false;
  std::unique_ptr<RootFile> root_;  // on rank 0
};

// Reports to TextWatch which share of the rank's work is done.
class WorkShare {
 public:
  WorkShare(const DocumentMaker& maker, std::span<const std::size_t> mine, const TextWatch& watch,
            std::function<void()> poll)
      : watch_(watch), poll_(std::move(poll)), bytes_(maker.Bytes()) {
    for (const std::size_t unit : mine) own_ += maker.WorkIn(unit);
  }

  // Reports that `work` out of the unit's work `all` is done.
  void Tell(std::int64_t work, std::int64_t all) const {
    poll_();
    if (!watch_.progress) return;
    const std::int64_t done = done_ + std::min(work, all);
    watch_.progress(static_cast<double>(done) / static_cast<double>(own_), bytes_);
  }
  void Finish(std::int64_t all) { done_ += all; }

 private:
  const TextWatch& watch_;
  std::function<void()> poll_;
  std::int64_t bytes_, own_ = 0, done_ = 0;
};

// What was written. Fills in units.source_sha256.
TextTokens Summarise(const TextTokenizers& tokenizers, EncodedUnits& units) {
  const SplitSizes sizes = SumOf(units.results);
  TextTokens all{.documents = sizes.documents, .early = units.spills.copied};
  for (std::size_t t = 0; t < tokenizers.size(); ++t) {
    all.texts.push_back(
        {tokenizers[t]->Kind(), tokenizers[t]->VocabularySize(), sizes.tokens.at(t)});
  }
  std::string digests;
  for (const UnitResult& result : units.results) {
    all.replaced += result.replaced;
    all.empty += result.empty;
    all.missing += result.missing;
    digests += fmt::format("{:016x}{:016x}\n", result.digest[1], result.digest[0]);
  }
  units.source_sha256 = Sha256({digests});
  return all;
}

// By Split: whether the documents' hashes are to fill it.
std::array<bool, 3> WantedSplits(const EncodeSettings& settings) {
  return {settings.valid_fraction + settings.test_fraction > 0, settings.valid_fraction > 0,
          settings.test_fraction > 0};
}

// With single texts, moves documents of smallest hash to splits that have none. Collective.
void FillSplits(const comm::Communicator& world, const EncodeSettings& settings,
                const SmallestHashes& smallest, EncodedUnits& units) {
  SplitSizes sizes = SumOf(units.results);
  const std::vector<DocumentMove> moves =
      MovesToEmptySplits(comm::GatherAll(world, smallest.All()), WantedSplits(settings), sizes);
  const auto change = [](std::vector<UnitResult>& results, const DocumentMove& move) {
    const auto unit = std::find_if(results.begin(), results.end(), [&](const UnitResult& result) {
      return result.unit == move.document.unit;
    });
    if (unit == results.end()) return unit;
    const auto from = static_cast<std::size_t>(move.document.split);
    const auto to = static_cast<std::size_t>(move.to);
    unit->tokens[0].at(from) -= static_cast<std::int64_t>(move.document.tokens);
    unit->tokens[0].at(to) += static_cast<std::int64_t>(move.document.tokens);
    --unit->documents.at(from);
    ++unit->documents.at(to);
    return unit;
  };
  world.Together([&] {
    for (const DocumentMove& move : moves) {
      change(units.results, move);
      const auto unit = change(units.mine, move);
      if (unit == units.mine.end()) continue;
      const auto at = unit->documents_at + static_cast<std::int64_t>(move.document.place);
      units.spills.Overwrite(at, {static_cast<std::uint64_t>(move.to), {move.document.tokens, 0}});
    }
  });
}

// Throws InputError for a split with too few tokens, with a hint.
void CheckSplits(const TextTokens& all, const EncodeSettings& settings) {
  const std::array<bool, 3> wanted = WantedSplits(settings);
  std::int64_t shared = 0;  // documents of tokenize.train
  for (const Split split : kSplits) {
    const auto s = static_cast<std::size_t>(split);
    if (split == Split::kTrain || wanted.at(s)) shared += all.documents.at(s);
  }
  for (const Split split : {Split::kTrain, Split::kValid, Split::kTest}) {
    const auto s = static_cast<std::size_t>(split);
    const std::int64_t tokens = all.texts[0].tokens.at(s);
    if (tokens >= kLeastTokens) continue;
    const std::string hint =
        wanted.at(s) && shared > 0
            ? TooFewToShare(shared, settings)
            : fmt::format("Are the texts of tokenize.{} empty?", NameOf(split));
    throw InputError(
        fmt::format("the {} split holds {} tokens; at least 2 are needed", NameOf(split), tokens),
        hint);
  }
}

// Throws InputError for a split without pairs, with a hint.
void CheckPairSplits(const TextTokens& all) {
  for (const Split split : kSplits) {
    if (all.documents.at(static_cast<std::size_t>(split)) > 0) continue;
    throw InputError(fmt::format("the {} split holds no pair", NameOf(split)),
                     split == Split::kTrain
                         ? "Are the texts of tokenize.source and tokenize.target empty?"
                         : fmt::format("Raise tokenize.{0}_fraction, or name texts: "
                                       "tokenize.{0}_source, tokenize.{0}_target.",
                                       NameOf(split)));
  }
}

// Tokens per split from which on copying is safe: no document will move to another split any more.
std::array<std::int64_t, 3> LeastTokens(const TokenFilePlan& plan) {
  std::array<std::int64_t, 3> least{};
  const std::array<bool, 3> wanted = WantedSplits(plan.settings);
  for (std::size_t s = 0; s < least.size(); ++s) least.at(s) = wanted.at(s) ? kLeastTokens : 0;
  least[0] = std::max(least[0], plan.early_tokens);
  return least;
}

// Tokenises everything. may_be_early: train tokens may be copied while documents are encoded.
// nullopt if they were copied to a place that HDF5 did not give them. Collective.
std::optional<TextTokens> TokenizeOnce(const comm::Communicator& world, DocumentMaker& maker,
                                       const TokenFilePlan& plan, bool may_be_early) {
  const std::vector<std::size_t> shares = maker.UnitsOf(world.Rank(), world.Size());
  const bool pairs = plan.tokenizers.size() > 1;
  ParallelTokenFile file(world, plan.path, plan.tokenizers, plan.settings);
  std::optional<WrittenFile> early = may_be_early ? file.Early() : std::nullopt;
  if (early) early->places.tokens[0][kTrainAt] += plan.early_shift;
  std::unique_ptr<Spills> spills;
  std::vector<UnitResult> mine;
  SmallestHashes smallest;
  UnitRounds rounds(world, early ? maker.Units() : 0, mine, LeastTokens(plan));
  const auto encode = [&](const comm::Poll& poll) {
    const auto ask = Asking(plan.watch.stop, poll);
    spills = std::make_unique<Spills>(FolderOf(plan.path), plan.tokenizers.size());
    Encoder encoder(plan.tokenizers, plan.settings, *spills);
    std::optional<PieceWriter> writer;
    if (early) writer.emplace(*early, *spills, ask);
    std::size_t copied = 0;  // number of units of `mine` whose train tokens are copied
    // Copies train tokens as soon as their place is known; does not wait for other ranks.
    const auto look = [&] {
      ask();
      if (writer) rounds.Look();
      if (!rounds.Ready()) return;
      for (; writer && copied < mine.size() && mine[copied].unit < rounds.Known(); ++copied) {
        writer->CopyTrain(mine[copied], rounds.Before(mine[copied].unit));
      }
    };
    WorkShare share(maker, shares, plan.watch, look);
    for (const std::size_t unit : shares) {
      const std::int64_t work = maker.WorkIn(unit);
      mine.push_back(maker.Make(unit, encoder, [&](std::int64_t done) { share.Tell(done, work); }));
      share.Finish(work);
    }
    smallest = encoder.Smallest();
    while (!rounds.Ended()) {
      const std::int64_t begun = rounds.Begun();
      look();
      if (!rounds.Ended() && rounds.Begun() == begun) std::this_thread::sleep_for(kWait);
    }
  };
  try {
    comm::WorkJointly(world, encode);
  } catch (...) {
    rounds.Drain(world);
    throw;
  }
  spills->copied = early && rounds.Ready();
  const std::int64_t copied_to = early ? early->places.tokens[0][kTrainAt] : 0;
  EncodedUnits units{comm::GatherAll(world, mine), mine, *spills, copied_to};
  std::ranges::sort(units.results, {}, &UnitResult::unit);
  if (!pairs) FillSplits(world, plan.settings, smallest, units);
  const TextTokens all = Summarise(plan.tokenizers, units);
  world.Together([&] { pairs ? CheckPairSplits(all) : CheckSplits(all, plan.settings); });
  if (!file.Write(units, plan.watch.stop)) return std::nullopt;
  return all;
}

// Supplies the documents of files of single texts.
class TextMaker : public DocumentMaker {
 public:
  TextMaker(const TextPlan& plan, const Tokenizer& tokenizer)
      : plan_(plan),
        tokenizer_(tokenizer),
        units_(CutIntoUnits(plan.files, plan.document, plan.unit_bytes)) {}

  std::size_t Units() const override { return units_.size(); }
  std::vector<std::size_t> UnitsOf(int rank, int ranks) const override {
    return UnitsOfRank(units_, plan_.files, rank, ranks);
  }
  std::int64_t WorkIn(std::size_t unit) const override {
    return units_.at(unit).end - units_.at(unit).begin;  // bytes on disk
  }
  std::int64_t Bytes() const override {
    std::int64_t bytes = 0;
    for (const TextUnit& unit : units_) bytes += unit.end - unit.begin;
    return bytes;
  }
  UnitResult Make(std::size_t unit, Encoder& to, const UnitProgress& tell) override {
    const TextFile& file = plan_.files.at(units_.at(unit).file);
    DocumentEncoder documents(to, tokenizer_, file);
    to.Begin(unit, file.split, [&] { return documents.Where(); });
    const UnitResult read = ReadUnit(plan_, units_.at(unit), documents, tell);
    UnitResult result = to.Finish();
    result.replaced = read.replaced;
    result.empty = read.empty;
    result.missing = read.missing;
    return result;
  }

 private:
  const TextPlan& plan_;
  const Tokenizer& tokenizer_;
  std::vector<TextUnit> units_;
};

}  // namespace

std::string TooFewToShare(std::int64_t documents, const EncodeSettings& settings) {
  const bool valid = settings.valid_fraction > 0, test = settings.test_fraction > 0;
  return fmt::format(
      "The texts are {} document{} of tokenize.train, too few to share out: tokenize.document = "
      "line or blank_line makes more of plain text; or name {}{}{}.",
      documents, documents == 1 ? "" : "s", valid ? "tokenize.valid" : "",
      valid && test ? " and " : "", test ? "tokenize.test" : "");
}

std::vector<std::size_t> DocumentMaker::UnitsOf(int rank, int ranks) const {
  std::vector<std::size_t> units;
  for (auto unit = static_cast<std::size_t>(rank); unit < Units();
       unit += static_cast<std::size_t>(ranks)) {
    units.push_back(unit);
  }
  return units;
}

UnitResult ReadUnit(const TextPlan& plan, const TextUnit& unit, RecordSink& sink,
                    const UnitProgress& tell) {
  const TextFile& file = plan.files.at(unit.file);
  JsonRecords records(sink, plan.keys, file.path, plan.replace);
  Utf8Filter filter(file.json_lines ? static_cast<DocumentSink&>(records) : sink, file.path,
                    plan.replace);
  ForEachDocument(file, unit, plan.document, filter, tell);
  return {.replaced = filter.Replaced() + records.Replaced(),
          .empty = records.Empty(),
          .missing = records.Missing()};
}

TextTokens TokenizeDocuments(const comm::Communicator& world, DocumentMaker& maker,
                             const TokenFilePlan& plan) {
  if (const auto all = TokenizeOnce(world, maker, plan, true)) return *all;
  if (world.IsRoot()) {
    fmt::print(stderr,
               "warning: {}: HDF5 gave the tokens another place than foreseen: the texts are "
               "encoded once more\n",
               plan.path);
    std::fflush(stderr);
  }
  return TokenizeOnce(world, maker, plan, false).value();
}

TextTokens TokenizeTexts(const comm::Communicator& world, Tokenizer& tokenizer,
                         const TextPlan& plan, const std::string& path, const TextWatch& watch) {
  TextMaker maker(plan, tokenizer);
  const TextTokenizers tokenizers = {&tokenizer};
  return TokenizeDocuments(
      world, maker, {path, tokenizers, plan.encode, watch, plan.early_tokens, plan.early_shift});
}

UnitRounds::UnitRounds(const comm::Communicator& world, std::size_t units,
                       const std::vector<UnitResult>& mine,
                       const std::array<std::int64_t, 3>& least)
    : ranks_(world.Duplicate()), units_(units), mine_(mine), least_(least) {
  // Units per rank that a round can report; a rank that is further ahead reports the rest later.
  constexpr std::size_t kUnitsOfRank = 8;
  constexpr std::size_t kLeastWindow = 64;
  const std::size_t window = kLeastWindow + kUnitsOfRank * static_cast<std::size_t>(world.Size());
  sent_.resize(kSplits.size() + std::min(window, units));
  sums_.resize(sent_.size());
}

void UnitRounds::Look() {
  if (Ended()) return;
  if (begun_ == 0) Begin();
  int done = 0;
  MPI_Test(&request_, &done, MPI_STATUS_IGNORE);
  if (done == 0) return;
  Take();
  if (!Ended()) Begin();
}

bool UnitRounds::Ready() const {
  return std::ranges::equal(all_, least_, std::ranges::greater_equal());
}

void UnitRounds::Begin() {
  for (; summed_ < mine_.size(); ++summed_) {
    for (std::size_t s = 0; s < own_.size(); ++s) own_.at(s) += mine_[summed_].tokens[0].at(s);
  }
  while (first_ < mine_.size() && mine_[first_].unit < Known()) ++first_;
  std::ranges::fill(sent_, 0);
  std::ranges::copy(own_, sent_.begin());
  for (std::size_t u = first_; u < mine_.size(); ++u) {
    const std::size_t at = kSplits.size() + mine_[u].unit - Known();
    if (at >= sent_.size()) break;
    sent_[at] = mine_[u].tokens[0].at(kTrainAt) + 1;
  }
  MPI_Iallreduce(sent_.data(), sums_.data(), static_cast<int>(sent_.size()), MPI_INT64_T, MPI_SUM,
                 ranks_.Handle(), &request_);
  ++begun_;
}

void UnitRounds::Take() {
  std::copy_n(sums_.begin(), all_.size(), all_.begin());
  for (std::size_t at = kSplits.size(); at < sums_.size() && sums_[at] > 0; ++at) {
    starts_.push_back(starts_.back() + sums_[at] - 1);
  }
}

void UnitRounds::Drain(const comm::Communicator& world) {
  const std::int64_t last = world.Max(begun_);
  while (true) {
    MPI_Wait(&request_, MPI_STATUS_IGNORE);
    if (begun_ == last) return;
    Begin();
  }
}

}  // namespace trireme::data
