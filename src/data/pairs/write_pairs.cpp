// Encoding of the rank's units, exchange of their sizes, and the file that all ranks fill.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <xxhash.h>
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "line_pairs.hpp"
#include "positioned_file.hpp"
#include "text/encoder.hpp"
#include "text/write_parallel.hpp"
#include "token_file_draft.hpp"
#include "token_layout.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/data/pairs.hpp"

namespace trireme::data {

// Encoding of pairs, text by text.

std::uint64_t HashOfPair(std::string_view source, std::string_view target) {
  const std::string both = fmt::format("{}\n{}", source, target);  // neither has a line end
  return XXH3_64bits(both.data(), both.size());
}

PairEncoder::PairEncoder(const PairTokenizers& tokenizers, PairSpills& spills)
    : tokenizers_(tokenizers), spills_(spills) {
  for (std::size_t t = 0; t < kPairSides.size(); ++t) {
    width_.at(t) = WidthOf(*tokenizers.of.at(t));
    tokenizers.of.at(t)->Template(prefix_.at(t), suffix_.at(t));
    const auto eos = static_cast<std::int32_t>(tokenizers.eos.at(t));
    if (suffix_.at(t).empty() || suffix_.at(t).back() != eos) suffix_.at(t).push_back(eos);
  }
}

void PairEncoder::Begin(std::size_t unit) {
  result_ = {.unit = unit,
             .pairs_at = spills_.pairs.Size() / static_cast<std::int64_t>(sizeof(SpilledPair))};
  for (std::size_t t = 0; t < kPairSides.size(); ++t) {
    result_.tokens_at.at(t) = spills_.tokens.at(t).Size() / width_.at(t);
  }
}

std::uint32_t PairEncoder::Encode(std::size_t which, std::string_view text) {
  Tokenizer& tokenizer = *tokenizers_.of.at(which);
  ids_ = prefix_.at(which);
  tokenizer.Encode(text, ids_);
  ids_.insert(ids_.end(), suffix_.at(which).begin(), suffix_.at(which).end());
  const std::int64_t most = tokenizer.VocabularySize();
  const auto bad =
      std::find_if(ids_.begin(), ids_.end(), [&](auto id) { return id < 0 || id >= most; });
  if (bad != ids_.end()) {
    throw RunError(fmt::format("the tokenizer gave id {} of {} types", *bad, most));
  }
  Spill& spill = spills_.tokens.at(which);
  if (width_.at(which) == 2) {
    narrow_.assign(ids_.begin(), ids_.end());
    spill.Append(narrow_.data(), narrow_.size() * sizeof(std::uint16_t));
  } else {
    spill.Append(ids_.data(), ids_.size() * sizeof(std::int32_t));
  }
  return static_cast<std::uint32_t>(ids_.size());
}

void PairEncoder::Add(std::string_view source, std::string_view target, Split split) {
  const auto s = static_cast<std::size_t>(split);
  const PerText<std::string_view> texts = {source, target};
  SpilledPair pair{.split = s};
  for (std::size_t t = 0; t < texts.size(); ++t) {
    pair.tokens.at(t) = Encode(t, texts.at(t));
    result_.tokens.at(s).at(t) += pair.tokens.at(t);
  }
  spills_.pairs.Append(&pair, sizeof pair);
  ++result_.pairs.at(s);
  const std::array<std::uint64_t, 4> chain = {result_.digest[0], result_.digest[1],
                                              HashOfPair(source, target), s};
  const XXH128_hash_t digest = XXH3_128bits(chain.data(), sizeof chain);
  result_.digest = {digest.low64, digest.high64};
}

namespace {

constexpr std::int64_t kOffsetBytes = 8;

// First bytes of a split's datasets in the file.
struct SplitPlaces {
  PerText<std::int64_t> ids{}, offsets{};
};
using PairPlaces = std::array<SplitPlaces, 3>;

// Sums over units, or over those before one.
struct PairSums {
  std::array<std::int64_t, 3> pairs{};
  std::array<PerText<std::int64_t>, 3> tokens{};

