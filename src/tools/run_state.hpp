// State of a run, built from its records in bounded memory; views of it for a terminal.
#pragma once

#include <sys/stat.h>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/files.hpp"
#include "trireme/deck/json_text.hpp"

namespace trireme::tools {

// A file of lines that another program appends to, cuts and replaces.

class FollowedFile {
 public:
  enum class State {
    kMissing,
    kUnreadable,  // Reason() says why
    kBehind,      // more can be read now
    kCaughtUp,
  };
  struct Visit {
    // Called with a whole line, without its newline; with "" if it is longer than kMaxLine.
    std::function<void(std::string_view line)> line;
    // Called when the file begins anew: it was replaced, cut, or changed where it was last read.
    std::function<void()> restart;
  };
  static constexpr std::int64_t kMaxLine = std::int64_t{1} << 20;    // bytes
  static constexpr std::int64_t kReadBytes = std::int64_t{4} << 20;  // at most, per call of Read

  explicit FollowedFile(std::string path) : path_(std::move(path)) {}

  // Checks the file and reads on. A last line without a newline waits until it is complete.
  State Read(const Visit& visit);

  const std::string& Path() const { return path_; }
  const std::string& Reason() const { return reason_; }
  double Fraction() const;  // bytes read so far, as a fraction of the size at the last look
  std::int64_t ModifiedAt() const { return modified_; }  // seconds since 1970; 0: never seen

 private:
  bool Open(const Visit& visit);
  bool Continues() const;
  void BeginAnew(const Visit& visit);
  void Take(std::string_view bytes, const Visit& visit);
  State Fail(int error);

  std::string path_, reason_;
  std::optional<Descriptor> file_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::int64_t offset_ = 0;  // bytes read so far
  std::int64_t size_ = 0, modified_ = 0;
  std::string last_bytes_;      // the bytes before offset_, to recognise the file
  std::string begun_;           // the beginning of a line whose newline has not come yet
  bool begun_is_long_ = false;  // that line is too long: its bytes are dropped
  std::string buffer_;
};

// Remembers a file's lines, so that a file that was cut or replaced does not report them again.

// A file that begins anew holds some of the old lines in their order, then new ones: a resumed run
// drops what came after its checkpoint. Takes eight bytes per line.
class KnownLines {
 public:
  void BeginAnew() { next_ = 0, again_ = !hashes_.empty(); }
  // Whether the line is new, that is, was not seen before the file began anew.
  bool IsNew(std::string_view line);

 private:
  std::vector<std::uint64_t> hashes_;
  std::size_t next_ = 0;  // index of the first old line that has not come again
  bool again_ = false;    // old lines may still come
};

// Text from files, made harmless for a terminal.

// The text as one line of valid UTF-8: newlines and tabs become blanks; other control characters
// (C0, DEL, C1), line separators, direction controls and invalid bytes become U+FFFD. A text of
// more than `most` characters is cut, with an ellipsis as its last character.
std::string OneLine(std::string_view text, std::size_t most = 400);

// Wide characters of a valid UTF-8 text.
std::wstring Wide(std::string_view text);

// A quantity over a run's steps in bounded memory, shown as a line of small bars.

class Curve {
 public:
  // Steps ascend; adding an earlier step again first removes the buckets from that step on. Values
  // that are not finite are remembered as such.
  void Add(std::int64_t step, double value);
  void Clear() { *this = {}; }
  bool Empty() const { return buckets_.empty(); }

  // At most `columns` bars from the first step to the last; each shows the mean of about equally
  // many steps, scaled between the smallest and largest mean; '!' if a value was not finite.
  // blocks: use Unicode's block elements, else ASCII.
  std::string Bars(int columns, bool blocks) const;

 private:
  struct Bucket {
    std::int64_t number = 0;  // step / width_
    double sum = 0;
    std::int64_t count = 0;  // number of finite values
    bool bad = false;

    double Mean() const { return sum / static_cast<double>(count); }
    Bucket& operator+=(const Bucket& other) {
      sum += other.sum;
      count += other.count;
      bad = bad || other.bad;
      return *this;
    }
  };
  static constexpr std::size_t kMostBuckets = 4096;
  void Halve();

  std::vector<Bucket> buckets_;  // in the order of steps
  std::int64_t width_ = 1;       // steps per bucket
  std::int64_t last_ = 0;        // last step added
};

// Length of the training according to the run's deck; 0: not given.
struct Schedule {
  std::int64_t steps = 0;
  double epochs = 0;
  std::int64_t stop_at = 0;
};
// Reads the text of a deck.in.
Schedule ReadSchedule(const std::string& deck);

// Losses on a validation set, nats per token.
struct Validation {
  double last = NAN, best = NAN;
  std::int64_t last_step = 0, best_step = 0;
};

struct Happening {
  std::int64_t step = 0;
  std::string name, text;
};

// A run at a glance; NaN or empty: not known.
struct Glance {
  std::int64_t step = 0, total_steps = 0;  // total_steps 0: not known
  bool about = false;                      // total_steps is an estimate
  double epoch = NAN, loss = NAN, learning_rate = NAN, grad_norm = NAN;
  double loss_least = NAN, loss_most = NAN;  // in the last recorded interval
  double tokens_per_second = NAN, step_seconds = NAN, roof_fraction = NAN;  // over the last steps
  double seconds_left = NAN;
  double bad_steps = 0;
  double memory_bytes = NAN;  // on the rank that uses most
  std::string memory_place;   // "rank 3 on node17"
  double joules = NAN;        // sum over all intervals with a reading
  bool some_joules = false;   // some intervals have no reading
  double joules_per_token = NAN, watts_per_node = NAN, gpu_utilisation = NAN;
  double gpu_memory_bytes = NAN;
};

class RunState {
 public:
  // Takes a line of metrics.jsonl. A line that is no record is counted as damaged.
  void Take(std::string_view line);
  void Clear() { *this = RunState(); }

