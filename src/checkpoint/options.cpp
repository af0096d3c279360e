// The keys of [checkpoint].
#include "trireme/checkpoint/options.hpp"

#include <fmt/format.h>
#include <cmath>
#include <sstream>

#include "trireme/base/error.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/deck/keys.hpp"

namespace trireme::checkpoint {

namespace {

constexpr deck::Names<2> kAnswers = {"stop", "restore"};

void BindWhen(deck::Keys keys, Options& o) {
  using deck::AtLeast;
  keys.Integer("run.check_replicas_every", o.check_replicas_every, AtLeast(0), "steps",
               "Every so many steps, and before each checkpoint, the ranks that hold the same "
               "weights and moments compare hashes of them and name the rank that differs "
               "(doc/reliability.md). 0: never.")
      .Choice("run.on_corruption", o.on_corruption, kAnswers,
              "What happens if copies differ. stop: the run ends with code 1 and writes nothing "
              "more; restore: it goes back to the newest valid checkpoint and on from there, "
              "unless a rank is named for the second time.")
      .Section("checkpoint", "When the state of a run is saved, and how many states are kept.")
      .Integer("checkpoint.every_steps", o.every_steps, AtLeast(0), "steps",
               "Write a checkpoint after every so many steps; one always follows the last step. 0: "
               "only that one.")
      .Real("checkpoint.every_minutes", o.every_minutes, AtLeast(0), "minutes",
            "Write a checkpoint after every so many minutes of wall time, in addition to "
            "every_steps. 0: never.")
      .Switch("checkpoint.auto", o.automatic,
              "Choose the time between checkpoints that wastes least, from the cost of one and "
              "run.mtbf_hours (Daly 2006), instead of every_steps and every_minutes.")
      .Real("run.mtbf_hours", o.mtbf_hours, AtLeast(0), "hours",
            "Mean time between failures of the whole job: that of one node divided by the number "
            "of nodes. checkpoint.auto needs it. 0: unknown.")
      .Integer("checkpoint.max_failures", o.max_failures, AtLeast(1), "checkpoints",
               "A checkpoint that cannot be written gives a warning, and the next one is tried "
               "when it is due; this many failures in a row end the run.")
      .Integer("checkpoint.max_restarts", o.max_restarts, AtLeast(0), "starts",
               "A run that starts more often than this at the same step, without a checkpoint in "
               "between, ends with code 1, so that no batch system repeats it for ever. 0: no "
               "limit.");
}

void BindHow(deck::Keys keys, Options& o) {
  using deck::AtLeast;
  keys.Integer("checkpoint.keep", o.keep, AtLeast(0), "checkpoints",
               "Number of checkpoints to keep, the newest ones; older ones are removed, except the "
               "targets of the links best and latest. 0: keep all.")
      .Integer("checkpoint.keep_every_steps", o.keep_every_steps, AtLeast(0), "steps",
               "Also keep checkpoints whose step is a multiple of this. 0: none.")
      .Switch("checkpoint.best", o.best,
              "Let the link checkpoints/best point to the checkpoint with the lowest validation "
              "loss.")
      .Switch("checkpoint.async", o.async,
              "Training goes on while a copy of the state is written. Takes memory for the copy: "
              "parameters and moments, divided over the ranks.")
      .Integer("checkpoint.writers", o.writers, AtLeast(0), "processes",
               "Processes per node that open and write files, each for the ranks next to it. 0: "
               "every rank.")
      .Text("checkpoint.io_hints", o.io_hints,
            "Hints for MPI-IO when a checkpoint's files are made, name=value with commas: "
            "striping_factor=8,striping_unit=4194304 on Lustre. Empty: none.")
      .Path("checkpoint.start_from", o.start_from,
            "A checkpoint, or a run folder with one, whose weights a new run starts with; steps, "
            "moments and data order start anew. Empty: random initial weights.")
      .Path("checkpoint.local", o.local,
            "A folder on each node's own storage, such as /tmp or /dev/shm, with the same path on "
            "all: regular checkpoints are written there, what no other node holds is copied to a "
            "partner node, and some also go to the run folder. -r takes the newest complete one, "
            "in the same layout (doc/local_checkpoints.md). Empty: all go to the run folder.")
      .Integer("checkpoint.drain_every", o.drain_every, AtLeast(0), "checkpoints",
               "With checkpoint.local: one of so many regular checkpoints also goes to the run "
               "folder, as do the first, the best, the last, and any that cannot be written on all "
               "nodes. 0: only those.")
      .Real("checkpoint.local_survival", o.local_survival, deck::Between(0, 0.999), "",
            "With checkpoint.local and checkpoint.auto: share of failures that local checkpoints "
            "survive. The other failures set the run folder's interval.");
}

void Bind(deck::Keys keys, Options& o) {
  BindWhen(keys, o);
  BindHow(keys, o);
}

void CheckLocal(const std::string& folder, const deck::Deck& deck) {
  if (folder.empty() || folder.front() == '/') return;
  throw deck.Complain("checkpoint.local", "'" + folder + "' is not an absolute path",
                      "Give a path that is there on each node, such as /tmp/checkpoints.");
}

void CheckHints(const std::string& list, const deck::Deck& deck) {
  std::istringstream hints(list);
  for (std::string hint; std::getline(hints, hint, ',');) {
    const std::size_t equals = hint.find('=');
    const bool good = equals != std::string::npos && equals > 0 && equals + 1 < hint.size();
    if (good) continue;
    throw deck.Complain("checkpoint.io_hints", "'" + hint + "' is not name=value",
                        "For example striping_factor=8,striping_unit=4194304.");
  }
}

void CheckAuto(const Options& o, const deck::Deck& deck) {
  if (!o.automatic) return;
  if (o.mtbf_hours == 0) {
    throw deck.Complain("checkpoint.auto", "needs run.mtbf_hours",
                        "Give the mean time between failures of the job in hours.");
  }
  const auto refuse_if = [&](bool both, const char* key) {
    if (!both) return;
    throw deck.Complain(key, "checkpoint.auto = yes chooses the interval",
                        "Leave one of them out.");
  };
  refuse_if(deck.Given("checkpoint.every_steps") && o.every_steps > 0, "checkpoint.every_steps");
  refuse_if(deck.Given("checkpoint.drain_every") && o.drain_every > 0, "checkpoint.drain_every");
  refuse_if(o.every_minutes > 0, "checkpoint.every_minutes");
}

}  // namespace

void Declare(deck::Schema& schema) { deck::Declare(schema, Bind); }

void Resolve(deck::Deck& deck) {
  if (deck::Read(deck, Bind).automatic) {
    deck.Supply("checkpoint.every_steps", "0", "checkpoint.auto");
    deck.Supply("checkpoint.drain_every", "0", "checkpoint.auto");
  }
}

Options Read(const deck::Deck& deck) {
  Options options = deck::Read(deck, Bind);
  CheckHints(options.io_hints, deck);
  CheckAuto(options, deck);
  CheckLocal(options.local, deck);
  if (options.automatic) options.every_steps = 0;
  return options;
}

// Young's and Daly's interval between checkpoints.

double YoungDaly(double cost_seconds, double mtbf_seconds) {
  for (const double value : {cost_seconds, mtbf_seconds}) {
    if (!std::isfinite(value) || value <= 0) {
      throw RunError(
          fmt::format("interval between checkpoints: a checkpoint of {} s and a failure each {} s "
                      "give none",
                      cost_seconds, mtbf_seconds),
          "Both must be positive: see run.mtbf_hours.");
    }
  }
  const double ratio = cost_seconds / (2 * mtbf_seconds);
  if (ratio >= 1) return mtbf_seconds;
  const double young = std::sqrt(2 * cost_seconds * mtbf_seconds);
  return young * (1 + std::sqrt(ratio) / 3 + ratio / 9) - cost_seconds;
}

}  // namespace trireme::checkpoint
