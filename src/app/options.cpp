// The keys of [job], and reading all sections.
#include "trireme/app/job.hpp"

#include "trireme/deck/keys.hpp"

namespace trireme::app {

namespace {
constexpr deck::Names<10> kTasks = {"train",  "evaluate", "generate",  "tokenize", "verify",
                                    "import", "export",   "preflight", "scaling",  "plan"};

void Bind(deck::Keys keys, Options& o) {
  keys.Section("job", "What to do, and where its results go.")
      .Choice("job.task", o.task, kTasks,
              "train: train a model; evaluate: validation and test loss of -r; generate: continue "
              "a prompt with -r; tokenize: write data.file from text; verify: compare a small run "
              "of this deck on these ranks with one on a single rank; import: make a run from "
              "hf.path's model; export: write the model of -r to hf.path; preflight: inspect the "
              "ranks' hosts, measure their speeds, name slow ones; scaling: compare the speeds of "
              "this deck's training on several numbers of ranks; plan: find layouts of this deck "
              "on plan.machine, by predicted time, without ranks.")
      .Text("job.name", o.name, "Name of the run.")
      .Path("job.output", o.output,
            "Run folder. One that already holds a run is refused without -r. Empty: runs/<name>.");
}

}  // namespace

void Declare(deck::Schema& schema) { deck::Declare(schema, Bind); }

void Resolve(deck::Deck& deck) {
  const Options options = Read(deck);
  if (options.output.empty()) deck.Supply("job.output", "runs/" + options.name, "job.name");
}

Options Read(const deck::Deck& deck) {
  Options options = deck::Read(deck, Bind);
  options.output_given = deck.Given("job.output");
  return options;
}

DeckOptions ReadAll(const deck::Deck& deck) {
  DeckOptions options;
  static_cast<train::DeckOptions&>(options) = train::ReadAll(deck);
  options.job = Read(deck);
  options.tokenize = data::ReadTokenize(deck);
  options.checkpoint = checkpoint::Read(deck);
  options.monitor = report::Read(deck);
  options.training = train::ReadSafeguards(deck);
  return options;
}

}  // namespace trireme::app