  Glance Look(const Schedule& schedule) const;
  const Curve& Losses() const { return losses_; }
  // The validation set that decides on the best checkpoint; OtherSets: all others, by name.
  const Validation& Decider() const { return decider_; }
  const std::map<std::string, Validation>& OtherSets() const { return others_; }
  double Test() const { return test_; }                                // test loss; NaN: not there
  const std::deque<Happening>& LastEvents() const { return events_; }  // the newest first
  std::int64_t Records() const { return records_; }
  std::int64_t Damaged() const { return damaged_; }
  bool Done() const { return done_; }
  bool Stopped() const { return stopped_; }  // and not resumed since

 private:
  struct Steps {  // steps covered by one record
    std::int64_t last = 0, count = 0;
    double seconds = 0, tokens = 0;
  };
  static constexpr std::size_t kRecent = 64;
  static constexpr std::size_t kEvents = 32;

  bool TakeStep(std::string_view line);
  bool TakeInterval(std::string_view line);
  bool TakeOther(std::string_view line);
  void TakeValidation(const nlohmann::json& record, std::int64_t step);
  void TakeEvent(const nlohmann::json& record, std::int64_t step);
  Steps LastSteps() const;

  Curve losses_;
  Validation decider_;
  std::map<std::string, Validation> others_;
  double test_ = NAN;
  std::deque<Happening> events_;
  std::int64_t records_ = 0, damaged_ = 0;
  bool done_ = false, stopped_ = false;
  std::int64_t step_ = 0;
  std::string last_step_, last_interval_;  // the last lines of their kinds
  std::array<Steps, kRecent> recent_ = {};
  std::size_t next_recent_ = 0;
  double step_seconds_ = 0;   // sum over all steps
  double other_seconds_ = 0;  // in validations and checkpoints
  double joules_ = 0;
  std::int64_t intervals_with_joules_ = 0, intervals_ = 0;
};

// The number after `key` ("\"loss\":") in a line of our own writer, without parsing the line.
// Quotes within JSON texts follow a backslash, so the key cannot occur inside a text. NaN for null;
// nullopt if the key is missing or no complete number follows.
inline std::optional<double> NumberAfter(std::string_view line, std::string_view key) {
  const std::size_t at = line.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  const char* const begin = line.data() + at + key.size();
  const char* const end = line.data() + line.size();
  if (std::string_view(begin, end).starts_with("null")) return NAN;
  double value = 0;
  const auto [after, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || after == end || (*after != ',' && *after != '}')) return std::nullopt;
  return value;
}

// RecordLine: shows a record of metrics.jsonl as a line of text.

// "step 100  epoch 0.39  loss 6.8102 ...": one printable line without a newline. For a line that is
// no record: "unreadable: a line of 12 bytes".
std::string RecordLine(std::string_view line);

// A run that is watched: its folder, its file of records, and the state that they give.

struct FollowedRun {
  // path: a run folder or its metrics.jsonl. Throws InputError if it does not exist.
  explicit FollowedRun(const std::string& path);

  // Reads new records for at most `seconds`. Returns whether more can be read at once.
  bool ReadOn(double seconds);

  std::string name;    // for printing: no control characters
  std::string folder;  // the folder with deck.in
  FollowedFile file;
  FollowedFile::State condition = FollowedFile::State::kMissing;
  RunState state;
  Schedule schedule;

 private:
  void ReadDeck();
  std::int64_t deck_date_ = -1;  // modification time of the deck read last, nanoseconds
};

// Lays out several runs as lines of text for a terminal of any size.

inline constexpr std::int64_t kQuiet = 60;  // seconds without a record: shown as quiet

struct Row {
  std::string text;     // printable UTF-8, perhaps wider than the terminal
  bool strong = false;  // a heading
};

struct Frame {
  int rows = 24, columns = 80;
  std::int64_t first = 0;  // index of the run at the top, if not all fit
  std::int64_t now = 0;    // seconds since 1970
  bool blocks = true;      // Unicode's block elements can be shown
};

// At most frame.rows rows, shared equally by the runs. A run with few rows shows what matters most.
std::vector<Row> LayOut(const std::vector<const FollowedRun*>& runs, const Frame& frame);
// Number of runs that fit into a frame of `rows` rows.
std::int64_t RunsThatFit(std::int64_t runs, int rows);

// The terminal, driven by ncurses. Only terminal.cpp includes ncurses.h, which defines many names.

class Terminal {
 public:
  enum class Key { kNone, kQuit, kUp, kDown, kOther };

  // Whether standard input and output are a terminal.
  static bool IsThere();

  // Takes over the terminal; Open() is false if its type is unknown.
  Terminal();
  ~Terminal();  // restores the terminal
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  bool Open() const { return screen_ != nullptr; }
  bool Blocks() const { return blocks_; }  // Unicode can be shown
  // Sets the size of a frame to the terminal's.
  void Measure(Frame& frame) const;
  void Show(const std::vector<Row>& rows);
  // Waits at most `seconds` for a key, signal or change of size. kQuit also if the terminal is
  // gone.
  Key Wait(double seconds);

 private:
  void* screen_ = nullptr;  // ncurses' SCREEN
  bool blocks_ = false;
};

}  // namespace trireme::tools