  void Add(const PairUnit& unit) {
    for (std::size_t s = 0; s < kSplits.size(); ++s) {
      pairs.at(s) += unit.pairs.at(s);
      for (std::size_t t = 0; t < kPairSides.size(); ++t) {
        tokens.at(s).at(t) += unit.tokens.at(s).at(t);
      }
    }
  }
};

PairPlaces MakeFile(const TokenFileDraft& draft, const PairTokenizers& tokenizers,
                    const std::string& source_sha256, const PairSums& sums) {
  const StoredVocabulary target(*tokenizers.of[kTargetText]);
  std::optional<StoredVocabulary> source;
  if (!tokenizers.Shared()) source.emplace(*tokenizers.of[kSourceText]);
  const auto width = [&](std::size_t t) { return WidthOf(*tokenizers.of.at(t)); };

  // HDF5 1.10 cannot close a file that found no space: it is tried before HDF5 begins.
  std::size_t in_all = target.Bytes() + (source ? source->Bytes() : 0) + kHdf5MetadataBytes;
  for (std::size_t s = 0; s < kSplits.size(); ++s) {
    for (std::size_t t = 0; t < kPairSides.size(); ++t) {
      in_all += static_cast<std::size_t>(sums.tokens.at(s).at(t) * width(t) +
                                         sums.pairs.at(s) * kOffsetBytes);
    }
  }
  draft.Reserve(in_all, false);

  Hdf5Writer file(draft.Path());
  file.Attribute("format", kTokenFormat);
  file.Attribute("contents", std::string(kPairContents));
  target.Describe(file, tokenizers.eos[kTargetText], "");
  if (source) source->Describe(file, tokenizers.eos[kSourceText], "source_");
  file.Attribute("source_sha256", source_sha256);
  target.Plan(file, "");
  if (source) source->Plan(file, "source_");
  PairPlaces places;
  for (const Split split : kSplits) {
    const auto s = static_cast<std::size_t>(split);
    for (std::size_t t = 0; t < kPairSides.size(); ++t) {
      const auto plan = [&](Array array, hid_t type, std::int64_t count) {
        return file.Plan(PathOf(split, array, kPairSides.at(t)), type, type,
                         static_cast<std::size_t>(count), nullptr);
      };
      places.at(s).ids.at(t) = plan(Array::kTokens, width(t) == 2 ? H5T_STD_U16LE : H5T_STD_U32LE,
                                    sums.tokens.at(s).at(t));
      places.at(s).offsets.at(t) = plan(Array::kDocuments, H5T_STD_U64LE, sums.pairs.at(s));
    }
  }
  draft.Reserve(file.Bytes(), true);
  file.WriteAndClose();
  return places;
}

// Copies one text of pairs from the temporary files to the file.
class TextWriter {
 public:
  TextWriter(const std::string& path, int file, std::int64_t width, Spill& from)
      : path_(path), file_(file), width_(width), from_(from) {}

  // `before`: what earlier units hold. Pairs of the unit, in order, are `pairs`.
  void Write(std::size_t text, const PairUnit& unit, std::span<const SpilledPair> pairs,
             const PairPlaces& places, const PairSums& before) {
    if (cursors_.empty()) {
      from_at_ = unit.tokens_at.at(text);
      for (std::size_t s = 0; s < kSplits.size(); ++s) {
        const std::int64_t token = before.tokens.at(s).at(text);
        ids_.emplace_back(path_, file_, places.at(s).ids.at(text) + token * width_);
        cursors_.emplace_back(path_, file_,
                              places.at(s).offsets.at(text) + before.pairs.at(s) * kOffsetBytes);
        next_.at(s) = static_cast<std::uint64_t>(token);
      }
    }
    for (const SpilledPair& pair : pairs) {
      const auto bytes = static_cast<std::size_t>(pair.tokens.at(text) * width_);
      room_.resize(bytes);
      from_.Read(from_at_ * width_, room_.data(), bytes);
      ids_.at(pair.split).Write(room_.data(), bytes);
      cursors_.at(pair.split).Write(&next_.at(pair.split), kOffsetBytes);
      next_.at(pair.split) += pair.tokens.at(text);
      from_at_ += pair.tokens.at(text);
    }
  }
  void Finish() {
    for (FileCursor& cursor : ids_) cursor.Flush();
    for (FileCursor& cursor : cursors_) cursor.Flush();
    ids_.clear();
    cursors_.clear();
  }

