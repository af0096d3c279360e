// Texts and their tokens: what is read, what is refused, and the files that are written.
#include <cstdlib>

#include "folders.hpp"
#include "scratch.hpp"
#include "trireme/data/tokenize.hpp"

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Errors in texts, by file and offset; and invalid UTF-8 that is replaced.

class TextErrors : public Texts {
 protected:
  // The message about a training text of that name; nothing is left behind.
  std::string Fault(const std::string& name, const std::string& text) {
    Write(name, text);
    const std::string message = MessageOf([&] { Run(PlanOf(In(name))); });
    EXPECT_FALSE(std::filesystem::exists(In("a.h5")));
    EXPECT_FALSE(std::filesystem::exists(In("a.h5.tmp")));
    return message;
  }
};

// Python's bytes.decode("utf-8", "replace") gives the same.
TEST_F(TextErrors, Utf8IsReplacedAsUnicodeRecommends) {
  const std::string bad = "\xEF\xBF\xBD";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\xC3\xA9", "\xC3\xA9"},
      {"a\x80z", "a" + bad + "z"},
      {"\xE2\x82", bad},
      {"\xE2\x82z", bad + "z"},
      {"\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80"},
      {"\xF0\x9F\x98", bad},
      {"\xF0\x9F\xF0\x9F\x98\x80", bad + "\xF0\x9F\x98\x80"},
      {"\xED\xA0\x80", bad + bad + bad},
      {"\xC0\xAF", bad + bad},
      {"\xE0\x80\xAF", bad + bad + bad},
      {"\xF4\x90\x80\x80", bad + bad + bad + bad},
      {"\xF5\xFF", bad + bad},
      {"\xE2\xE2\x82\xAC", bad + "\xE2\x82\xAC"},
  };
  for (const auto& [text, expected] : cases) {
    for (std::size_t step = 1; step <= text.size(); ++step) {
      Collector collector;
      Utf8Filter filter(collector, "a", true);
      for (std::size_t at = 0; at < text.size(); at += step) {
        filter.Text(std::string_view(text).substr(at, step), static_cast<std::int64_t>(at));
      }
      filter.End();
      ASSERT_EQ(collector.documents.size(), 1U);
      EXPECT_EQ(collector.documents[0], expected) << "in pieces of " << step;
    }
  }
}

TEST_F(TextErrors, InvalidUtf8IsNamedWithItsOffset) {
  EXPECT_THAT(Fault("b", "abc\xFF"), HasSubstr(In("b") + ": byte 0xff at offset 3 is not valid"));
  EXPECT_THAT(Fault("b.jsonl", "{\"text\": \"a\"}\n{\"text\": \"\xC3\"}"),
              AllOf(HasSubstr("byte 0xc3 at offset 24"), HasSubstr("It is on line 2")));
  EXPECT_THAT(Fault("b.gz", Gzip("\xE2\x82")),
              AllOf(HasSubstr("byte 0xe2 at offset 0"),
                    HasSubstr("To see it: zcat " + In("b.gz") + " | tail -c +1 | head -n 1")));
  // At the end of a read buffer.
  const std::string edge((std::size_t{1} << 20) - 1, 'x');
  EXPECT_THAT(Fault("b", edge + "\xC3z"), HasSubstr("byte 0xc3 at offset 1048575"));
  TextPlan plan = PlanOf(Write("b", edge + "\xC3z"));
  plan.replace = true;
  EXPECT_EQ(Run(plan).replaced, 1);
  EXPECT_EQ(Train(), "<begin>" + edge + "\xEF\xBF\xBDz<end>");
}

