// Trireme: trains Transformer language models through MPI. This file is the table of contents.
#include <csignal>
#include <optional>

#include "trireme/app/sources.hpp"
#include "trireme/comm/runtime.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/tasks/selftest.hpp"
#include "trireme/tasks/tasks.hpp"

int main(int argc, char** argv) {
  using namespace trireme;

  comm::Runtime::ReportTermination();
  // A file that may not grow (ulimit -f, a quota) is an error of its write, as a full disk is.
  std::signal(SIGXFSZ, SIG_IGN);

  // 1. Questions that need no MPI: --help, --help-deck, --version, -n; -v for ranks that are not
  // there.
  const deck::Schema schema = tasks::DeclareAll();
  std::optional<app::CommandLine> line;
  std::optional<Error> bad_line;
  try {
    line = app::ParseCommandLine({argv + 1, argv + argc});
    if (const auto answered = app::AnswerWithoutMpi(*line, schema)) {
      return static_cast<int>(*answered);
    }
    if (const auto answered = tasks::AnswerWithPlan(*line, schema)) {
      return static_cast<int>(app::Answered(*answered));
    }
  } catch (const Error& error) {
    bad_line = error;  // told below, by one rank; perhaps not all could read the deck
  }

  // 2. Signals are blocked until a task waits for them. MPI starts; from here on, every exception
  // becomes one message and one agreed exit code.
  device::StopSignals signals;
  std::optional<tasks::Cleaner> cleaner;
  if (line && line->self_test) cleaner.emplace();
  std::optional<report::PageOrder> page;
  int code = 0;
  {
    const comm::Launcher launcher = comm::ReadLauncher();
    comm::Runtime runtime(&argc, &argv);
    code = runtime.Guard([&] {
      if (comm::RefuseSingletons(launcher, runtime.World().Size())) return ExitCode::kBadInput;
      runtime.World().Together([&] {
        if (bad_line) throw Error(*bad_line);
      });

      if (cleaner) {
        return tasks::RunSelfTest({&runtime, &schema, &signals, &*cleaner, line->self_test_folder});
      }

      // 3. The deck: read by one rank, parsed by all; the device.
      app::Job job = app::MakeJob(runtime, *line, schema, signals);

      // 4. The task: plan, grid, data, model, optimizer and the loop, as it needs them.
      const ExitCode task_code = tasks::RunTask(job);
      page = tasks::OrderPage(job);
      return task_code;
    });
  }

  // 5. The page of a training run that has ended, without MPI and without a say in the exit code.
  if (page) report::MakePage(*page, [&] { return signals.Received(); });
  return code;
}