 private:
  const std::string& path_;
  int file_;
  std::int64_t width_;  // bytes of an id
  Spill& from_;
  std::int64_t from_at_ = 0;               // next token there
  std::vector<FileCursor> ids_, cursors_;  // by split: of ids and of offsets
  std::array<std::uint64_t, 3> next_{};    // by split: offset of the next text
  std::vector<char> room_;
};

// Copies this rank's units. results: of all, in order; mine: of this rank, in order.
void FillFile(const std::string& name, const PairTokenizers& tokenizers, const PairPlaces& places,
              std::span<const PairUnit> results, std::span<const PairUnit> mine, PairSpills& spills,
              const std::function<void()>& ask) {
  constexpr std::int64_t kAtOnce = 4096;  // pairs
  const Descriptor file(name, O_RDWR | O_NOFOLLOW);
  if (!file.Valid()) {
    throw RunError(fmt::format("{}: cannot be opened: {}", name, ErrorText(errno)));
  }
  std::vector<TextWriter> writers;
  for (std::size_t t = 0; t < kPairSides.size(); ++t) {
    writers.emplace_back(name, file.Get(), WidthOf(*tokenizers.of.at(t)), spills.tokens.at(t));
  }
  std::size_t next = 0;  // of mine
  PairSums before;
  std::vector<SpilledPair> pairs;
  for (const PairUnit& unit : results) {
    if (next < mine.size() && mine[next].unit == unit.unit) {
      const PairUnit& own = mine[next++];
      const std::int64_t count = own.pairs[0] + own.pairs[1] + own.pairs[2];
      for (std::int64_t done = 0; done < count; done += std::ssize(pairs)) {
        ask();
        pairs.resize(static_cast<std::size_t>(std::min(kAtOnce, count - done)));
        constexpr auto kPairBytes = static_cast<std::int64_t>(sizeof(SpilledPair));
        spills.pairs.Read((own.pairs_at + done) * kPairBytes, pairs.data(),
                          pairs.size() * sizeof(SpilledPair));
        for (std::size_t t = 0; t < writers.size(); ++t) {
          writers[t].Write(t, own, pairs, places, before);
        }
      }
      for (TextWriter& writer : writers) writer.Finish();
    }
    before.Add(unit);
  }
  if (::fsync(file.Get()) == 0) return;
  throw RunError(fmt::format("{}: cannot be synced: {}", name, ErrorText(errno)));
}

PairTokens Summarise(const PairTokenizers& tokenizers, std::span<const PairUnit> results,
                     const PairSums& sums, std::string& sha256) {
  PairTokens all{
      .tokenizers = {tokenizers.of[kSourceText]->Kind(), tokenizers.of[kTargetText]->Kind()},
      .vocabularies = {tokenizers.of[kSourceText]->VocabularySize(),
                       tokenizers.of[kTargetText]->VocabularySize()},
      .shared_vocabulary = tokenizers.Shared(),
      .pairs = sums.pairs,
      .tokens = sums.tokens};
  std::string digests;
  for (const PairUnit& unit : results) {
    all.empty += unit.empty;
    all.replaced += unit.replaced;
    digests += fmt::format("{:016x}{:016x}\n", unit.digest[1], unit.digest[0]);
  }
  const std::string_view text = digests;
  sha256 = Sha256(std::span(&text, 1));
  return all;
}

void CheckSplits(const PairSums& sums) {
  for (const Split split : kSplits) {
    if (sums.pairs.at(static_cast<std::size_t>(split)) > 0) continue;
    throw InputError(fmt::format("the {} split holds no pair", NameOf(split)),
                     split == Split::kTrain
                         ? "Are the texts of tokenize.source and tokenize.target empty?"
                         : fmt::format("Raise tokenize.{0}_fraction, or name texts: "
                                       "tokenize.{0}_source, tokenize.{0}_target.",
                                       NameOf(split)));
  }
}

}  // namespace

PairTokens WritePairs(const comm::Communicator& world, const std::string& path, PairMaker& maker,
                      const PairTokenizers& tokenizers, const TextWatch& watch) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  std::unique_ptr<PairSpills> spills;
  std::vector<PairUnit> mine;
  const auto ask_of = [&](const comm::Poll& poll) {
    return [&watch, &poll] {
      if (watch.stop && watch.stop()) {
        throw RunError("stopped by a signal: no token file was written");
      }
      poll();
    };
  };
  comm::WorkJointly(world, [&](const comm::Poll& poll) {
    spills = std::make_unique<PairSpills>(folder.empty() ? "." : folder);
    PairEncoder encoder(tokenizers, *spills);
    const auto ranks = static_cast<std::size_t>(world.Size());
    for (auto unit = static_cast<std::size_t>(world.Rank()); unit < maker.Units(); unit += ranks) {
      encoder.Begin(unit);
      maker.Make(unit, encoder, ask_of(poll));
      mine.push_back(encoder.Finish());
      if (!watch.progress) continue;
      watch.progress(static_cast<double>(unit + 1) / static_cast<double>(maker.Units()),
                     maker.Bytes());
    }
  });
  std::vector<PairUnit> results = comm::GatherAll(world, mine);
  std::ranges::sort(results, {}, &PairUnit::unit);
  PairSums sums;
  for (const PairUnit& unit : results) sums.Add(unit);
  std::string sha256;
  const PairTokens all = Summarise(tokenizers, results, sums, sha256);
  world.Together([&] { CheckSplits(sums); });

  const QuietHdf5 quiet;
  std::optional<TokenFileDraft> draft;  // of root
  PairPlaces places;
  world.Together([&] {
    if (!world.IsRoot()) return;
    draft.emplace(path);
    places = MakeFile(*draft, tokenizers, sha256, sums);
  });
  world.Broadcast(places.data(), sizeof places);
  const std::string name = world.Broadcast(world.IsRoot() ? draft->Path() : std::string());
  comm::WorkJointly(world, [&](const comm::Poll& poll) {
    FillFile(name, tokenizers, places, results, mine, *spills, ask_of(poll));
  });
  world.Together([&] {
    if (!world.IsRoot()) return;
    draft->Sync();
    CountPairs(draft->Path());
    draft->Place();
  });
  return all;
}

}  // namespace trireme::data