TEST_F(TextErrors, Records) {
  EXPECT_THAT(Fault("b.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"\n"),
              AllOf(HasSubstr(In("b.jsonl") + ": record at byte 14"),
                    HasSubstr("It is on line 2 of the file.")));
  EXPECT_THAT(Fault("b.jsonl", "{\"text\": \"a\"}\n[1]"),
              HasSubstr("an object expected, [1] found"));
  EXPECT_THAT(Fault("b.jsonl", "{\"txt\": \"a\"}"), HasSubstr("the record has no \"text\""));
  EXPECT_THAT(Fault("b.jsonl", "{\"text\": 5}"), HasSubstr("\"text\" is not a text but 5"));
  const std::vector<std::pair<std::string, std::string>> broken = {
      {"{", "it ends where '\"' is expected"},
      {"{\"a\" 1}", "byte 5: not valid JSON: ':' is expected"},
      {"{\"a\": }", "a value is expected"},
      {"{\"a\": [1, {\"b\": 2]}}", "'}' is expected"},
      {"{\"a\": [1", "']' is missing"},
      {"{\"a\": \"x\\", "the end of a text is missing"},
      {"{\"a\": \"x\\\"}", "the end of a text is missing"},
      {"{\"text\": \"x", "the end of a text is missing"},
      {"{\"text\": \"x\\q\"}", "an escape that JSON does not have"},
      {"{\"text\": \"x\\u12g4\"}", "four hexadecimal digits expected"},
      {"{\"text\": \"x\ty\"}", "a control character in a text"},
      {"{\"text\": \"x\", \"t\\u0065xt\": \"y\"}", "\"text\" is named twice"},
      {"{\"text\": \"x\"} {", "text after the record's end"},
      {"{\"text\": [\"x\"]}", "\"text\" is not a text but [\"x\"]"},
      {"{\"text\": NaN}", "\"text\" is not a text but NaN"},
      {"{\"text\": \"x\\ud83d.\"}", "\\ud83d is half of a surrogate pair"},
  };
  for (const auto& [record, message] : broken) {
    EXPECT_THAT(Fault("b.jsonl", record), HasSubstr(message)) << record;
  }
}

// tokenize.text_key = a.b; null and missing texts.
TEST_F(TextErrors, TextsOfObjectsWithinAndMissingOnes) {
  EXPECT_THAT(
      Fault("b.jsonl", "{\"text\": null}"),
      AllOf(HasSubstr("\"text\" is not a text but null"), HasSubstr("tokenize.missing = skip")));
  TextPlan plan =
      PlanOf(Write("b.jsonl",
                   "{\"a\": {\"c\": 1, \"b\": \"one\"}}\n{\"a\": 5}\n{\"a\": {\"b\": null}}\n{}\n"
                   "{\"a\": {\"a.b\": \"no\"}, \"a.b\": \"two\"}\n"));
  plan.keys.text = "a.b";
  EXPECT_THAT(MessageOf([&] { Run(plan); }),
              HasSubstr("record at byte 28: the record has no \"a.b\""));
  plan.keys.skip_missing = true;
  const TextTokens done = Run(plan);
  EXPECT_EQ(done.missing, 3);
  EXPECT_EQ(done.documents[0], 2);
  EXPECT_EQ(Train(), "<begin>one<end><begin>two<end>");
  plan.keys.text = "a";
  EXPECT_THAT(MessageOf([&] { Run(plan); }), HasSubstr("\"a\" is not a text but"));
}

// Of files that were joined: at the beginning and after an end of line, also over the end of a
// buffer.
TEST_F(TextErrors, MarksOfByteOrderAreNoText) {
  const std::string mark = "\xEF\xBB\xBF", inside = "a" + mark + "b";
  for (const std::size_t before : {1, 1048571, 1048572, 1048573, 1048574, 1048575, 1048576}) {
    const std::string text = std::string(before, 'x') + "\n";
    Run(PlanOf(Write("b", mark + text + mark + inside + "\n" + mark)));
    EXPECT_EQ(Train(), "<begin>" + text + inside + "\n<end>") << before;
  }
  TextPlan plan = PlanOf(Write("b", mark + "a\n" + mark + "b\n"));
  plan.document = DocumentEnd::kLine;
  Run(plan);
  EXPECT_EQ(Train(), "<begin>a<end><begin>b<end>");
  Run(PlanOf(Write("b.jsonl", mark + "{\"text\": \"a\"}\n" + mark + "{\"text\": \"b\"}\n")));
  EXPECT_EQ(Train(), "<begin>a<end><begin>b<end>");
}

// Half surrogates follow tokenize.invalid; members that are not wanted are not judged; records
// without text are counted.
TEST_F(TextErrors, RecordsThatAreMended) {
  TextPlan plan = PlanOf(Write(
      "b.jsonl",
      "{\"a\": NaN, \"b\": 1e999, \"c\": 1, \"c\": [\"}\", {\"x\\\"\": \"\\ud83d\"}], \"text\": "
      "\"a\\ud83d\\ude00 \\ud83d. \\ude00\\ud83d\\u0041\\n\\\"\"}\n{\"text\": \"\"}\n{ \"text\" : "
      "\"\" , "
      "\"a\" : { } }\n{\"text\": \"z\"}\n"));
  plan.replace = true;
  const TextTokens done = Run(plan);
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(Train(),
            "<begin>a\xF0\x9F\x98\x80 " + bad + ". " + bad + bad + "A\n\"<end><begin>z<end>");
  EXPECT_EQ(done.replaced, 3);
  EXPECT_EQ(done.empty, 2);
}

// Faults of the tokenizer itself, and documents that it cannot take, are named with their place.
TEST_F(TextErrors, WhatTheTokenizerRefusesIsNamed) {
  tokenizer.refused = 'q';
  EXPECT_THAT(Fault("b.jsonl", "{\"text\": \"a\"}\n{\"text\": \"q\"}"),
              HasSubstr("b.jsonl: record at byte 14: no entry"));
  EXPECT_THAT(Fault("b", "aq"), HasSubstr("b: document at byte 0: no entry"));
  tokenizer.cuts = false;
  const std::string longest(std::size_t{17} << 20, 'x');
  EXPECT_THAT(Fault("b", longest), AllOf(HasSubstr("b: the document at byte 0 has 16 MiB"),
                                         HasSubstr("tokenize.document = line")));
  EXPECT_THAT(Fault("b.jsonl", "\n{\"text\": \"" + longest + "\"}"),
              AllOf(HasSubstr("b.jsonl: the record at byte 1 has 16 MiB"),
                    Not(HasSubstr("tokenize.document"))));
}

TEST_F(TextErrors, DamagedAndMissingFiles) {
  const std::string packed = Gzip("text of some length"), framed = Zstd("text of some length");
  EXPECT_THAT(Fault("b.gz", packed.substr(0, packed.size() - 9)), HasSubstr("the end is missing"));
  EXPECT_THAT(Fault("b.zst", framed.substr(0, framed.size() - 2)), HasSubstr("the end is missing"));
  EXPECT_THAT(Fault("b.gz", "plain"), HasSubstr("b.gz: is damaged"));
  EXPECT_THAT(Fault("b.zst", "plain"), HasSubstr("b.zst: is damaged"));
  EXPECT_THAT(Fault("b", ""), HasSubstr("the train split holds 0 tokens"));
  EXPECT_THAT(MessageOf([&] { FindTextFiles(In("*.none"), Split::kTrain); }),
              HasSubstr("*.none: no file matches"));
  EXPECT_THAT(MessageOf([&] { FindTextFiles(In("none"), Split::kTrain); }),
              HasSubstr("there is no such file"));
  EXPECT_THAT(MessageOf([&] { FindTextFiles(In(""), Split::kTrain); }), HasSubstr("is not a file"));
  EXPECT_THAT(MessageOf([&] { FindTextFiles(Write("b.parquet", "PAR1"), Split::kTrain); }),
              AllOf(HasSubstr("b.parquet: "), HasSubstr("vis/parquet_to_jsonl.py")));
  EXPECT_THAT(MessageOf([&] { FindTextFiles(Write("b.jsonl.xz", "x"), Split::kTrain); }),
              AllOf(HasSubstr("b.jsonl.xz: "), HasSubstr(".gz or .zst")));
  EXPECT_THAT(MessageOf([&] { FindTextFiles(" ,", Split::kTrain); }),
              HasSubstr("no file is named"));
  TextPlan plan = PlanOf(Write("b", "some text"));
  Write("b", "some");
  EXPECT_THAT(MessageOf([&] { Run(plan); }), HasSubstr("changed while it was read"));
}

TEST_F(TextErrors, FilesAreKnownByTheirContents) {
  const auto said = [&](const std::string& name, const std::string& bytes) {
    return MessageOf([&] { FindTextFiles(Write(name, bytes), Split::kTrain); });
  };
  EXPECT_THAT(said("a.txt", "BZh91AY"), HasSubstr("a.txt: is bzip2, which is not read"));
  EXPECT_THAT(said("a.txt", "PK\x03\x04zip"), HasSubstr("is zip"));
  EXPECT_THAT(said("a", "\x1F\x9D\x90"), HasSubstr("is compress (.Z)"));
  EXPECT_THAT(said("a.jsonl", "PAR1"),
              AllOf(HasSubstr("is Parquet"), HasSubstr("parquet_to_jsonl")));
  EXPECT_THAT(said("a.txt",
                   "\xFF\xFE"
                   "a"),
              AllOf(HasSubstr("is UTF-16"), HasSubstr("iconv")));
  std::string wide;
  for (const char c : std::string("text of two bytes a character")) wide += {c, '\0'};
  EXPECT_THAT(said("a.txt", wide),
              HasSubstr("is UTF-16, which is not read: every second byte is NUL"));
  std::string tar(512, '\0');
  tar.replace(0, 5, "a.txt");
  tar.replace(257, 5, "ustar");
  EXPECT_THAT(said("a", tar), HasSubstr("is a tar archive"));
  EXPECT_THAT(said("a.tgz", Gzip(tar)), HasSubstr("is a tar archive"));
  EXPECT_THAT(said("a.gz", Gzip(wide)), HasSubstr("is UTF-16"));
  EXPECT_THAT(said("a.json", "\n[{\"text\": 1}]"), HasSubstr("one record per line is read"));
  EXPECT_THAT(said("a.jsonl", "{\n \"text\": 1\n}\n"), HasSubstr("records over several lines"));
  EXPECT_THAT(MessageOf([&] { FindTextFiles(In("**/x"), Split::kTrain); }),
              HasSubstr("'**' does not stand for folders"));

  const auto found = [&](const std::string& name, const std::string& bytes) {
    return FindTextFiles(Write(name, bytes), Split::kTrain).at(0);
  };
  EXPECT_EQ(found("b.GZ", Gzip("text")).packing, Packing::kGzip);
  EXPECT_EQ(found("b.txt", Gzip("text")).packing, Packing::kGzip);
  EXPECT_EQ(found("b", Zstd("text")).packing, Packing::kZstd);
  EXPECT_TRUE(found("b.JSONL.GZ", Gzip("{}")).json_lines);
  EXPECT_EQ(found("b.txt", "text").packing, Packing::kNone);
  EXPECT_EQ(found("b.txt", std::string(100, '\0')).packing, Packing::kNone);  // bytes of any kind
}

TEST_F(TextErrors, CommasInNamesAndTextsThatComeTwice) {
  Write("one, two.txt", "a");
  const std::string plain = Write("plain.txt", "a");
  std::filesystem::create_hard_link(plain, In("linked.txt"));
  const auto files = FindTextFiles(In("one\\, two.txt") + "," + plain, Split::kTrain);
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].path, In("one, two.txt"));
  EXPECT_TRUE(NamedTwice(files).empty());
  auto all = FindTextFiles(plain + "," + plain, Split::kTrain);
  for (TextFile& file : FindTextFiles(In("linked.txt"), Split::kValid)) all.push_back(file);
  EXPECT_EQ(NamedTwice(all),
            (std::vector<std::string>{plain + ": the same text twice in the train split",
                                      plain + ", " + In("linked.txt") +
                                          ": the same text in the train and the valid split"}));
}

