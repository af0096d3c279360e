// The keys of [job], and the reading of all sections.
#include "trireme/job/options.hpp"

#include "trireme/input/choice.hpp"

namespace trireme::job {

namespace {
constexpr input::Names<10> kTasks = {"train",  "evaluate", "generate",  "tokenize", "verify",
                                     "import", "export",   "preflight", "scaling",  "plan"};
}  // namespace

void Declare(input::Schema& schema) {
  schema.Section("job", "What to do, and where its results go.")
      .Choice(
          "job.task", "train", input::Choices(kTasks),
          "train: learn; evaluate: validation and test loss of -r; generate: continue a prompt "
          "with -r; tokenize: write data.file from text; verify: compare a small run of this "
          "deck on these ranks with one rank's; import: make a run of hf.path's model; "
          "export: write the model of -r to hf.path; preflight: look at the ranks' hosts, "
          "measure their speeds, name slow ones; scaling: compare the speeds of this deck's "
          "training on several numbers of ranks; plan: layouts of this deck on plan.machine, by "
          "predicted time, without ranks.")
      .Text("job.name", "run", "Name of the run.")
      .Path("job.output", "",
            "Run folder; one that holds a run already is refused without -r. Empty: runs/<name>.");
}

void Resolve(input::Deck& deck) {
  if (!deck.Text("job.output").empty()) return;
  deck.Supply("job.output", "runs/" + deck.Text("job.name"), "job.name");
}

Options Read(const input::Deck& deck) {
  return {.task = input::Pick<Task>(deck.Text("job.task"), kTasks),
          .name = deck.Text("job.name"),
          .output = deck.Text("job.output"),
          .output_given = deck.Given("job.output")};
}

DeckOptions ReadAll(const input::Deck& deck) {
  DeckOptions options;
  static_cast<plan::DeckOptions&>(options) = plan::ReadAll(deck);
  options.job = Read(deck);
  options.tokenize = data::ReadTokenize(deck);
  options.checkpoint = checkpoint::Read(deck);
  options.monitor = monitor::Read(deck);
  options.training = training::Read(deck);
  return options;
}

}  // namespace trireme::job
