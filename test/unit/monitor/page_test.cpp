// Start of the page's script: where it is found, its bound in time, its failures, stops.
#include "trireme/report/monitor.hpp"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "trireme/base/clock.hpp"

namespace trireme::report {
namespace {

namespace fs = std::filesystem;

class Page : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "trireme_page_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    unsetenv("TRIREME_PYTHON");
    fs::remove_all(folder_);
  }

  // An executable shell script that stands for Python.
  std::string Fake(const std::string& name, const std::string& text) const {
    const fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
    chmod(path.c_str(), 0755);
    return path.string();
  }
  std::string Touch(const std::string& name) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << "\n";
    return (folder_ / name).string();
  }
  // The line of MakePage with a fake Python.
  static std::string LineOf(const std::string& python, double seconds, bool stop = false) {
    setenv("TRIREME_PYTHON", python.c_str(), 1);
    testing::internal::CaptureStdout();
    MakePage({.folder = "runs/a", .seconds = seconds}, [stop] { return stop; });
    return testing::internal::GetCapturedStdout();
  }

  fs::path folder_;
};

TEST_F(Page, ScriptAndPythonAreFoundInTheSourceTreeThenInThePrefix) {
  const std::string program = Touch("tree/build/trireme");
  EXPECT_EQ(FindPageCommand("r", program, "/nowhere").script, "");
  const std::string source = Touch("elsewhere/vis/report.py");
  EXPECT_EQ(FindPageCommand("r", program, (folder_ / "elsewhere").string()).script, source);
  const std::string tree = Touch("tree/vis/report.py");
  EXPECT_EQ(FindPageCommand("r", program, (folder_ / "elsewhere").string()).script, tree);
  const std::string python = Fake("tree/build/venv/bin/python3", "");
  EXPECT_EQ(FindPageCommand("r", program, "").python, python);

  const std::string installed = Touch("prefix/bin/trireme");
  const std::string shared = Touch("prefix/share/trireme/vis/report.py");
  EXPECT_EQ(FindPageCommand("r", installed, (folder_ / "elsewhere").string()).script, shared);
  const std::string venv = Fake("prefix/share/trireme/venv/bin/python3", "");
  EXPECT_EQ(FindPageCommand("r", installed, "").python, venv);
  setenv("TRIREME_PYTHON", "/some/python", 1);
  EXPECT_EQ(FindPageCommand("r", installed, "").python, "/some/python");
}

TEST_F(Page, TheCommandIsOneForAShell) {
  const PageCommand plain = {.python = "python3", .script = "/t/vis/report.py", .folder = "runs/a"};
  EXPECT_EQ(plain.Text(), "python3 /t/vis/report.py runs/a");
  const PageCommand odd = {.python = "", .script = "", .folder = "it's; here"};
  EXPECT_EQ(odd.Text(), "python3 vis/report.py 'it'\\''s; here'");
}

TEST_F(Page, IsAnnouncedIfTheScriptSucceeds) {
  const std::string python = Fake("python", "test \"$2\" = --seconds && test \"$5\" = runs/a");
  EXPECT_EQ(LineOf(python, 60), "page    runs/a/report.html\n");
}

TEST_F(Page, AFailureIsOneLineWithItsReasonAndTheCommand) {
  const std::string python = Fake("python", "echo no such module >&2; echo more >&2; exit 4");
  const std::string line = LineOf(python, 60);
  EXPECT_EQ(line.find("page    not made: no such module; by hand: " + python), 0U) << line;
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  EXPECT_NE(LineOf(folder_ / "none", 60).find("No such file"), std::string::npos);
  EXPECT_NE(LineOf(Fake("dies", "kill -9 $$"), 60).find("not made"), std::string::npos);
}

TEST_F(Page, ALongMessageIsCutAndDoesNotBlock) {
  const std::string python = Fake("python", "head -c 300000 /dev/zero | tr '\\0' x >&2; exit 1");
  EXPECT_LT(LineOf(python, 20).size(), 1200U);
}

TEST_F(Page, TheBoundEndsTheScriptAndWhatItStarted) {
  const std::string mark = (folder_ / "mark").string();
  const std::string python = Fake("python", "(sleep 1; echo late >" + mark + ") & sleep 30");
  const double start = Seconds();
  const std::string line = LineOf(python, 0.3);
  EXPECT_LT(Seconds() - start, 5);
  EXPECT_NE(line.find("longer than"), std::string::npos) << line;
  while (Seconds() - start < 2) usleep(50'000);
  EXPECT_FALSE(fs::exists(mark));
}

TEST_F(Page, ASignalEndsItAtOnce) {
  const double start = Seconds();
  EXPECT_NE(LineOf(Fake("python", "sleep 30"), 20, true).find("a signal came"), std::string::npos);
  int calls = 0;
  setenv("TRIREME_PYTHON", (folder_ / "python").c_str(), 1);
  testing::internal::CaptureStdout();
  MakePage({.folder = "runs/a", .seconds = 20}, [&] { return ++calls > 3; });
  EXPECT_NE(testing::internal::GetCapturedStdout().find("a signal came"), std::string::npos);
  EXPECT_LT(Seconds() - start, 5);
}

TEST_F(Page, WithoutTimeTheScriptIsNotStarted) {
  const std::string mark = (folder_ / "mark").string();
  const std::string line = LineOf(Fake("python", "echo started >" + mark), 0);
  EXPECT_NE(line.find("the job's time ends; by hand: "), std::string::npos) << line;
  EXPECT_FALSE(fs::exists(mark));
}

}  // namespace
}  // namespace trireme::report
