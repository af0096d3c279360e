// Crash states of the checkpoint's file protocol: a model of what a disk may hold, and what is read
// from it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "call_record.hpp"
#include "checkpoint_fixture.hpp"
#include "folders.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/writer.hpp"

namespace trireme::test {

// Model of a file system that keeps what POSIX promises and nothing more: a file's data and size
// last once the file is synced, an entry of a folder once the folder is synced. Whatever is not
// synced yet may or may not be there after a crash, each change by itself.

// Contents of a folder: files, links and folders by relative path, a parent before its children.
struct Tree {
  struct Item {
    char kind = 'f';   // file, folder (d) or link (l)
    std::string text;  // a file's data, a link's target
    bool operator==(const Item&) const = default;
  };
  std::map<std::string, Item> items;

  static Tree Of(const std::string& folder);   // contents of a folder
  void Make(const std::string& folder) const;  // into an empty folder
  std::string Key() const;                     // equal for equal trees only
  std::string Describe() const;                // a line for each item
  bool operator==(const Tree&) const = default;
};

// Changes of objects by the calls of a record, in order.
class FileModel {
 public:
  // start: everything in it is on the disk. Throws std::runtime_error for a call on an object that
  // neither it nor the calls made.
  FileModel(const Tree& start, const std::vector<Call>& calls);

  // A number below the limit for each change that a crash after the first `calls` calls may lose:
  // 0 lost, 1 kept; of a write also 2: only its first half, 3: only the length that it gave.
  std::vector<int> Limits(std::size_t calls) const;
  // Tree after that crash. choices: one for each of Limits(calls). Sets `sane` to false for a
  // folder in two places, which no file system makes of these calls.
  Tree After(std::size_t calls, const std::vector<int>& choices, bool& sane) const;
  std::size_t Calls() const { return calls_; }

 private:
  static constexpr std::size_t kNever = static_cast<std::size_t>(-1);

  struct Entry {
    int folder = 0;
    std::string name;
    int object = -1;      // -1: no such entry any more
    bool synced = false;  // the folder was synced since
  };
  struct Change {
    std::size_t call = 0;         // index of the call that made it
    std::size_t synced = kNever;  // index of the call that made it last
    // Of entries, all together:
    std::vector<Entry> entries;
    // Of a file's content, where there are no entries:
    int file = -1;
    bool is_write = false;
    std::int64_t offset = 0;  // of a write; else the new size
    std::string data;
  };
  struct Object {
    char kind = 'd';
    std::string text;                  // before the first call
    std::map<std::string, int> names;  // of a folder
  };
  using Objects = std::vector<Object>;

  int Add(char kind, const std::string& text = {});
  void Apply(const Call& call, std::size_t index);
  void Sync(int object, std::size_t index);
  Entry Find(const std::string& path) const;  // as all calls so far left it
  void ChangeEntries(std::size_t index, std::vector<Entry> entries);
  static void ApplyEntries(const std::vector<Entry>& entries, Objects& objects);
  static void ApplyContent(const Change& change, int choice, std::string& text);
  static bool List(const Objects& objects, int folder, const std::string& prefix,
                   std::vector<int>& uses, Tree& tree);

  Objects start_;  // objects made later have no names
  Objects now_;    // after the calls so far
  std::vector<Change> changes_;
  std::size_t calls_ = 0;
};

// Changes that a record of calls makes, and the trees that a crash may leave of them.

namespace fs = std::filesystem;

using Kind = Call::Kind;

Tree Tree::Of(const std::string& folder) {
  Tree tree;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder).string();
    if (entry.is_symlink()) {
      tree.items[name] = {'l', fs::read_symlink(entry.path()).string()};
    } else if (entry.is_directory()) {
      tree.items[name] = {'d', {}};
    } else {
      tree.items[name] = {'f', ReadBytes(entry.path())};
    }
  }
  return tree;
}

void Tree::Make(const std::string& folder) const {
  for (const auto& [name, item] : items) {
    const std::string path = folder + "/" + name;
    if (item.kind == 'd') {
      fs::create_directory(path);
    } else if (item.kind == 'l') {
      fs::create_symlink(item.text, path);
    } else {
      std::ofstream(path, std::ios::binary) << item.text;
    }
  }
}

std::string Tree::Key() const {
  std::string key;
  for (const auto& [name, item] : items) {
    key += name + '\0' + item.kind + std::to_string(item.text.size()) + ':' + item.text;
  }
  return key;
}

