// The keys of [monitor].
#include "trireme/report/monitor.hpp"

#include <charconv>
#include <string>
#include <system_error>

#include "trireme/deck/keys.hpp"

namespace trireme::report {

namespace {

// Parses [begin, end) as a step; false if it is anything but a number >= 1.
bool ParseStep(const char* begin, const char* end, std::int64_t& step) {
  const auto [stop, error] = std::from_chars(begin, end, step);
  return error == std::errc() && stop == end && step >= 1;
}

StepWindow ReadTraceSteps(const std::string& text, const deck::Deck& deck) {
  if (text == "none") return {};
  const char *begin = text.data(), *end = begin + text.size();
  const std::size_t dash = text.find('-');
  StepWindow window;
  if (dash == std::string::npos) {
    if (ParseStep(begin, end, window.first)) return {window.first, window.first};
  } else if (ParseStep(begin, begin + dash, window.first) &&
             ParseStep(begin + dash + 1, end, window.last) && window.first <= window.last) {
    return window;
  }
  throw deck.Complain("monitor.trace_steps", "it is '" + text + "', which names no steps",
                      "Write the first and the last step, counted from 1: "
                      "monitor.trace_steps = 10-12; or none.");
}

// The options as bound to keys, with the text of monitor.trace_steps.
struct Asked : Options {
  std::string trace_text = "none";
};

void Bind(deck::Keys keys, Asked& o) {
  keys.Section("monitor", "What is printed, recorded and sampled, and how often.")
      .Integer("monitor.every_steps", o.every_steps, deck::AtLeast(1), "steps",
               "How often a line is printed and an interval is recorded in metrics.jsonl; also at "
               "step 1 and the last step. Every step has a record of its own.")
      .Integer("monitor.validate_every_steps", o.validate_every_steps, deck::AtLeast(0), "steps",
               "How often the validation split is evaluated; also after the last step, with the "
               "test split. 0: never, nor the test split.")
      .Integer("monitor.validate_windows", o.validate_windows, deck::AtLeast(0), "windows",
               "Limit of windows per validation set during training: a sample set by run.seed, the "
               "same every time. 0: all. The test split is always used whole.")
      .Integer("monitor.sample_tokens", o.sample_tokens, deck::AtLeast(0), "tokens",
               "Length of the text that the trained model writes at the end. 0: none.")
      .Switch("monitor.tensorboard", o.tensorboard,
              "Also writes the run's records as TensorBoard event files, to tensorboard/ in the "
              "run folder.")
      .Integer(
          "monitor.histogram_every_steps", o.histogram_every_steps, deck::AtLeast(0), "steps",
          "How often histograms of all weights and gradients go to TensorBoard's files. 0: never.")
      .Text("monitor.trace_steps", o.trace_text,
            "Steps whose timeline is recorded, a range (10-12) or one (10): what each rank "
            "computes, transfers and waits for. It goes to trace.json.gz in the run folder, which "
            "ui.perfetto.dev opens. none: no timeline.")
      .Switch("monitor.trace_kernels", o.trace_kernels,
              "yes: the timeline shows each kernel and copy of a GPU, if NVIDIA's profiling "
              "library CUPTI is there; it stays attached until the run ends. no: only tasks and "
              "layers, from CUDA events.")
      .Switch("monitor.report", o.report,
              "Makes report.html in the run folder when the run has ended, by vis/report.py: it "
              "takes at most 60 s, needs Python with matplotlib and Jinja2, and never changes how "
              "the run ends.");
}

}  // namespace

void Declare(deck::Schema& schema) { deck::Declare(schema, Bind); }

Options Read(const deck::Deck& deck) {
  Asked options = deck::Read(deck, Bind);
  if (options.histogram_every_steps > 0 && !options.tensorboard) {
    throw deck.Complain("monitor.histogram_every_steps",
                        "histograms are written to TensorBoard's files, but "
                        "monitor.tensorboard = no",
                        "Set monitor.tensorboard = yes, or histogram_every_steps = 0.");
  }
  options.trace_steps = ReadTraceSteps(options.trace_text, deck);
  return options;
}

}  // namespace trireme::report
