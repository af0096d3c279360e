// A temporary folder for each test, with small token data, files and decks.
#ifndef TRIREME_TEST_UNIT_DATA_SCRATCH_HPP_
#define TRIREME_TEST_UNIT_DATA_SCRATCH_HPP_

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mpi.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "folder_test.hpp"
#include "trireme/base/error.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/data/tokenize.hpp"
#include "trireme/data/windows.hpp"

namespace trireme::data {

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

// Tokens [begin, begin + count) of a split, in memory or streamed.
inline Window ReadOne(const TokenFile& file, Split split, std::int64_t begin, std::int64_t count) {
  const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
  Windows windows(file, split, self, [&](std::int64_t turn, std::vector<Sample>& samples) {
    samples.assign(1, {.start = begin, .targets = count - 1});
    return turn == 0;
  });
  const std::span<const Window> taken = windows.Take(0);
  windows.RequireRead();
  return taken.front();
}

inline std::vector<std::int32_t> AllTokens(const TokenFile& file, Split split) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < file.Size(split); ++i) tokens.push_back(file.Token(split, i));
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

}  // namespace trireme::data

#endif  // TRIREME_TEST_UNIT_DATA_SCRATCH_HPP_