std::string Tree::Describe() const {
  std::string text;
  for (const auto& [name, item] : items) {
    text += "    " + name;
    if (item.kind == 'l') text += " -> " + item.text;
    if (item.kind == 'd') text += "/";
    if (item.kind == 'f') {
      const auto zeros =
          static_cast<std::size_t>(std::count(item.text.begin(), item.text.end(), 0));
      text += " (" + std::to_string(item.text.size()) + " bytes, " + std::to_string(zeros) +
              " of them zero)";
    }
    text += "\n";
  }
  return text;
}

FileModel::FileModel(const Tree& start, const std::vector<Call>& calls) {
  Add('d');
  for (const auto& [path, item] : start.items) {
    const int object = Add(item.kind, item.text);
    const Entry at = Find(path);
    now_[static_cast<std::size_t>(at.folder)].names[at.name] = object;
  }
  start_ = now_;
  for (const Call& call : calls) Apply(call, calls_++);
}

int FileModel::Add(char kind, const std::string& text) {
  now_.push_back({kind, text, {}});
  start_.push_back(now_.back());
  return static_cast<int>(now_.size()) - 1;
}

FileModel::Entry FileModel::Find(const std::string& path) const {
  Entry entry{0, {}, 0};
  std::istringstream parts(path);
  for (std::string name; std::getline(parts, name, '/');) {
    if (entry.object < 0 || now_[static_cast<std::size_t>(entry.object)].kind != 'd') {
      throw std::runtime_error("the record names " + path + ", whose folder it never made");
    }
    const auto& names = now_[static_cast<std::size_t>(entry.object)].names;
    const auto found = names.find(name);
    entry = {entry.object, name, found == names.end() ? -1 : found->second};
  }
  return entry;
}

void FileModel::ApplyEntries(const std::vector<Entry>& entries, Objects& objects) {
  for (const Entry& entry : entries) {
    auto& names = objects[static_cast<std::size_t>(entry.folder)].names;
    if (entry.object < 0) {
      names.erase(entry.name);
    } else {
      names[entry.name] = entry.object;
    }
  }
}

void FileModel::ChangeEntries(std::size_t index, std::vector<Entry> entries) {
  ApplyEntries(entries, now_);
  Change change;
  change.call = index;
  change.entries = std::move(entries);
  changes_.push_back(std::move(change));
}

void FileModel::Sync(int object, std::size_t index) {
  for (Change& change : changes_) {
    if (change.synced != kNever) continue;
    bool done = !change.entries.empty() || change.file == object;
    for (Entry& entry : change.entries) {
      entry.synced = entry.synced || entry.folder == object;
      done = done && entry.synced;
    }
    if (done) change.synced = index;
  }
}

void FileModel::Apply(const Call& call, std::size_t index) {
  Entry at = Find(call.path);
  const auto require = [&](const Entry& entry, const std::string& path) {
    if (entry.object >= 0) return;
    throw std::runtime_error(std::string("the record has a ") + NameOf(call.kind) + " of " + path +
                             ", which it never made");
  };
  switch (call.kind) {
    case Kind::kCreate:
    case Kind::kMakeFolder:
    case Kind::kSymlink:
      at.object = Add(call.kind == Kind::kCreate    ? 'f'
                      : call.kind == Kind::kSymlink ? 'l'
                                                    : 'd',
                      call.other);
      return ChangeEntries(index, {at});
    case Kind::kLink: {
      const Entry from = Find(call.other);
      require(from, call.other);
      at.object = from.object;
      return ChangeEntries(index, {at});
    }
    case Kind::kRename: {
      require(at, call.path);
      Entry to = Find(call.other);
      to.object = std::exchange(at.object, -1);
      return ChangeEntries(index, {at, to});
    }
    case Kind::kRemove:
      require(at, call.path);
      at.object = -1;
      return ChangeEntries(index, {at});
    case Kind::kSync:
      require(at, call.path);
      return Sync(at.object, index);
    default:
      require(at, call.path);
  }
  Change change;
  change.call = index;
  change.file = at.object;
  change.is_write = call.kind == Kind::kWrite;
  change.offset = call.offset;
  change.data = call.data;
  changes_.push_back(std::move(change));
}

std::vector<int> FileModel::Limits(std::size_t calls) const {
  std::vector<int> limits;
  for (const Change& change : changes_) {
    if (change.call >= calls || change.synced < calls) continue;
    limits.push_back(change.is_write ? 4 : 2);
  }
  return limits;
}

void FileModel::ApplyContent(const Change& change, int choice, std::string& text) {
  if (choice == 0) return;
  const auto offset = static_cast<std::size_t>(change.offset);
  if (!change.is_write) {
    text.resize(offset);
    return;
  }
  const std::size_t size = choice == 2 ? change.data.size() / 2 : change.data.size();
  if (text.size() < offset + size) text.resize(offset + size);
  if (choice != 3) text.replace(offset, size, change.data, 0, size);
}

