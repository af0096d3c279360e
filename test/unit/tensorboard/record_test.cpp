// Framing of event files against known vectors, and what a reader makes of damage.
#include "event_files.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "folder_test.hpp"

namespace trireme::report {
namespace {

// RFC 3720, appendix B.4, and the check value of the Rocksoft catalogue.
TEST(Record, Crc32cHasTheKnownValues) {
  EXPECT_EQ(Crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(Crc32c(std::string(32, '\xFF')), 0x62A8AB43U);
  std::string bytes(32, '\0');
  std::iota(bytes.begin(), bytes.end(), '\0');
  EXPECT_EQ(Crc32c(bytes), 0x46DD794EU);
  std::ranges::reverse(bytes);
  EXPECT_EQ(Crc32c(bytes), 0x113FDB5CU);
  EXPECT_EQ(Crc32c(""), 0U);
}

// The bytes that TensorBoard's own writer gives.
TEST(Record, IsFramedAsTensorBoardDoesIt) {
  EXPECT_EQ(Masked(Crc32c("123456789")), 0xC78AB0E5U);
  std::string record;
  AppendRecord("foo", record);
  const unsigned char expected[] = {0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xb0, 0x99,
                                    0x49, 0x0e, 0x66, 0x6f, 0x6f, 0x61, 0x8a, 0xbe, 0xfe};
  EXPECT_EQ(record, std::string(reinterpret_cast<const char*>(expected), sizeof expected));
}

class RecordFile : public test::FolderTest {
 protected:
  std::string Write(const std::string& bytes) const {
    test::WriteBytes(In("records"), bytes);
    return In("records");
  }
};

TEST_F(RecordFile, ReadsWhatWasAppended) {
  std::string bytes;
  const std::string large(100000, 'x');
  for (const std::string& payload : {std::string("one"), std::string(), large}) {
    AppendRecord(payload, bytes);
  }
  RecordReader reader(Write(bytes));
  EXPECT_EQ(reader.Next(), "one");
  EXPECT_EQ(reader.End(), 19);
  EXPECT_EQ(reader.Next(), "");
  EXPECT_EQ(reader.Next(), large);
  EXPECT_EQ(reader.Next(), std::nullopt);
  EXPECT_EQ(reader.End(), static_cast<std::int64_t>(bytes.size()));
  EXPECT_FALSE(reader.Failed());
}

// A file that was cut off anywhere within its second record ends after the first one.
TEST_F(RecordFile, EndsAtATornRecord) {
  std::string bytes;
  AppendRecord("first", bytes);
  const std::size_t whole = bytes.size();
  AppendRecord("second", bytes);
  for (std::size_t size = whole; size < bytes.size(); ++size) {
    RecordReader reader(Write(bytes.substr(0, size)));
    EXPECT_EQ(reader.Next(), "first");
    EXPECT_EQ(reader.Next(), std::nullopt) << size;
    EXPECT_EQ(reader.End(), static_cast<std::int64_t>(whole));
  }
}

// One bit of the second record, whichever: its length, a checksum or its payload.
TEST_F(RecordFile, EndsAtADamagedRecord) {
  std::string bytes;
  AppendRecord("first", bytes);
  const std::size_t whole = bytes.size();
  AppendRecord("second", bytes);
  AppendRecord("third", bytes);
  for (std::size_t at = whole; at < whole + 22; ++at) {
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    RecordReader reader(Write(damaged));
    EXPECT_EQ(reader.Next(), "first");
    EXPECT_EQ(reader.Next(), std::nullopt) << at;
    EXPECT_EQ(reader.Next(), std::nullopt) << at;
    EXPECT_EQ(reader.End(), static_cast<std::int64_t>(whole));
  }
}

TEST_F(RecordFile, SaysThatAFileCannotBeRead) {
  RecordReader reader(In("none"));
  EXPECT_TRUE(reader.Failed());
  EXPECT_EQ(reader.Next(), std::nullopt);
}

}  // namespace
}  // namespace trireme::report
