// Checkpoints against plain input and output of the same bytes on the same file system. The two
// sides of each figure run in turn, so that a noisy machine is as noisy for both; a figure is the
// median of the pairs' ratios, with the least and the largest.
//
//   mpirun -n 8 trireme_checkpoint_benchmark FOLDER MIB [writers=1] [what=all] [pairs=5] [LOCAL]
//
// LOCAL, a sixth argument: the nodes' storage for what=local, FOLDER/local unless stated; the first
// half of the ranks is one host, the second half another one.
// FOLDER: on the file system to measure, on a disk: one in memory cannot drop what it holds, so
// that its cold reads are warm ones. MIB: of both tensor files together, at least a second of
// writing. writers: of each node; 0: every rank. what: a comma-separated list of write, read,
// stall, hash, local; all; or, for restoring on fewer ranks than wrote (target: at most 1.5 times
// the seconds of 8 to 8):
//   mpirun -n 8 trireme_checkpoint_benchmark FOLDER MIB 1 keep      writes FOLDER/kept, 8 ranks
//   mpirun -n 8 trireme_checkpoint_benchmark FOLDER MIB 1 restore   reads it on as many
//   mpirun -n 3 trireme_checkpoint_benchmark FOLDER MIB 1 restore   and on 3; same MIB
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint_plain.hpp"
#include "checkpoint_state.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/local.hpp"
#include "trireme/comm/runtime.hpp"

using namespace trireme;
using namespace trireme::benchmark;

namespace {

struct Setup {
  const comm::Communicator& world;
  std::string folder = {};
  std::int64_t mib = 0;
  int writers = 1;
  std::string what = "all";
  int pairs = 5;
  std::string local = {};
};

struct Spread {
  double median = 0, least = 0, most = 0;
};
Spread SpreadOf(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values.front(), values.back()};
}

void Say(const Setup& setup, const std::string& what, const std::vector<double>& values,
         const std::string& note) {
  if (!setup.world.IsRoot()) return;
  const Spread spread = SpreadOf(values);
  fmt::print("{:<52} {:8.3f}  ({:.3f} to {:.3f})  {}\n", what, spread.median, spread.least,
             spread.most, note);
}

checkpoint::Outcome Checked(checkpoint::Outcome outcome) {
  if (!outcome.failure.empty()) throw AgreedError(ExitCode::kFailed, outcome.failure);
  return outcome;
}

checkpoint::Order OrderOf(const std::string& folder) {
  return {.folder = folder, .step = 1, .run = {{"step", 1}}};
}

void Clear(const Setup& setup, const std::string& folder) {
  setup.world.Barrier();
  if (setup.world.IsRoot()) std::filesystem::remove_all(folder);
  setup.world.Barrier();
}

// Both sides in an order that changes from pair to pair.
template <typename One, typename Other>
void InTurn(int pair, const One& one, const Other& other) {
  if (pair % 2 == 0) one();
  other();
  if (pair % 2 != 0) one();
}

void Write(const Setup& setup, const Memory& memory) {
  const std::string folder = setup.folder + "/write";
  checkpoint::Writer writer(setup.world, memory.State(), {.writers = setup.writers});
  PlainFile plain(setup.world, setup.folder + "/plain", writer.Bytes(), setup.writers);
  std::vector<double> flushed, whole, verified, speed;
  for (int pair = 0; pair < setup.pairs; ++pair) {
    double put = 0, got = 0;
    checkpoint::Outcome outcome;
    InTurn(
        pair,
        [&] {
          put = plain.Write();
          got = plain.Read(true);
          plain.Remove();
        },
        [&] {
          writer.Begin(OrderOf(folder));
          outcome = Checked(writer.Finish());
          Clear(setup, folder);
        });
    flushed.push_back(put / outcome.write_seconds);
    whole.push_back(put / (outcome.seconds - outcome.verify_seconds));
    verified.push_back(got / outcome.verify_seconds);
    speed.push_back(static_cast<double>(outcome.bytes) / outcome.write_seconds / 1e9);
  }
  Say(setup, "write: written and flushed, GB/s", speed, "");
  Say(setup, "write: speed of writing and flushing / plain", flushed, "target: at least 0.8");
  Say(setup, "write: speed of all but reading back / plain", whole, "target: at least 0.8");
  Say(setup, "write: speed of reading back / plain cold read", verified, "reported apart");
}

double Restore(const Setup& setup, const Memory& memory, const std::string& folder, bool cold) {
  const std::string checkpoint = checkpoint::Find(setup.world, folder);
  const bool reads = setup.world.SplitNode().IsRoot();
  setup.world.Together([&] {
    if (!cold || !reads) return;
    for (const char* file : {"/model", "/optimizer"}) Forget(checkpoint + file + ".safetensors");
  });
  setup.world.Barrier();
  const double start = Seconds();
  checkpoint::ReadTensors(setup.world, checkpoint, "model", memory.State().model);
  checkpoint::ReadTensors(setup.world, checkpoint, "optimizer", memory.State().optimizer);
  return setup.world.Max(Seconds() - start);
}