bool FileModel::List(const Objects& objects, int folder, const std::string& prefix,
                     std::vector<int>& uses, Tree& tree) {
  for (const auto& [name, index] : objects[static_cast<std::size_t>(folder)].names) {
    const Object& object = objects[static_cast<std::size_t>(index)];
    tree.items[prefix + name] = {object.kind, object.text};
    if (object.kind != 'd') continue;
    if (++uses[static_cast<std::size_t>(index)] > 1) return false;
    if (!List(objects, index, prefix + name + "/", uses, tree)) return false;
  }
  return true;
}

Tree FileModel::After(std::size_t calls, const std::vector<int>& choices, bool& sane) const {
  Objects objects = start_;
  std::size_t at = 0;
  for (const Change& change : changes_) {
    if (change.call >= calls) break;
    const int choice = change.synced < calls ? 1 : choices.at(at++);
    if (change.entries.empty()) {
      ApplyContent(change, choice, objects[static_cast<std::size_t>(change.file)].text);
    } else if (choice != 0) {
      ApplyEntries(change.entries, objects);
    }
  }
  Tree tree;
  std::vector<int> uses(objects.size());
  sane = List(objects, 0, {}, uses, tree);
  return tree;
}

}  // namespace trireme::test

namespace trireme::checkpoint::test {
namespace {

using trireme::test::Call;
using trireme::test::CallRecord;
using trireme::test::FileModel;
using trireme::test::Tree;

// Every state of the disk that a crash may leave while a checkpoint is written, rebuilt from the
// calls that the writer made: from none may the run's continuation fail or get other values than
// those of the last checkpoint or the one being written.
//   TRIREME_CRASH_STATES: most states of a scenario (40,000), many of them alike; above, a sample
//   TRIREME_CRASH_SEED: of that sample (1)

constexpr std::size_t kMostStates = 40'000;
constexpr std::size_t kWriteIntoEvery = 25;  // differing states; it takes as long as ten loads
constexpr int kShownFaults = 3;

std::size_t FromEnvironment(const char* name, std::size_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// A checkpoint with values of its own.
struct Version {
  std::int64_t step = 0;
  int id = 0;  // from 1 on; 0: no checkpoint
};

// A folder in memory if there is one, else where temporary files go.
class Folder {
 public:
  const std::string& Path() const { return path_; }
  void Clear() const {
    for (const fs::directory_entry& entry : fs::directory_iterator(path_)) {
      fs::remove_all(entry.path());
    }
  }

 private:
  TemporaryFolder folder_{fs::is_directory("/dev/shm") ? "/dev/shm" : fs::temp_directory_path()};
  std::string path_ = fs::canonical(folder_.Path()).string();
};

std::vector<TestTensor> ModelOf(int id) {
  std::vector<TestTensor> tensors = {{"weight", {7, 16}}, {"scale", {}}};
  for (TestTensor& tensor : tensors) tensor.scale = id + 1;
  return tensors;
}

class CrashStates : public testing::Test {
 protected:
  // A run folder's checkpoint as the driver writes one.
  void Save(const std::string& run, const Version& version, bool best = false,
            std::int64_t keep = 0) {
    TestState model(ModelOf(version.id)), moments(Moments(ModelOf(version.id)));
    model.Fill();
    moments.Fill();
    const nlohmann::json facts = {{"step", version.step}, {"version", version.id}};
    Write(self_, run + "/checkpoints", version.step, {model.Blocks(), moments.Blocks(), facts},
          best, keep);
  }

  // The version that a continuation of `run` starts from. Sets `fault` to what went wrong, but for
  // a clear word that there is no checkpoint.
  int Load(const std::string& run, std::string& fault) {
    try {
      const std::string path = Find(self_, run);
      const nlohmann::json facts = ReadRun(self_, path);
      const int id = facts.at("version").get<int>();
      TestState model(ModelOf(id)), moments(Moments(ModelOf(id)));
      ReadTensors(self_, path, "model", model.Blocks());
      ReadTensors(self_, path, "optimizer", moments.Blocks());
      if (model.Wrong() + moments.Wrong() > 0) fault = "tensors of another version than run.json";
      return id;
    } catch (const AgreedError& error) {
      const std::string text = error.what();
      const bool clear = error.Code() == ExitCode::kBadInput &&
                         text.find("holds no complete checkpoint") != std::string::npos;
      if (!clear) fault = text;
      return 0;
    } catch (const std::exception& error) {
      fault = error.what();
      return 0;
    }
  }

  // The write of `after` into what is in run_, and every crash on the way. last: version that
  // run_ has now, 0: none.
  void Check(int last, const Version& after, bool best, std::int64_t keep);

  comm::Communicator self_ = comm::Communicator::Adopt(MPI_COMM_SELF);
  Folder run_;

 private:
  struct State {
    std::size_t calls = 0;  // made before the crash
    std::vector<int> choices;
  };

  std::vector<Call> RecordWrite(const Version& after, bool best, std::int64_t keep, Tree& before);
  // Calls `visit` with the states after `calls` calls: all if there are at most `most`, else the
  // corners and a sample.
  template <typename Visit>
  void EachState(const FileModel& model, std::size_t calls, std::size_t most, const Visit& visit);
  void CheckState(const FileModel& model, const State& state);
  void WriteInto(const std::string& where);
  std::string Describe(const State& state, const Tree& tree) const;

  std::vector<Call> calls_;
  int last_ = 0;   // version of the newest checkpoint before the write
  Version after_;  // the one being written
  Folder crashed_;
  std::mt19937_64 random_;
  std::unordered_set<std::string> seen_;
  std::size_t states_ = 0;  // differing ones
  int faults_ = 0;
};

std::vector<Call> CrashStates::RecordWrite(const Version& after, bool best, std::int64_t keep,
                                           Tree& before) {
  before = Tree::Of(run_.Path());
  CallRecord record(run_.Path());
  Save(run_.Path(), after, best, keep);
  return record.Stop();
}

std::string CrashStates::Describe(const State& state, const Tree& tree) const {
  std::string text = "  crash after call " + std::to_string(state.calls) + " of " +
                     std::to_string(calls_.size()) + "; the last ones:\n";
  for (std::size_t i = state.calls < 12 ? 0 : state.calls - 12; i < state.calls; ++i) {
    text += std::string("    ") + NameOf(calls_[i].kind) + " " + calls_[i].path + " " +
            calls_[i].other + "\n";
  }
  text += "  choices for what was not synced:";
  for (const int choice : state.choices) text += " " + std::to_string(choice);
  return text + "\n  on the disk then:\n" + tree.Describe();
}

template <typename Visit>
void CrashStates::EachState(const FileModel& model, std::size_t calls, std::size_t most,
                            const Visit& visit) {
  const std::vector<int> limits = model.Limits(calls);
  double total = 1;
  for (const int limit : limits) total *= limit;
  State state{calls, std::vector<int>(limits.size(), 0)};
  if (total <= static_cast<double>(most)) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(total); ++i) {
      visit(state);
      for (std::size_t at = 0; at < limits.size() && ++state.choices[at] == limits[at]; ++at) {
        state.choices[at] = 0;
      }
    }
    return;
  }
  for (const int rest : {0, 1}) {
    state.choices.assign(limits.size(), rest);
    visit(state);
    for (std::size_t at = 0; at < limits.size(); ++at) {
      for (int choice = 0; choice < limits[at]; ++choice) {
        state.choices[at] = choice;
        if (choice != rest) visit(state);
      }
      state.choices[at] = rest;
    }
  }
  for (std::size_t i = 0; i < most; ++i) {
    for (std::size_t at = 0; at < limits.size(); ++at) {
      state.choices[at] = std::uniform_int_distribution<int>(0, limits[at] - 1)(random_);
    }
    visit(state);
  }
}

// A crashed run goes on: its next checkpoint must come into place.
void CrashStates::WriteInto(const std::string& where) {
  const Version next{after_.step + 1, after_.id + 1};
  std::string fault;
  try {
    Save(crashed_.Path(), next, false, 1);
    const int got = Load(crashed_.Path(), fault);
    if (fault.empty() && got != next.id) fault = "version " + std::to_string(got) + " is found";
  } catch (const std::exception& error) {
    fault = error.what();
  }
  if (fault.empty() || ++faults_ > kShownFaults) return;
  ADD_FAILURE() << "after the next checkpoint: " << fault << "\n" << where;
}

void CrashStates::CheckState(const FileModel& model, const State& state) {
  bool sane = true;
  const Tree tree = model.After(state.calls, state.choices, sane);
  const bool returned = state.calls == model.Calls();
  if (!sane || !seen_.insert((returned ? "after" : "within") + tree.Key()).second) return;
  ++states_;
  crashed_.Clear();
  tree.Make(crashed_.Path());
  std::string fault;
  const int got = Load(crashed_.Path(), fault);
  const bool allowed = got == after_.id || (!returned && got == last_);
  if (fault.empty() && !allowed) {
    fault = got == 0 ? "no complete checkpoint is found"
                     : "version " + std::to_string(got) + " is found";
  }
  if (!fault.empty()) {
    if (++faults_ <= kShownFaults) ADD_FAILURE() << fault << "\n" << Describe(state, tree);
    return;
  }
  if (states_ % kWriteIntoEvery == 0) WriteInto(Describe(state, tree));
}

void CrashStates::Check(int last, const Version& after, bool best, std::int64_t keep) {
  last_ = last;
  if (last != 0) {
    std::string fault;
    EXPECT_EQ(Load(run_.Path(), fault), last) << "before the write: " << fault;
  }
  after_ = after;
  Tree before;
  calls_ = RecordWrite(after, best, keep, before);
  const FileModel model(before, calls_);
  bool sane = true;
  const Tree whole =
      model.After(model.Calls(), std::vector<int>(model.Limits(model.Calls()).size(), 1), sane);
  ASSERT_TRUE(sane && whole == Tree::Of(run_.Path())) << "the record lacks a call. By its calls:\n"
                                                      << whole.Describe() << "in truth:\n"
                                                      << Tree::Of(run_.Path()).Describe();

  const std::size_t limit = FromEnvironment("TRIREME_CRASH_STATES", kMostStates);
  const std::size_t seed = FromEnvironment("TRIREME_CRASH_SEED", 1);
  random_.seed(seed);
  double total = 0;
  for (std::size_t calls = 0; calls <= model.Calls(); ++calls) {
    double states = 1;
    for (const int choices : model.Limits(calls)) states *= choices;
    total += states;
  }
  const bool all = total <= static_cast<double>(limit);
  const std::size_t most = all ? limit : limit / (model.Calls() + 1);
  for (std::size_t calls = 0; calls <= model.Calls(); ++calls) {
    EachState(model, calls, most, [&](const State& state) { CheckState(model, state); });
  }
  const std::string extent = all ? "all" : "a sample of seed " + std::to_string(seed);
  std::printf("%zu calls, %.4g states, %s: %zu differ, %d faults\n", model.Calls(), total,
              extent.c_str(), states_, faults_);
  EXPECT_EQ(faults_, 0);
}

TEST_F(CrashStates, FirstCheckpoint) { Check(0, {1, 1}, true, 2); }

TEST_F(CrashStates, NextCheckpointWithLinksAndPruning) {
  Save(run_.Path(), {1, 1}, true, 1);
  Check(1, {2, 2}, true, 1);
}

TEST_F(CrashStates, PruningSparesTheBest) {
  Save(run_.Path(), {1, 1}, true, 1);
  Save(run_.Path(), {2, 2}, false, 1);
  Check(2, {3, 3}, false, 1);
}

// A run continued from an earlier step writes a checkpoint of the same name.
TEST_F(CrashStates, CheckpointOfTheSameStep) {
  Save(run_.Path(), {2, 1}, true, 2);
  Check(1, {2, 2}, true, 2);
}

TEST_F(CrashStates, LeftoversOfAKilledWrite) {
  const std::string checkpoints = run_.Path() + "/checkpoints";
  Save(run_.Path(), {1, 1}, false, 1);
  Save(run_.Path(), {2, 2}, false, 2);
  fs::rename(checkpoints + "/step_00000002", checkpoints + "/step_00000002.tmp");
  fs::remove(checkpoints + "/latest");
  fs::create_symlink("step_00000001", checkpoints + "/latest");
  fs::create_symlink("step_00000002", checkpoints + "/latest.tmp");
  Check(1, {2, 3}, true, 1);
}

// Killed between the two renames of a replacement: the moved one is the only complete checkpoint.
TEST_F(CrashStates, LeftoversOfAKilledReplacement) {
  const std::string checkpoints = run_.Path() + "/checkpoints";
  Save(run_.Path(), {2, 1}, true, 1);
  fs::rename(checkpoints + "/step_00000002", checkpoints + "/step_00000002.old");
  fs::create_directory(checkpoints + "/step_00000002.tmp");
  Check(1, {3, 2}, true, 1);
}

// Killed before the replaced one went, and its successor damaged since: the replaced one is the
// only complete checkpoint.
TEST_F(CrashStates, LeftoversOfADamagedReplacement) {
  const std::string checkpoints = run_.Path() + "/checkpoints";
  Save(run_.Path(), {2, 1}, true, 1);
  fs::copy(checkpoints + "/step_00000002", checkpoints + "/step_00000002.old");
  fs::resize_file(checkpoints + "/step_00000002/model.safetensors", 100);
  Check(1, {3, 2}, true, 1);
}

}  // namespace
}  // namespace trireme::checkpoint::test
