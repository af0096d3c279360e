// The order of the checks, a line for each, the verdict, and the folder for their files.
#include "trireme/tasks/selftest.hpp"

#include <fmt/format.h>
#include <stdlib.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include "checks.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/descriptor.hpp"
#include "trireme/device/gpu.hpp"

namespace trireme::tasks {

void Expect(bool condition, const std::string& what, const std::string& hint) {
  if (!condition) throw RunError(what, hint);
}

namespace {

class Report {
 public:
  explicit Report(const Setting& setting) : world_(setting.runtime->World()), setting_(setting) {}

  // Runs a check and prints its line. Returns whether it passed; false without running it if an
  // earlier one failed that it `needs`.
  bool Check(const char* name, bool needs, const std::function<std::string()>& check) {
    const double start = Seconds();
    Begin(name);
    if (!needs) {
      End("not tried", "it needs what failed above");
      return false;
    }
    std::string detail;
    const std::optional<Error> failure = Failure(check, detail);
    const bool stopped = world_.Max(std::int64_t{setting_.signals->Received()}) != 0;
    if (stopped || (failure && failure->Code() == ExitCode::kStopped)) {
      End("stopped", "");
      throw AgreedError(ExitCode::kStopped, "self-test: stopped by a signal");
    }
    ++(failure ? failed_ : passed_);
    End(failure ? "FAILED" : "ok",
        failure ? failure->what() : fmt::format("{} ({:.1f} s)", detail, Seconds() - start));
    return !failure;
  }
  void Say(const char* name, const std::string& text) {
    Begin(name);
    End("-", text);
  }

  ExitCode Verdict(double seconds) const {
    if (world_.IsRoot()) {
      if (failed_ == 0) {
        fmt::print("\nall {} checks passed on {} rank{}, {:.1f} s\n", passed_, world_.Size(),
                   world_.Size() == 1 ? "" : "s", seconds);
      } else {
        fmt::print("\n{} of {} checks FAILED\n", failed_, failed_ + passed_);
      }
      std::fflush(stdout);
    }
    return failed_ == 0 ? ExitCode::kDone : ExitCode::kFailed;
  }

 private:
  // An error of one rank among several meets no handler here: the others wait for it.
  std::optional<Error> Failure(const std::function<std::string()>& check,
                               std::string& detail) const {
    if (world_.Size() > 1) {
      try {
        detail = check();
        return std::nullopt;
      } catch (const AgreedError& error) {
        return error;
      }
    }
    try {
      detail = check();
      return std::nullopt;
    } catch (const Error& error) {
      return error;
    }
  }

  // At once, so that the last line names what a lost rank was in.
  void Begin(const char* name) const {
    if (!world_.IsRoot()) return;
    fmt::print("{:<12}", name);
    std::fflush(stdout);
  }
  void End(const char* result, const std::string& detail) const {
    if (!world_.IsRoot()) return;
    fmt::print("{:<10}{}\n", result, detail);
    std::fflush(stdout);
  }

  const comm::Communicator& world_;
  const Setting& setting_;
  int passed_ = 0, failed_ = 0;
};

// Collective. A new folder, which goes with this process of world rank 0.
std::string MakeFolder(const Setting& setting) {
  const comm::Communicator& world = setting.runtime->World();
  std::string path;
  world.Together([&] {
    if (!world.IsRoot()) return;
    const char* const temporary = std::getenv("TMPDIR");
    std::string place = setting.folder;
    if (place.empty()) place = temporary == nullptr || *temporary == '\0' ? "/tmp" : temporary;
    std::error_code error;
    path = (std::filesystem::absolute(place, error) / "trireme_self_test_XXXXXX")
               .lexically_normal()
               .string();
    if (mkdtemp(path.data()) == nullptr) {
      throw RunError(fmt::format("{}: no folder can be made in it: {}", place, ErrorText(errno)),
                     "Name one where you may write: trireme --self-test FOLDER.");
    }
    setting.cleaner->Folder(path);
  });
  return world.Broadcast(path);
}

void CheckGpus(const Setting& setting, const SmallRuns& runs, bool ready, Report& report) {
  if (!device::GpuBuilt()) {
    report.Say("gpu", "not built in (-DTRIREME_CUDA=ON): nothing was tried");
    return;
  }
  const comm::Communicator& world = setting.runtime->World();
  std::string why = device::WhyNoGpu();
  if (world.Max(std::int64_t{!why.empty()}) != 0) {
    report.Say("gpu", why.empty() ? "a rank sees no card: nothing was tried" : why);
    return;
  }
  report.Check("gpu", ready, [&] {
    const auto cards = static_cast<std::int64_t>(device::GpuIds().size());
    const std::string shared = setting.runtime->Node().Size() > cards ? "yes" : "no";
    return runs.Train({"run.share_device=" + shared}, "gpu", "cuda");
  });
}

void CheckAll(const Setting& setting, Report& report) {
  const comm::Runtime& runtime = *setting.runtime;
  const comm::Communicator& world = runtime.World();
  report.Check("messages", true, [&] { return CheckMessages(runtime); });
  report.Check("kernels", true, [&] { return CheckKernels(runtime); });
  std::string folder;
  bool ready = report.Check("folder", true, [&] {
    folder = MakeFolder(setting);
    return CheckFolder(world, folder);
  });
  if (ready) report.Check("hdf5", true, [&] { return CheckHdf5(world, folder); });
  if (!ready) {
    for (const char* name : {"hdf5", "tokens", "layout", "training", "checkpoint", "generation"}) {
      report.Check(name, false, {});
    }
    return;
  }
  const std::vector<Keys> layouts = Layouts(world.Size());
  const SmallRuns runs(setting, folder);
  ready = report.Check("tokens", true, [&] { return runs.Tokenize(); });
  for (const Keys& layout : layouts) {
    report.Check("layout", ready, [&] { return runs.Verify(layout); });
  }
  // On one rank: the same layout twice.
  const Keys &first = layouts.front(), &second = layouts.back();
  report.Check("training", ready, [&] { return runs.Train(first, "first", "cpu"); });
  if (layouts.size() > 1) {
    report.Check("training", ready, [&] { return runs.Train(second, "second", "cpu"); });
  }
  const bool written =
      report.Check("checkpoint", ready, [&] { return runs.Resume(first, second); });
  report.Check("generation", written, [&] { return runs.Generate(first, second); });
  CheckGpus(setting, runs, ready, report);
}

}  // namespace

ExitCode RunSelfTest(const Setting& setting) {
  const double start = Seconds();
  setting.signals->Watch();
  Report report(setting);
  CheckAll(setting, report);
  return report.Verdict(Seconds() - start);
}

}  // namespace trireme::tasks