void Keep(const Setup& setup, const Memory& memory, const std::string& folder) {
  Clear(setup, folder);
  checkpoint::Writer writer(setup.world, memory.State(), {.writers = setup.writers});
  writer.Begin(OrderOf(folder));
  Checked(writer.Finish());
}

// One process of a node reads, on both sides.
void Read(const Setup& setup, const Memory& memory) {
  const std::string folder = setup.folder + "/read";
  Keep(setup, memory, folder);
  const std::int64_t bytes = setup.world.Sum(memory.Bytes());
  PlainFile plain(setup.world, setup.folder + "/plain", bytes, 1);
  plain.Write();
  for (const bool cold : {true, false}) {
    std::vector<double> ratios, speed;
    for (int pair = 0; pair < setup.pairs; ++pair) {
      double one = 0, other = 0;
      InTurn(
          pair, [&] { one = plain.Read(cold); },
          [&] { other = Restore(setup, memory, folder, cold); });
      ratios.push_back(one / other);
      speed.push_back(static_cast<double>(bytes) / other / 1e9);
    }
    const std::string name = cold ? "read from the disk" : "read from the system's memory";
    Say(setup, name + ", GB/s", speed, "");
    Say(setup, name + ": speed / plain", ratios, cold ? "target: at least 0.8" : "no target");
  }
  plain.Remove();
  Clear(setup, folder);
}

// An asynchronous save as the training loop moves it on; stall: time in Begin and Advance.
Overlapped WriteBeside(const Setup& setup, checkpoint::Writer& writer, const std::string& folder,
                       Step& step) {
  Overlapped result;
  setup.world.Barrier();
  const double start = Seconds();
  writer.Begin(OrderOf(folder));
  result.stall = Seconds() - start;
  std::optional<checkpoint::Outcome> outcome;
  for (; !outcome; ++result.steps) {
    step();
    const bool busy = setup.world.Max(writer.Busy() ? std::int64_t{1} : 0) != 0;
    if (busy) continue;
    const double moved = Seconds();
    outcome = writer.Advance();
    result.stall += Seconds() - moved;
  }
  result.stall = setup.world.Max(result.stall);
  result.to_disk = Checked(*outcome).seconds;
  return result;
}

void Stall(const Setup& setup, const Memory& memory) {
  const std::string folder = setup.folder + "/stall";
  checkpoint::Writer waiting(setup.world, memory.State(), {.writers = setup.writers});
  checkpoint::Writer beside(setup.world, memory.State(), {.async = true, .writers = setup.writers});
  const std::vector<char> mine(static_cast<std::size_t>(memory.Bytes()), 'x');
  Step step;
  std::vector<double> ratios, mpi_ratios, against, disk, ours, theirs;
  for (int pair = 0; pair < setup.pairs; ++pair) {
    Overlapped thread, mpi;
    double whole = 0;
    InTurn(
        pair,
        [&] {
          waiting.Begin(OrderOf(folder));
          whole = Checked(waiting.Finish()).seconds;
          Clear(setup, folder);
        },
        [&] {
          InTurn(
              pair / 2,
              [&] {
                thread = WriteBeside(setup, beside, folder, step);
                Clear(setup, folder);
              },
              [&] {
                mpi = WriteByMpi(setup.world, setup.folder + "/mpi", setup.writers, mine,
                                 [&] { step(); });
                Clear(setup, setup.folder + "/mpi");
              });
        });
    ratios.push_back(thread.stall / whole);
    mpi_ratios.push_back(mpi.stall / whole);
    against.push_back(thread.stall / mpi.stall);
    disk.push_back(thread.to_disk / mpi.to_disk);
    ours.push_back(thread.stall);
    theirs.push_back(mpi.stall);
  }
  Say(setup, "stall of the writing thread / a synchronous save", ratios, "target: at most 0.05");
  Say(setup, "stall of non-blocking MPI-IO / a synchronous save", mpi_ratios, "");
  Say(setup, "stall of the thread, s", ours, "");
  Say(setup, "stall of MPI-IO, s", theirs, "");
  Say(setup, "stall: thread / MPI-IO", against,
      SpreadOf(against).median < 1 ? "the thread is better" : "MPI-IO is better");
  Say(setup, "time to disk: thread / MPI-IO", disk, "the thread also hashes, reads back, renames");
}

void HashShare(const Setup& setup, const Memory& memory) {
  PlainFile file(setup.world, setup.folder + "/hash", setup.world.Sum(memory.Bytes()),
                 setup.writers);
  std::vector<double> shares, differences;
  for (int pair = 0; pair < setup.pairs; ++pair) {
    double with = 0, without = 0, hashing = 0;
    InTurn(
        pair, [&] { with = file.WriteHashing(&hashing); }, [&] { without = file.Write(); });
    shares.push_back(hashing / with);
    differences.push_back(with / without - 1);
  }
  file.Remove();
  Say(setup, "checksums: their thread's seconds / all", shares, "beside the writing: no target");
  Say(setup, "checksums: writing with / without, less 1", differences, "target: at most 0.03");
}

