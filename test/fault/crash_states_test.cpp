// Every state of the disk that a crash may leave while a checkpoint is written, rebuilt from the
// calls that the writer made: from none may the run's continuation fail or get other values than
// those of the last checkpoint or the one being written.
//   TRIREME_CRASH_STATES: most states of a scenario (40,000), many of them alike; above, a sample
//   TRIREME_CRASH_SEED: of that sample (1)
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <unordered_set>
#include <utility>

#include "call_record.hpp"
#include "checkpoint_fixture.hpp"
#include "file_model.hpp"
#include "trireme/checkpoint/checkpoint.hpp"

namespace trireme::checkpoint::test {
namespace {

using trireme::test::Call;
using trireme::test::CallRecord;
using trireme::test::FileModel;
using trireme::test::Tree;

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
