// The keys of [checkpoint].
#include "trireme/checkpoint/options.hpp"

#include <fmt/format.h>
#include <cmath>
#include <sstream>

#include "trireme/base/error.hpp"
#include "trireme/checkpoint/checkpoint.hpp"

namespace trireme::checkpoint {

namespace {

constexpr deck::Names<2> kAnswers = {"stop", "restore"};

// Whether the state is fit to be saved.
void DeclareReplicas(deck::Schema& schema) {
  schema
      .Integer("run.check_replicas_every", 100, deck::AtLeast(0), "steps",
               "After every so many steps, and before a checkpoint is written, compare hashes of "
               "weights and moments among the ranks that hold the same ones, and name the rank "
               "that differs (doc/reliability.md). 0: never.")
      .Choice("run.on_corruption", "stop", deck::Choices(kAnswers),
              "If copies differ: stop ends the run with code 1 and writes nothing more; restore "
              "goes back to the newest valid checkpoint and on from there, unless a rank is "
              "named for the second time.");
}

void DeclareWhen(deck::Schema& schema) {
  using deck::AtLeast;
  schema.Section("checkpoint", "When the state of a run is saved, and how many states are kept.")
      .Integer("checkpoint.every_steps", 500, AtLeast(0), "steps",
               "Write a checkpoint after every so many steps; one always follows the last step. "
               "0: only that one.")
      .Real("checkpoint.every_minutes", 0, AtLeast(0), "minutes",
            "Write a checkpoint after every so many minutes of wall time, in addition to "
            "every_steps. 0: never.")
      .Switch("checkpoint.auto", false,
              "Choose the time between checkpoints that wastes least, from what one costs and "
              "run.mtbf_hours (Daly 2006), instead of every_steps and every_minutes.")
      .Real("run.mtbf_hours", 0, AtLeast(0), "hours",
            "Mean time between failures of the whole job: that of a node, divided by the number "
            "of nodes. For checkpoint.auto. 0: unknown.")
      .Integer("checkpoint.max_failures", 3, AtLeast(1), "checkpoints",
               "A checkpoint that cannot be written is a warning, and the next one is tried when "
               "it is due; so many failures in a row end the run.")
      .Integer("checkpoint.max_restarts", 10, AtLeast(0), "starts",
               "A run that starts more often than this at the same step, without a checkpoint in "
               "between, ends with code 1, so that no batch system repeats it for ever. 0: no "
               "limit.");
}

void DeclareHow(deck::Schema& schema) {
  using deck::AtLeast;
  schema
      .Integer("checkpoint.keep", 2, AtLeast(0), "checkpoints",
               "Keep so many checkpoints, those written last, and remove the others; the targets "
               "of the links best and latest always stay. 0: keep all.")
      .Integer("checkpoint.keep_every_steps", 0, AtLeast(0), "steps",
               "Keep checkpoints whose step is a multiple of this as well. 0: none.")
      .Switch("checkpoint.best", true,
              "Let the link checkpoints/best point to the checkpoint with the lowest validation "
              "loss.")
      .Switch("checkpoint.async", false,
              "Copy the state and go on at once; the copy is written while the next steps run. "
              "Takes memory for the copy: parameters and moments, shared out over the ranks.")
      .Integer("checkpoint.writers", 1, AtLeast(0), "processes",
               "Processes of each node that write and open files, each for the ranks next to it. "
               "0: every rank.")
      .Text("checkpoint.io_hints", "",
            "Hints for MPI-IO when a checkpoint's files are made, name=value with commas: "
            "striping_factor=8,striping_unit=4194304 on Lustre. Empty: none.")
      .Path("checkpoint.start_from", "",
            "A checkpoint, or a run folder with one, whose weights a new run starts with; steps, "
            "moments and data order start afresh. Empty: random initial weights.");
}

void DeclareLocal(deck::Schema& schema) {
  using deck::AtLeast;
  schema
      .Path("checkpoint.local", "",
            "A folder on storage of each node, /tmp or /dev/shm say, the same path on all: regular "
            "checkpoints are written there, with a copy on a partner node of what no other node "
            "holds, and some of them to the run folder as well. -r takes the newest whole one, in "
            "the same layout (doc/local_checkpoints.md). Empty: all go to the run folder.")
      .Integer("checkpoint.drain_every", 10, AtLeast(0), "checkpoints",
               "With checkpoint.local: every so many regular checkpoints go to the run folder as "
               "well, as do the first, the best and the last one, and each one that cannot be "
               "written to all nodes. 0: those alone.")
      .Real("checkpoint.local_survival", 0.9, deck::Between(0, 0.999), "",
            "With checkpoint.local and checkpoint.auto: share of failures after which local "
            "checkpoints are whole. The run folder's interval follows from the other failures.");
}

void CheckLocal(const deck::Deck& deck) {
  const std::string folder = deck.Text("checkpoint.local");
  if (folder.empty() || folder.front() == '/') return;
  throw deck.Complain("checkpoint.local", "'" + folder + "' is no absolute path",
                      "Give a path that is there on each node, such as /tmp/checkpoints.");
}

void CheckHints(const deck::Deck& deck) {
  std::istringstream hints(deck.Text("checkpoint.io_hints"));
  for (std::string hint; std::getline(hints, hint, ',');) {
    const std::size_t equals = hint.find('=');
    const bool good = equals != std::string::npos && equals > 0 && equals + 1 < hint.size();
    if (good) continue;
    throw deck.Complain("checkpoint.io_hints", "'" + hint + "' is not name=value",
                        "For example striping_factor=8,striping_unit=4194304.");
  }
}

void CheckAuto(const deck::Deck& deck) {
  if (!deck.Switch("checkpoint.auto")) return;
  if (deck.Real("run.mtbf_hours") == 0) {
    throw deck.Complain("checkpoint.auto", "needs run.mtbf_hours",
                        "Give the mean time between failures of the job in hours.");
  }
  const char* const chosen = "checkpoint.auto = yes chooses the interval";
  const char* const hint = "Leave one of them out.";
  if (deck.Given("checkpoint.every_steps") && deck.Integer("checkpoint.every_steps") > 0) {
    throw deck.Complain("checkpoint.every_steps", chosen, hint);
  }
  if (deck.Given("checkpoint.drain_every") && deck.Integer("checkpoint.drain_every") > 0) {
    throw deck.Complain("checkpoint.drain_every", chosen, hint);
  }
  if (deck.Real("checkpoint.every_minutes") > 0) {
    throw deck.Complain("checkpoint.every_minutes", chosen, hint);
  }
}

}  // namespace

void Declare(deck::Schema& schema) {
  DeclareReplicas(schema);
  DeclareWhen(schema);
  DeclareHow(schema);
  DeclareLocal(schema);
}

void Resolve(deck::Deck& deck) {
  if (deck.Switch("checkpoint.auto")) {
    deck.Supply("checkpoint.every_steps", "0", "checkpoint.auto");
    deck.Supply("checkpoint.drain_every", "0", "checkpoint.auto");
  }
}

Options Read(const deck::Deck& deck) {
  CheckHints(deck);
  CheckAuto(deck);
  CheckLocal(deck);
  const bool automatic = deck.Switch("checkpoint.auto");
  return {.every_steps = automatic ? 0 : deck.Integer("checkpoint.every_steps"),
          .every_minutes = deck.Real("checkpoint.every_minutes"),
          .automatic = automatic,
          .mtbf_hours = deck.Real("run.mtbf_hours"),
          .check_replicas_every = deck.Integer("run.check_replicas_every"),
          .on_corruption = deck::Pick<OnCorruption>(deck.Text("run.on_corruption"), kAnswers),
          .max_failures = deck.Integer("checkpoint.max_failures"),
          .max_restarts = deck.Integer("checkpoint.max_restarts"),
          .keep = deck.Integer("checkpoint.keep"),
          .keep_every_steps = deck.Integer("checkpoint.keep_every_steps"),
          .best = deck.Switch("checkpoint.best"),
          .async = deck.Switch("checkpoint.async"),
          .writers = deck.Integer("checkpoint.writers"),
          .io_hints = deck.Text("checkpoint.io_hints"),
          .local = deck.Text("checkpoint.local"),
          .drain_every = deck.Integer("checkpoint.drain_every"),
          .local_survival = deck.Real("checkpoint.local_survival"),
          .start_from = deck.Text("checkpoint.start_from")};
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
