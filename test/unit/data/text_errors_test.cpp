// Errors in texts, by file and offset; and invalid UTF-8 that is replaced.
#include "text_fixture.hpp"

namespace trireme::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

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
              HasSubstr("byte 0xc3 at offset 24"));
  EXPECT_THAT(Fault("b.gz", Gzip("\xE2\x82")), HasSubstr("byte 0xe2 at offset 0"));
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
              HasSubstr(In("b.jsonl") + ": record at byte 14"));
  EXPECT_THAT(Fault("b.jsonl", "{\"text\": \"a\"}\n[1]"),
              HasSubstr("an object expected, [1] found"));
  EXPECT_THAT(Fault("b.jsonl", "{\"txt\": \"a\"}"), HasSubstr("the record has no \"text\""));
  EXPECT_THAT(Fault("b.jsonl", "{\"text\": 5}"), HasSubstr("\"text\" is no text but 5"));
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
      {"{\"text\": [\"x\"]}", "\"text\" is no text but [\"x\"]"},
      {"{\"text\": NaN}", "\"text\" is no text but NaN"},
      {"{\"text\": \"x\\ud83d.\"}", "\\ud83d is half of a surrogate pair"},
  };
  for (const auto& [record, message] : broken) {
    EXPECT_THAT(Fault("b.jsonl", record), HasSubstr(message)) << record;
  }
}

// tokenize.text_key = a.b; null and missing texts.
TEST_F(TextErrors, TextsOfObjectsWithinAndMissingOnes) {
  EXPECT_THAT(Fault("b.jsonl", "{\"text\": null}"), AllOf(HasSubstr("\"text\" is no text but null"),
                                                          HasSubstr("tokenize.missing = skip")));
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
  EXPECT_THAT(MessageOf([&] { Run(plan); }), HasSubstr("\"a\" is no text but"));
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
  EXPECT_THAT(said("a.json", "\n[{\"text\": 1}]"), HasSubstr("one record a line is read"));
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

}  // namespace
}  // namespace trireme::data