// Local checkpoints with copies on a partner host against a synchronous save to the run folder.
void Local(const Setup& setup, const Memory& memory) {
  const std::string folder = setup.folder + "/run";
  const auto ranks = static_cast<std::size_t>(setup.world.Size());
  std::vector<std::string> hosts(ranks, "a");
  for (std::size_t rank = ranks / 2; rank < ranks; ++rank) hosts[rank] = "b";
  const std::string& own = hosts[static_cast<std::size_t>(setup.world.Rank())];
  const checkpoint::LocalRun run{
      .folder = setup.local + "/" + own, .id = "0123456789abcdef", .session = "1"};
  checkpoint::Writer writer(setup.world, memory.State(), {.writers = setup.writers});
  std::vector<double> ratios, local, shared, found;
  {
    checkpoint::LocalWriter nodes({setup.world, comm::Hosts(hosts)}, memory.State(), run, {});
    if (setup.world.IsRoot()) {
      fmt::print("{} of state, {} of it copied to partners\n", nodes.Bytes(), nodes.CopiedBytes());
    }
    for (int pair = 0; pair < setup.pairs; ++pair) {
      InTurn(
          pair,
          [&] {
            const auto outcome = nodes.Write(pair + 1, 1, {{"step", pair + 1}});
            if (!outcome.failure.empty()) throw AgreedError(ExitCode::kFailed, outcome.failure);
            local.push_back(outcome.seconds);
          },
          [&] {
            writer.Begin(OrderOf(folder));
            shared.push_back(Checked(writer.Finish()).seconds);
            Clear(setup, folder);
          });
      ratios.push_back(local.back() / shared.back());
      const double start = Seconds();
      const auto search = checkpoint::FindLocal({setup.world, comm::Hosts(hosts)}, run, {});
      for (const char* file : {"model", "optimizer"}) {
        const bool model = file[0] == 'm';
        search.found->Read({setup.world, comm::Hosts(hosts)}, file,
                           model ? memory.State().model : memory.State().optimizer);
      }
      found.push_back(setup.world.Max(Seconds() - start));
    }
    nodes.RemoveAll();
  }
  Say(setup, "local, with partners' copies, s", local, "");
  Say(setup, "run folder, synchronous, s", shared, "");
  Say(setup, "local / run folder", ratios, "");
  Say(setup, "found, checked and restored, s", found, "");
}

void RestoreKept(const Setup& setup, const Memory& memory) {
  std::vector<double> cold, warm;
  for (int pair = 0; pair < setup.pairs; ++pair) {
    cold.push_back(Restore(setup, memory, setup.folder + "/kept", true));
    warm.push_back(Restore(setup, memory, setup.folder + "/kept", false));
  }
  const std::string on = fmt::format("restored on {} ranks", setup.world.Size());
  const double gigabytes = static_cast<double>(setup.world.Sum(memory.Bytes())) / 1e9;
  Say(setup, on + " from the disk, s", cold,
      fmt::format("{:.2f} GB/s; target: at most 1.5 times 8 ranks'",
                  gigabytes / SpreadOf(cold).median));
  Say(setup, on + " from the system's memory, s", warm,
      fmt::format("{:.2f} GB/s", gigabytes / SpreadOf(warm).median));
}

ExitCode Measure(const Setup& setup) {
  if (setup.world.IsRoot()) {
    std::filesystem::create_directories(setup.folder);
    fmt::print("{} ranks, {} MiB, {} writers a node, {} pairs in {}\nmedian (least to largest)\n",
               setup.world.Size(), setup.mib, setup.writers, setup.pairs, setup.folder);
  }
  const Memory memory(setup.world, setup.mib);
  const auto asked = [&](const std::string& name) {
    return setup.what == "all" ||
           ("," + setup.what + ",").find("," + name + ",") != std::string::npos;
  };
  if (setup.what == "keep") Keep(setup, memory, setup.folder + "/kept");
  if (setup.what == "restore") RestoreKept(setup, memory);
  if (asked("write")) Write(setup, memory);
  if (asked("read")) Read(setup, memory);
  if (asked("stall")) Stall(setup, memory);
  if (asked("hash")) HashShare(setup, memory);
  if (asked("local")) Local(setup, memory);
  return ExitCode::kDone;
}

}  // namespace

int main(int argc, char** argv) {
  comm::Runtime runtime(&argc, &argv);
  return runtime.Guard([&] {
    Setup setup{.world = runtime.World()};
    if (argc > 1) setup.folder = argv[1];
    if (argc > 2) setup.mib = std::atoll(argv[2]);
    if (argc > 3) setup.writers = std::atoi(argv[3]);
    if (argc > 4) setup.what = argv[4];
    if (argc > 5) setup.pairs = std::max(1, std::atoi(argv[5]));
    setup.local = argc > 6 ? argv[6] : setup.folder + "/local";
    if (setup.folder.empty() || setup.mib < 1) {
      throw AgreedError(ExitCode::kBadInput,
                        "usage: trireme_checkpoint_benchmark FOLDER MIB [writers] "
                        "[write,read,stall,hash,local|all|keep|restore] [pairs] [LOCAL]");
    }
    return Measure(setup);
  });
}