// At any time, while texts are read and while the token file is written.
TEST_F(TextErrors, AStoppedJobLeavesNothing) {
  const TextPlan plan = PlanOf(Write("b", std::string(std::size_t{5} << 20, 'x')));
  const comm::Communicator self = comm::Communicator::Adopt(MPI_COMM_SELF);
  int asked = 0;
  TokenizeTexts(self, tokenizer, plan, In("a.h5"), {.stop = [&] { return ++asked < 0; }});
  EXPECT_GT(asked, 10);
  std::filesystem::remove(In("a.h5"));
  for (int last = asked; last > 0; --last) {
    int left = last;
    const TextWatch watch{.stop = [&] { return --left == 0; }};
    EXPECT_THAT(MessageOf([&] { TokenizeTexts(self, tokenizer, plan, In("a.h5"), watch); },
                          ExitCode::kFailed),
                HasSubstr("stopped by a signal"));
    const std::filesystem::directory_iterator files(folder_);
    EXPECT_EQ(std::distance(begin(files), end(files)), 2) << "stopped at question " << last;
  }
}

// Texts of any size to token files: documents and where they are cut, splits, masks, packed files.

// Texts whose lines and paragraphs fall on the ends of ranges in every way.
const std::vector<std::string> kTexts = {
    "",
    "\n\n",
    "one",
    "one\n",
    "one\ntwo\r\n\nthree\n\n\n",
    "\n\nfirst\nsecond\n \t\nthird\r\n\r\nfourth\r\nfifth",
    "a\n\nb\n\nc\nd\ne\n\n\n\n\nf\n\ng",
    "a line that is longer than most of the ranges\n\nx\ny\nanother one that is long, too\nz",
};

