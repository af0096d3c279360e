// The keys of [monitor].
#include "trireme/monitor/options.hpp"

namespace trireme::monitor {

void Declare(input::Schema& schema) {
  schema.Section("monitor", "What is printed, recorded and sampled, and how often")
      .Integer(
          "monitor.every_steps", 50, input::AtLeast(1), "steps",
          "A line on the screen and an interval record in metrics.jsonl this often; step 1 and "
          "the last step always have one. Every step has a record of its own.")
      .Integer("monitor.validate_every_steps", 500, input::AtLeast(0), "steps",
               "Evaluates the validation split this often and after the last step, which the test "
               "split follows; 0: never, the test split included.")
      .Integer("monitor.validate_windows", 0, input::AtLeast(0), "windows",
               "Validates during training on at most this many windows of each validation set, a "
               "sample that run.seed decides, the same every time; 0: all. The test takes all.")
      .Integer("monitor.sample_tokens", 40, input::AtLeast(0), "tokens",
               "Length of the text that the trained model writes at the end; 0: none.")
      .Switch("monitor.report", true,
              "Makes report.html in the run folder once the run has ended, by vis/report.py: it "
              "takes at most 60 s, needs Python with matplotlib and Jinja2, and never changes how "
              "the run ends.");
}

Options Read(const input::Deck& deck) {
  return {.every_steps = deck.Integer("monitor.every_steps"),
          .validate_every_steps = deck.Integer("monitor.validate_every_steps"),
          .validate_windows = deck.Integer("monitor.validate_windows"),
          .sample_tokens = deck.Integer("monitor.sample_tokens"),
          .report = deck.Switch("monitor.report")};
}

}  // namespace trireme::monitor
