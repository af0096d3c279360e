// Contents of a run's records, kept in bounded memory while they are read.
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
    kBehind,      // more can be read at once
    kCaughtUp,
  };
  struct Visit {
    // A whole line without its newline. One longer than kMaxLine is passed as empty.
    std::function<void(std::string_view line)> line;
    // The file begins anew: it was replaced, cut, or has other bytes where it was read last.
    std::function<void()> restart;
  };
  static constexpr std::int64_t kMaxLine = std::int64_t{1} << 20;    // bytes
  static constexpr std::int64_t kReadBytes = std::int64_t{4} << 20;  // of one call of Read

  explicit FollowedFile(std::string path) : path_(std::move(path)) {}

  // Looks at the file and reads on. The end of a last line without a newline waits for the rest.
  State Read(const Visit& visit);

  const std::string& Path() const { return path_; }
  const std::string& Reason() const { return reason_; }
  double Fraction() const;  // read so far, of the bytes that were there at the last look
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
  std::int64_t offset_ = 0;  // read so far
  std::int64_t size_ = 0, modified_ = 0;
  std::string last_bytes_;      // read before offset_, to know the file again
  std::string begun_;           // of a line whose newline is not there yet
  bool begun_is_long_ = false;  // and its bytes are dropped
  std::string buffer_;
};

// Lines of a file that were seen, so that those of a file cut and replaced are not told again.

// A file that begins anew holds some of the old lines, in their order, then new ones: a run that is
// resumed leaves out what came after its checkpoint. Eight bytes a line.
class KnownLines {
 public:
  void BeginAnew() { next_ = 0, again_ = !hashes_.empty(); }
  // True for a line that was not seen before the file began anew.
  bool IsNew(std::string_view line);

 private:
  std::vector<std::uint64_t> hashes_;
  std::size_t next_ = 0;  // of the old lines, not met again yet
  bool again_ = false;    // old lines may still come
};

// Text from files made harmless for a terminal.

// The text as valid UTF-8 in one line: newlines and tabs become blanks; other control characters
// (C0, DEL, C1), separators of lines, controls of direction and bytes that are no UTF-8 become
// U+FFFD. Cut to `most` characters, the last of which is then an ellipsis.
std::string OneLine(std::string_view text, std::size_t most = 400);

// Characters of valid UTF-8 as wide ones.
std::wstring Wide(std::string_view text);

// A quantity over the steps of a run in bounded memory, for a line of small bars.

class Curve {
 public:
  // Steps come in ascending order; one that comes again takes back all from there on. A value that
  // is not finite is remembered as such.
  void Add(std::int64_t step, double value);
  void Clear() { *this = {}; }
  bool Empty() const { return buckets_.empty(); }

  // At most `columns` bars from the first step to the last, each of equally many records: means of
  // the values on a scale from the least to the most of them; '!' where a value was not finite.
  // blocks: of Unicode's block elements, else of ASCII.
  std::string Bars(int columns, bool blocks) const;

 private:
  struct Bucket {
    std::int64_t number = 0;  // of the bucket: step / width_
    double sum = 0;
    std::int64_t count = 0;  // of finite values
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
  std::int64_t width_ = 1;       // steps of a bucket
  std::int64_t last_ = 0;        // step
};

// The length of the training by the run's deck; 0: not said.
struct Schedule {
  std::int64_t steps = 0;
  double epochs = 0;
  std::int64_t stop_at = 0;
};
// Reads the text of a deck.in.
Schedule ReadSchedule(const std::string& deck);

// Losses of a validation set, nats per token.
struct Validation {
  double last = NAN, best = NAN;
  std::int64_t last_step = 0, best_step = 0;
};

struct Happening {
  std::int64_t step = 0;
  std::string name, text;
};

// A run at a glance; NaN and empty texts: not known.
struct Glance {
  std::int64_t step = 0, total_steps = 0;  // total_steps 0: not known
  bool about = false;                      // total_steps is an estimate
  double epoch = NAN, loss = NAN, learning_rate = NAN, grad_norm = NAN;
  double loss_least = NAN, loss_most = NAN;  // since the line before the last one
  double tokens_per_second = NAN, step_seconds = NAN, roof_fraction = NAN;  // of the last steps
  double seconds_left = NAN;
  double bad_steps = 0;
  double memory_bytes = NAN;  // of the largest rank
  std::string memory_place;   // "rank 3 on node17"
  double joules = NAN;        // of all intervals that say
  bool some_joules = false;   // other intervals do not
  double joules_per_token = NAN, watts_per_node = NAN, gpu_utilisation = NAN;
  double gpu_memory_bytes = NAN;
};

class RunState {
 public:
  // A line of metrics.jsonl. One that is no record is counted as damaged.
  void Take(std::string_view line);
  void Clear() { *this = RunState(); }

