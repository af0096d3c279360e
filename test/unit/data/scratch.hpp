// Token files and texts in a folder of the test's own.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <mpi.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "documents.hpp"
#include "folders.hpp"
#include "tokenize_texts.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/data/tokenize.hpp"
#include "trireme/data/windows.hpp"

namespace trireme::data {

// A temporary folder for each test, with small token data, files and decks.

class Scratch : public test::FolderTest {
 protected:
  // Writes the text to a file of that name and returns its path.
  std::string Write(const std::string& name, const std::string& text) const {
    test::WriteBytes(In(name), text);
    return In(name);
  }
};

// Four words, ten + three + two tokens.
inline TokenData SmallData() {
  TokenData data;
  data.tokens = {{{0, 1, 2, 3, 0, 1, 2, 3, 1, 0}, {3, 2, 1}, {0, 0}}};
  data.vocabulary.words = {"<eos>", "<unk>", "ship", "naïve"};
  data.vocabulary.eos = 0;
  data.vocabulary.unk = 1;
  data.tokenizer = "word";
  data.source_sha256 = std::string(64, 'a');
  return data;
}

inline TokenFile Open(const std::string& path, const Keeping& keeping = Staging::kNone) {
  const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
  return TokenFile(self, self, path, keeping);
}

inline Window Copy(const WindowView& view) {
  Window window;
  window.ids.resize(static_cast<std::size_t>(view.size));
  view.CopyIds(0, view.size, window.ids.data());
  for (const std::int64_t begin : view.documents) {
    window.documents.push_back(begin - view.origin);
  }
  window.counted.assign(view.counted.begin(), view.counted.end());
  return window;
}

// Tokens [begin, begin + count) of a split, in memory or streamed.
inline Window ReadOne(const TokenFile& file, Split split, std::int64_t begin, std::int64_t count) {
  const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
  Windows windows(file, split, self, [&](std::int64_t turn, std::vector<Sample>& samples) {
    samples.assign(1, {.start = begin, .targets = count - 1});
    return turn == 0;
  });
  const Turn taken = windows.Take(0);
  windows.RequireRead();
  return Copy(taken[0]);
}

inline std::vector<std::int32_t> AllTokens(const TokenFile& file, Split split) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < file.Size(split); ++i)
    tokens.push_back(file.View(split, i, 1, false).Id(0));
  return tokens;
}

// The message of the Error that `body` throws, after checking its exit code; "" for none.
inline std::string MessageOf(const std::function<void()>& body,
                             ExitCode code = ExitCode::kBadInput) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), code) << error.what();
    return error.what();
  }
  return "";
}

// A schema and a deck of "section.key=value" texts, which must be kept together.
struct TestDeck {
  explicit TestDeck(const std::vector<std::string>& values) {
    Declare(schema);
    deck = deck::Deck::Parse(schema, "", "test.in", values);
  }
  deck::Schema schema;
  deck::Deck deck;
};

// Texts of the tests of parallel tokenisation: a tokenizer of bytes, documents as lists of strings,
// packed files.

// An id for each byte, 256 at the end of a document, 257 before each.
class ByteTokenizer : public data::Tokenizer {
 public:
  const char* Kind() const override { return "bpe"; }
  const data::Files& Source() const override { return files_; }
  std::int64_t VocabularySize() const override { return 258; }
  std::string Piece(std::int32_t id) const override {
    return id < 256 ? std::string(1, static_cast<char>(id)) : id == 256 ? "<end>" : "<begin>";
  }
  std::optional<std::int32_t> IdOf(std::string_view) const override { return std::nullopt; }
  std::optional<std::int32_t> Eos() const override { return 256; }
  std::optional<std::int32_t> Unk() const override { return std::nullopt; }
  void Encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    longest = std::max(longest, text.size());
    if (text.find(refused) != std::string_view::npos) throw InputError("no entry");
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  }
  void Template(std::vector<std::int32_t>& prefix, std::vector<std::int32_t>&) const override {
    prefix.push_back(257);
  }
  std::string Decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) text += Piece(id);
    return text;
  }
  std::size_t SafeCut(std::string_view text) const override { return cuts ? text.size() - 1 : 0; }

  std::size_t longest = 0;  // text that was encoded at once
  char refused = '\0';
  bool cuts = true;

 private:
  data::Files files_ = {{"tokenizer.json", "{}"}};
};

// Whole documents as they come.
class Collector : public DocumentSink {
 public:
  void Text(std::string_view piece, std::int64_t offset) override {
    if (open.empty()) begins.push_back(offset);
    open += piece;
  }
  void End() override {
    if (!open.empty()) documents.push_back(open);
    open.clear();
  }
  std::vector<std::string> documents;
  std::vector<std::int64_t> begins;
  std::string open;
};

inline std::string Gzip(const std::string& text) {
  std::string packed(compressBound(text.size()) + 64, '\0');
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

inline std::string Zstd(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 1));
  return packed;
}

class Texts : public Scratch {
 protected:
  // Documents of a file that is cut into ranges of `range` bytes, in order.
  std::vector<std::string> Documents(const std::string& name, DocumentEnd document,
                                     std::int64_t range) const {
    const std::vector<TextFile> files = FindTextFiles(In(name), Split::kTrain);
    Collector collector;
    for (const TextUnit& unit : CutIntoUnits(files, document, range)) {
      ForEachDocument(files.at(0), unit, document, collector, [](std::int64_t) {});
    }
    EXPECT_EQ(collector.open, "");
    return collector.documents;
  }

  // Tokenises into `a.h5`.
  TextTokens Run(const TextPlan& plan) {
    const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
    return TokenizeTexts(self, tokenizer, plan, In("a.h5"), {});
  }

  // A plan with a text for each split.
  TextPlan PlanOf(const std::string& train) {
    TextPlan plan;
    plan.encode.eos = {256};
    plan.files = FindTextFiles(train, Split::kTrain);
    Write("held_out", "xy");
    for (const Split split : {Split::kValid, Split::kTest}) {
      plan.files.push_back(FindTextFiles(In("held_out"), split).at(0));
    }
    return plan;
  }

  // A dataset of a.h5.
  template <typename T>
  std::vector<T> Values(const std::string& name, hid_t type) const {
    const hid_t file = H5Fopen(In("a.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
    const hid_t set = H5Dopen2(file, name.c_str(), H5P_DEFAULT);
    const hid_t space = H5Dget_space(set);
    std::vector<T> values(static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)));
    EXPECT_GE(H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
    H5Sclose(space);
    H5Dclose(set);
    H5Fclose(file);
    return values;
  }
  std::string Train() const {
    const auto ids = Values<std::int32_t>("/train/tokens", H5T_NATIVE_INT32);
    return tokenizer.Decode(ids);
  }

  ByteTokenizer tokenizer;
};

}  // namespace trireme::data