TEST_F(Texts, RangesOfAnySizeGiveTheSameDocuments) {
  for (std::size_t i = 0; i < kTexts.size(); ++i) {
    Write("a", kTexts[i]);
    for (const DocumentEnd end : {DocumentEnd::kLine, DocumentEnd::kBlankLine}) {
      const auto whole = Documents("a", end, 1'000);
      for (int range = 1; range < 60; ++range) {
        EXPECT_EQ(Documents("a", end, range), whole) << "text " << i << ", range " << range;
      }
    }
  }
}

TEST_F(Texts, Documents) {
  Write("a", kTexts[5]);
  EXPECT_THAT(Documents("a", DocumentEnd::kLine, 1'000),
              ElementsAre("first", "second", " \t", "third", "fourth", "fifth"));
  EXPECT_THAT(Documents("a", DocumentEnd::kBlankLine, 1'000),
              ElementsAre("first\nsecond", "third", "fourth\r\nfifth"));
  EXPECT_THAT(Documents("a", DocumentEnd::kFile, 3), ElementsAre(kTexts[5]));
  Write("b", "\xEF\xBB\xBFmark\nline");
  EXPECT_THAT(Documents("b", DocumentEnd::kFile, 3), ElementsAre("mark\nline"));
  EXPECT_THAT(Documents("b", DocumentEnd::kLine, 4), ElementsAre("mark", "line"));
}

// Lines and paragraphs beyond the buffers of a MiB, with an end of line across two of them.
TEST_F(Texts, LongLines) {
  constexpr std::size_t kBuffer = std::size_t{1} << 20;
  const std::string line(3 * kBuffer + 7, 'x'), other(kBuffer - 1, 'y');
  Write("a", other + "\r\n" + line + "\n\n" + other);
  for (const std::int64_t range : {std::int64_t{1} << 30, std::int64_t{400'000}}) {
    EXPECT_THAT(Documents("a", DocumentEnd::kLine, range), ElementsAre(other, line, other));
    EXPECT_THAT(Documents("a", DocumentEnd::kBlankLine, range),
                ElementsAre(other + "\r\n" + line, other));
  }
}

TEST_F(Texts, PackedFilesOfSeveralMembers) {
  std::string text;
  for (std::int64_t i = 0; i < 300'000; ++i) text += std::to_string(i * 7919) + "\n";
  Write("a", text);
  // Zeros fill the last block of a tape.
  Write("a.gz", Gzip(text.substr(0, 1'000)) + Gzip(text.substr(1'000)) + std::string(700, '\0'));
  Write("a.zst", Zstd(text.substr(0, 5'000)) + Zstd(text.substr(5'000)));
  const auto documents = Documents("a", DocumentEnd::kLine, 100'000);
  EXPECT_EQ(documents.size(), 300'000U);
  EXPECT_EQ(Documents("a.gz", DocumentEnd::kLine, 100'000), documents);
  EXPECT_EQ(Documents("a.zst", DocumentEnd::kLine, 100'000), documents);
}

TEST_F(Texts, TokenFile) {
  Write("1.txt", "a b\nc");
  Write("2.jsonl", "{\"text\": \"d\\u00e9\", \"n\": 1}\n\n{\"text\": \"\"}\n{\"text\": \"e\"}");
  Write("3.txt", "");
  const TextTokens done = Run(PlanOf(In("*.txt") + " , " + In("2.jsonl")));
  EXPECT_EQ(Train(), "<begin>a b\nc<end><begin>d\xC3\xA9<end><begin>e<end>");
  EXPECT_THAT(Values<std::uint64_t>("/train/documents", H5T_NATIVE_UINT64), ElementsAre(0, 7, 12));
  EXPECT_THAT(Values<std::int32_t>("/test/tokens", H5T_NATIVE_INT32),
              ElementsAre(257, 'x', 'y', 256));
  EXPECT_THAT(Values<std::uint8_t>("/tokenizer/tokenizer.json", H5T_NATIVE_UINT8),
              ElementsAre('{', '}'));
  EXPECT_THAT(done.texts[0].tokens, ElementsAre(15, 4, 4));
  EXPECT_THAT(done.documents, ElementsAre(3, 1, 1));
  const TokenCounts counts = CountTokens(In("a.h5"));
  EXPECT_EQ(counts.vocabulary, 258);
  EXPECT_TRUE(counts.documents[0]);
  EXPECT_FALSE(counts.masks[0]);
  EXPECT_FALSE(std::filesystem::exists(In("a.h5.tmp")));
}

TEST_F(Texts, PromptsAreMasked) {
  Write("a.jsonl", "{\"ask\": \"12\", \"say\": \"345\"}\n{\"ask\": \"\", \"say\": \"6\"}\n");
  TextPlan plan = PlanOf(In("a.jsonl"));
  plan.keys = {"say", "ask"};
  plan.encode.masks = true;
  Run(plan);
  EXPECT_EQ(Train(), "<begin>12345<end><begin>6<end>");
  EXPECT_THAT(Values<std::uint8_t>("/train/mask", H5T_NATIVE_UINT8),
              ElementsAre(0, 0, 0, 1, 1, 1, 1, 0, 1, 1));
  EXPECT_THAT(Values<std::uint8_t>("/valid/mask", H5T_NATIVE_UINT8), ElementsAre(1, 1, 1, 1));
}

// The size of the units, and so of the pieces that are written, changes nothing.
TEST_F(Texts, SplitsByHash) {
  std::string text;
  for (int i = 0; i < 4'000; ++i) text += "document " + std::to_string(i) + "\n";
  Write("a", text);
  TextPlan plan;
  plan.files = FindTextFiles(In("a"), Split::kTrain);
  plan.document = DocumentEnd::kLine;
  plan.encode = {.eos = {256}, .masks = false, .valid_fraction = 0.2, .test_fraction = 0.1};
  const TextTokens done = Run(plan);
  EXPECT_NEAR(static_cast<double>(done.documents[1]), 800, 80);
  EXPECT_NEAR(static_cast<double>(done.documents[2]), 400, 60);
  EXPECT_EQ(done.documents[0] + done.documents[1] + done.documents[2], 4'000);
  const auto train = Values<std::int32_t>("/train/tokens", H5T_NATIVE_INT32);
  const auto valid = Values<std::uint64_t>("/valid/documents", H5T_NATIVE_UINT64);
  plan.unit_bytes = 1'000;
  Run(plan);
  EXPECT_EQ((Values<std::int32_t>("/train/tokens", H5T_NATIVE_INT32)), train);
  EXPECT_EQ((Values<std::uint64_t>("/valid/documents", H5T_NATIVE_UINT64)), valid);
}

// A corpus of few documents fills all splits: the smallest hashes go where there is none.
TEST_F(Texts, FewDocumentsFillAllSplits) {
  for (const int documents : {3, 4, 20}) {
    std::string text;
    for (int i = 0; i < documents; ++i) text += "document " + std::to_string(i) + "\n";
    TextPlan plan;
    plan.encode = {.eos = {256}, .valid_fraction = 1e-9, .test_fraction = 1e-9};
    plan.files = FindTextFiles(Write("few", text), Split::kTrain);
    plan.document = DocumentEnd::kLine;
    const TextTokens done = Run(plan);
    EXPECT_THAT(done.documents, ElementsAre(documents - 2, 1, 1));
    const std::string train = Train();
    const auto valid = Values<std::int32_t>("/valid/tokens", H5T_NATIVE_INT32);
    EXPECT_EQ(train.find(tokenizer.Decode(valid)), std::string::npos);
    // Cut into other units, the choice is the same.
    plan.unit_bytes = 7;
    Run(plan);
    EXPECT_EQ(Train(), train);
    EXPECT_EQ(Values<std::int32_t>("/valid/tokens", H5T_NATIVE_INT32), valid);
  }
}

TEST_F(Texts, TooFewDocumentsAreRefusedWithAdvice) {
  TextPlan plan;
  plan.encode = {.eos = {256}, .valid_fraction = 0.1, .test_fraction = 0.1};
  plan.files = FindTextFiles(Write("few", "one\ntwo"), Split::kTrain);
  EXPECT_THAT(MessageOf([&] { Run(plan); }),
              testing::AllOf(testing::HasSubstr("1 document of tokenize.train"),
                             testing::HasSubstr("tokenize.document = line or blank_line")));
}

// The hash of the only document may name any split: the reason stays the same.
TEST_F(Texts, OneDocumentIsTooFewWhicheverSplitItGoesTo) {
  for (int i = 0; i < 40; ++i) {
    TextPlan plan;
    plan.encode = {.eos = {256}, .valid_fraction = 0.3, .test_fraction = 0.3};
    plan.files = FindTextFiles(Write("one", "text " + std::to_string(i)), Split::kTrain);
    EXPECT_THAT(
        MessageOf([&] { Run(plan); }),
        testing::HasSubstr("The texts are 1 document of tokenize.train, too few to share out: "
                           "tokenize.document = line or blank_line makes more of plain text; or "
                           "name tokenize.valid and tokenize.test."));
  }
}

TEST_F(Texts, MovesTakeTheSmallestHashAndLeaveNoSplitEmpty) {
  const auto document = [](std::uint64_t hash, Split split) {
    return HashedDocument{.hash = hash, .tokens = 5, .split = split};
  };
  const std::array<bool, 3> all = {true, true, true};
  SplitSizes sizes{.tokens = {10, 0, 10}, .documents = {2, 0, 2}};
  const auto moves = MovesToEmptySplits({document(9, Split::kTrain), document(8, Split::kTrain),
                                         document(2, Split::kTest), document(1, Split::kTest)},
                                        all, sizes);
  ASSERT_EQ(moves.size(), 1U);
  EXPECT_EQ(moves[0].document.hash, 1U);
  EXPECT_EQ(moves[0].to, Split::kValid);
  EXPECT_THAT(sizes.documents, ElementsAre(2, 1, 1));
  // Nothing is taken from a split that has one document, nor for a split that has texts of its own.
  sizes = {.tokens = {5, 5, 0}, .documents = {1, 1, 0}};
  EXPECT_TRUE(
      MovesToEmptySplits({document(1, Split::kTrain), document(2, Split::kValid)}, all, sizes)
          .empty());
  sizes = {.tokens = {10, 0, 0}, .documents = {2, 0, 0}};
  EXPECT_TRUE(MovesToEmptySplits({document(1, Split::kTrain), document(2, Split::kTrain)},
                                 {true, false, false}, sizes)
                  .empty());
}

TEST_F(Texts, ALongDocumentIsEncodedInPieces) {
  constexpr std::size_t kMebibyte = std::size_t{1} << 20;
  const std::string text(9 * kMebibyte + 3, 'x');
  Write("a", text);
  Run(PlanOf(In("a")));
  EXPECT_LE(tokenizer.longest, 3 * kMebibyte);
  EXPECT_EQ(Train(), "<begin>" + text + "<end>");
}

TEST_F(Texts, RanksGetAllUnitsInLikeShares) {
  std::vector<TextFile> files(2);
  files[0].bytes = 1'000;
  files[1] = {.path = "b.gz", .packing = Packing::kGzip, .bytes = 100};
  const auto units = CutIntoUnits(files, DocumentEnd::kLine, 100);
  EXPECT_EQ(units.size(), 11U);
  std::vector<std::size_t> all;
  for (int rank = 0; rank < 3; ++rank) {
    const auto mine = UnitsOfRank(units, files, rank, 3);
    EXPECT_GE(mine.size(), 2U);
    all.insert(all.end(), mine.begin(), mine.end());
  }
  std::sort(all.begin(), all.end());
  EXPECT_THAT(all, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
}

// Tokenisers: WikiText's published counts, small texts by hand, and every refusal.

using Ids = std::vector<std::int32_t>;

TokenData TokenizeDeck(const std::vector<std::string>& keys) {
  const TestDeck test(keys);
  return Tokenize(ReadTokenize(test.deck), test.deck, test.deck.Text("data.file"));
}

class Tokenizing : public Scratch {
 protected:
  // Tokenises three texts with more keys.
  TokenData Texts(const std::string& train, const std::string& valid, const std::string& test,
                  std::vector<std::string> keys = {}) const {
    keys.push_back("tokenize.train=" + Write("train.txt", train));
    keys.push_back("tokenize.valid=" + Write("valid.txt", valid));
    keys.push_back("tokenize.test=" + Write("test.txt", test));
    return TokenizeDeck(keys);
  }
  static std::string Fails(const std::vector<std::string>& keys) {
    return MessageOf([&] { TokenizeDeck(keys); });
  }
};

// The words that ids stand for, joined by blanks.
std::string Spell(const TokenData& data, Split split) {
  std::string text;
  for (const std::int32_t id : data.tokens[static_cast<std::size_t>(split)]) {
    text += data.vocabulary.words[static_cast<std::size_t>(id)] + " ";
  }
  return text;
}

TEST_F(Tokenizing, WordsLinesAndUnknownWords) {
  const TokenData data = Texts(" the ship \n\nthe\tsea the\n", "ship boat", "sea\n");
  EXPECT_EQ(Spell(data, Split::kTrain), "the ship <eos> <eos> the sea the <eos> ");
  EXPECT_EQ(Spell(data, Split::kValid), "ship <unk> <eos> ");  // the last line needs no end
  EXPECT_EQ(Spell(data, Split::kTest), "sea <eos> ");
  // By falling frequency, ties by bytes.
  EXPECT_THAT(data.vocabulary.words, ElementsAre("<eos>", "the", "sea", "ship", "<unk>"));
  EXPECT_EQ(data.vocabulary.eos, 0);
  EXPECT_EQ(data.vocabulary.unk, 4);
  EXPECT_EQ(data.tokenizer, "word");
  EXPECT_FALSE(data.entropy_rate.has_value());
}

TEST_F(Tokenizing, MinCountTurnsRareWordsToUnk) {
  const TokenData data = Texts("a a b b c\na b <unk>\n", "a c\n", "b\n", {"tokenize.min_count=2"});
  EXPECT_EQ(Spell(data, Split::kTrain), "a a b b <unk> <eos> a b <unk> <eos> ");
  EXPECT_EQ(Spell(data, Split::kValid), "a <unk> <eos> ");
  EXPECT_THAT(data.vocabulary.words, ElementsAre("a", "b", "<eos>", "<unk>"));
}

TEST_F(Tokenizing, LowercaseBeyondAscii) {
  const TokenData data =
      Texts("Der ÄRGER ΣΟΦΙΑ Москва\n", "der\n", "Ärger\n", {"tokenize.lowercase=yes"});
  EXPECT_EQ(Spell(data, Split::kTrain), "der ärger σοφια москва <eos> ");
  EXPECT_EQ(Spell(data, Split::kTest), "ärger <eos> ");
  EXPECT_EQ(data.tokenizer, "word lowercase");
}

TEST_F(Tokenizing, WindowsTextsGiveTheSameTokens) {
  const TokenData unix = Texts("a b\nc\n", "a\n", "b\n");
  const TokenData windows = Texts(
      "\xEF\xBB\xBF"
      "a b\r\nc\r\n",
      "a\r\n", "b\r\n");
  EXPECT_EQ(unix.tokens, windows.tokens);
  EXPECT_EQ(unix.vocabulary.words, windows.vocabulary.words);
  EXPECT_NE(unix.source_sha256, windows.source_sha256);
}

TEST_F(Tokenizing, Bytes) {
  const TokenData data = Texts("a\xFF\n", "bc", "\n\n", {"tokenize.kind=byte"});
  EXPECT_EQ(data.tokens[0], (Ids{97, 255, 10}));
  EXPECT_EQ(data.tokens[1], (Ids{98, 99}));
  EXPECT_EQ(data.vocabulary.words.size(), 256u);
  EXPECT_EQ(data.vocabulary.words[200], "\xC8");
  EXPECT_EQ(data.vocabulary.eos, 10);
  EXPECT_EQ(data.vocabulary.unk, -1);
  WriteTokenFile(In("bytes.h5"), data, false);
  const TokenFile file = Open(In("bytes.h5"));
  EXPECT_EQ(file.Encode("a\xFF"), (Ids{97, 255}));
  EXPECT_EQ(file.Decode({104, 105, 10}), "hi\n");
}

TEST_F(Tokenizing, SourceSha256IsOfTheTextsInOrder) {
  // printf "abc d\n" | sha256sum
  EXPECT_EQ(Texts("ab", "c ", "d\n").source_sha256,
            "0d503f118067abbfdc80d6e72113acb66fce5b9e645a7f5a0f4aa4d74f3a5844");
}

TEST_F(Tokenizing, BadUtf8IsLocated) {
  EXPECT_THAT(MessageOf([&] { Texts("ok\nfine \xC3(\n", "a\n", "b\n"); }),
              HasSubstr(In("train.txt") + ":2: byte 0xc3 at offset 8 is not valid UTF-8"));
  // Overlong, surrogate, beyond U+10FFFF, cut off.
  for (const std::string bad : {"\xC0\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xE2\x82"}) {
    EXPECT_THAT(MessageOf([&] { Texts("a b\n", "x" + bad, "b\n"); }),
                HasSubstr("valid.txt:1: byte"));
  }
}

TEST_F(Tokenizing, MissingEmptyAndShortTexts) {
  const std::string text = "tokenize.train=" + Write("a.txt", "a b\n");
  EXPECT_THAT(Fails({}), AllOf(HasSubstr("tokenize.train"), HasSubstr("needs a text")));
  EXPECT_THAT(Fails({text, "tokenize.valid=" + In("a.txt")}), HasSubstr("tokenize.test"));
  EXPECT_THAT(Fails({"tokenize.train=" + In("none.txt")}), HasSubstr("there is no such file"));
  EXPECT_THAT(Fails({"tokenize.train=" + folder_}), HasSubstr("is not a file"));
  EXPECT_THAT(Fails({text, "tokenize.valid=" + Write("empty.txt", "")}),
              AllOf(HasSubstr("tokenize.valid"), HasSubstr("the file is empty")));
  EXPECT_THAT(MessageOf([&] { Texts("\n", "a\n", "b\n"); }), HasSubstr("at least 2"));
  const Locked locked(folder_, 0);
  ASSERT_TRUE(locked.Good());
  EXPECT_THAT(Fails({text}),
              AllOf(HasSubstr("tokenize.train"), HasSubstr("cannot be read: Permission denied")));
}

// Lists, globs, packed texts and records, as the other kinds read them.
TEST_F(Tokenizing, WordsAndBytesReadAllInputs) {
  for (const std::string kind : {"word", "byte"}) {
    const std::vector<std::string> rest = {"tokenize.kind=" + kind,
                                           "tokenize.valid=" + Write("v.txt", "a b\n"),
                                           "tokenize.test=" + Write("t.txt", "b a\n")};
    const auto tokens = [&](const std::string& train,
                            const std::string& more = "tokenize.text_key=text") {
      std::vector<std::string> keys = rest;
      keys.push_back("tokenize.train=" + train);
      keys.push_back(more);
      return TokenizeDeck(keys);
    };
    const TokenData whole = tokens(Write("whole.txt", "a b\nb c\nlast a\n"));
    Write("part1.txt", "a b\n");
    Write("part2.txt", "b c");  // without an end of line
    Write("part3.txt", "last a\n");
    for (const std::string& train :
         {In("part1.txt") + ", " + In("part2.txt") + "," + In("part3.txt"), In("part*.txt"),
          Write("packed.txt", Gzip("a b\nb c\nlast a\n")),
          Write("records.jsonl", "{\"text\": \"a b\"}\n{\"text\": \"b c\\nlast a\"}\n")}) {
      const TokenData data = tokens(train);
      EXPECT_EQ(data.tokens, whole.tokens) << kind << " " << train;
      EXPECT_EQ(data.source_sha256, whole.source_sha256) << kind << " " << train;
    }
    EXPECT_EQ(tokens(Write("others.jsonl", "{\"body\": \"a b\\nb c\\nlast a\"}"),
                     "tokenize.text_key=body")
                  .tokens,
              whole.tokens);
  }
}

TEST_F(Tokenizing, KeysThatDoNotFitAreRefused) {
  const std::string train = "tokenize.train=" + Write("a.txt", "a b\n");
  EXPECT_THAT(Fails({"tokenize.kind=harbour", train}),
              AllOf(HasSubstr("tokenize.train"), HasSubstr("makes its own text")));
  EXPECT_THAT(Fails({"tokenize.kind=harbour", "tokenize.min_count=2"}), HasSubstr("kind = word"));
  EXPECT_THAT(Fails({"tokenize.kind=byte", train, "tokenize.lowercase=yes"}),
              HasSubstr("bytes are taken as they are"));
  EXPECT_THAT(Fails({train, "tokenize.harbour_seed=2"}), HasSubstr("kind = harbour"));
  EXPECT_THAT(Fails({"tokenize.min_count=0"}), HasSubstr("tokenize.min_count"));
  EXPECT_THAT(Fails({"tokenize.harbour_tokens=1099511627777"}),
              HasSubstr("between 2 and 1099511627776"));
  EXPECT_THAT(Fails({"data.batch=0"}), HasSubstr("data.batch"));
  for (const std::string key : {"sequence_length", "stride", "batch", "micro_batch"}) {
    EXPECT_THAT(Fails({"data." + key + "=2147483648"}), HasSubstr("and 2147483647")) << key;
    EXPECT_THAT(Fails({"data." + key + "=2147483647"}), testing::Not(HasSubstr("data."))) << key;
  }
  EXPECT_THAT(Fails({"tokenize.kind=letters"}), HasSubstr("not one of"));
}

TEST_F(Tokenizing, HarbourFillsItsFacts) {
  const std::vector<std::string> keys = {"tokenize.kind=harbour", "tokenize.harbour_tokens=3000",
                                         "tokenize.harbour_seed=5"};
  const TokenData data = TokenizeDeck(keys);
  EXPECT_EQ(data.tokens[0].size(), 3000u);
  EXPECT_EQ(data.tokens[1].size(), 300u);
  EXPECT_EQ(data.tokens[2].size(), 300u);
  EXPECT_EQ(data.tokenizer, "harbour");
  EXPECT_EQ(data.harbour_seed, 5);
  ASSERT_TRUE(data.entropy_rate.has_value());
  EXPECT_GT(*data.entropy_rate, 0);
  EXPECT_EQ(data.source_sha256.size(), 64u);
  EXPECT_NE(Ids(data.tokens[0].begin(), data.tokens[0].begin() + 300), data.tokens[1]);
}

TEST_F(Tokenizing, WikiText2HasThePublishedCounts) {
  const char* shared = std::getenv("TRIREME_SHARED");
  const std::string folder = std::string(shared == nullptr ? "" : shared) + "/data/wikitext-2/";
  if (!std::filesystem::exists(folder + "train.txt")) {
    GTEST_SKIP() << "WikiText-2 is not in '" << folder << "' (TRIREME_SHARED): counts not checked";
  }
  const TokenData data = TokenizeDeck({"tokenize.train=" + folder + "train.txt",
                                       "tokenize.valid=" + folder + "valid.txt",
                                       "tokenize.test=" + folder + "test.txt"});
  EXPECT_EQ(data.tokens[0].size(), 2'088'628u);
  EXPECT_EQ(data.tokens[1].size(), 217'646u);
  EXPECT_EQ(data.tokens[2].size(), 245'569u);
  EXPECT_EQ(data.vocabulary.words.size(), 33'278u);
  EXPECT_EQ(data.vocabulary.words[0], "the");
  WriteTokenFile(In("wikitext2.h5"), data, false);
  const TokenFile file = Open(In("wikitext2.h5"));
  EXPECT_EQ(AllTokens(file, Split::kTest), data.tokens[2]);
  EXPECT_EQ(file.MemoryBytes() / 2 / 1000, 2551);  // uint16: two bytes a token
}

}  // namespace
}  // namespace trireme::data