  Glance Look(const Schedule& schedule) const;
  const Curve& Losses() const { return losses_; }
  // By name; the set that decides on the best checkpoint is the first, whatever its name.
  const Validation& Decider() const { return decider_; }
  const std::map<std::string, Validation>& OtherSets() const { return others_; }
  double Test() const { return test_; }                                // NaN: not there
  const std::deque<Happening>& LastEvents() const { return events_; }  // the newest first
  std::int64_t Records() const { return records_; }
  std::int64_t Damaged() const { return damaged_; }
  bool Done() const { return done_; }
  bool Stopped() const { return stopped_; }  // and not gone on with

 private:
  struct Steps {  // of one record
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
  std::string last_step_, last_interval_;  // lines
  std::array<Steps, kRecent> recent_ = {};
  std::size_t next_recent_ = 0;
  double step_seconds_ = 0;   // of all steps
  double other_seconds_ = 0;  // of validations and checkpoints
  double joules_ = 0;
  std::int64_t intervals_with_joules_ = 0, intervals_ = 0;
};

// The number after `key` ("\"loss\":") in a line as our own writer makes it, without parsing the
// rest: a quote within a text of JSON has a backslash before it, so that the key cannot stand in
// one. NaN for null; nothing if there is no such key or no whole number there.
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

// A record of metrics.jsonl as a line of text.

// "step 100  epoch 0.39  loss 6.8102 ...": one line without a newline, of printable text. A line
// that is no record becomes "unreadable: a line of 12 bytes".
std::string RecordLine(std::string_view line);

// A run that is watched: its folder, the file of its records, and what they say.

struct FollowedRun {
  // path: a run folder, or the file itself. Throws InputError if it is not there.
  explicit FollowedRun(const std::string& path);

  // Reads on, at most for `seconds`. True if more is there to be read.
  bool ReadOn(double seconds);

  std::string name;    // printable
  std::string folder;  // with deck.in
  FollowedFile file;
  FollowedFile::State condition = FollowedFile::State::kMissing;
  RunState state;
  Schedule schedule;

 private:
  void ReadDeck();
  std::int64_t deck_date_ = -1;  // modification of the deck that was read, nanoseconds
};

// The view of several runs as lines of text, for any size of a terminal.

inline constexpr std::int64_t kQuiet = 60;  // seconds without a record after which it is said

struct Row {
  std::string text;     // printable UTF-8, perhaps wider than the terminal
  bool strong = false;  // a heading
};

struct Frame {
  int rows = 24, columns = 80;
  std::int64_t first = 0;  // run at the top, of those that do not fit at once
  std::int64_t now = 0;    // seconds since 1970
  bool blocks = true;      // Unicode's block elements can be shown
};

// At most frame.rows rows. Each run has equally many; those with few show what matters most.
std::vector<Row> LayOut(const std::vector<const FollowedRun*>& runs, const Frame& frame);
// Runs that one frame of so many rows shows.
std::int64_t RunsThatFit(std::int64_t runs, int rows);

// The terminal as ncurses drives it. Only terminal.cpp includes its header, whose names are many.

class Terminal {
 public:
  enum class Key { kNone, kQuit, kUp, kDown, kOther };

  // Whether a person sits at standard input and output.
  static bool IsThere();

  // Takes the terminal over; Open() is false if its kind is not known.
  Terminal();
  ~Terminal();  // gives it back as it was
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  bool Open() const { return screen_ != nullptr; }
  bool Blocks() const { return blocks_; }  // Unicode can be shown
  // Sets the size of a frame to the terminal's.
  void Measure(Frame& frame) const;
  void Show(const std::vector<Row>& rows);
  // Waits for a key, a signal or a change of size, at most so long. kQuit also if the terminal has
  // gone.
  Key Wait(double seconds);

 private:
  void* screen_ = nullptr;  // ncurses' SCREEN
  bool blocks_ = false;
};

}  // namespace trireme::tools
