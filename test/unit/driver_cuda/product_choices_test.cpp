// The file in which choices of products are kept: its name, what is taken from it, and what happens
// where it cannot be written.
#include "trireme/train/training_step.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "listening_libraries.hpp"
#include "temporary_folder.hpp"
#include "training_run.hpp"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kChosen = R"({"card": "NVIDIA H100 80GB HBM3, 132 multiprocessors",
  "library": "cuBLASLt 130100", "products": []})";

// A variable of the environment for as long as this lives; null: unset.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    const char* const old = std::getenv(name);
    had_ = old != nullptr;
    if (had_) old_ = old;
    value == nullptr ? unsetenv(name) : setenv(name, value, 1);
  }
  ~Variable() { had_ ? setenv(name_, old_.c_str(), 1) : unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  bool had_ = false;
  std::string old_;
};

std::string Read(const std::string& file) {
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

class ProductChoices : public testing::Test {
 protected:
  ProductChoices() : world_(World()) {}
  // Output of KeepChoices on stderr.
  std::string Keep(const std::string& file, const kernels::Libraries& products) const {
    testing::internal::CaptureStderr();
    train::KeepChoices(world_, file, products);
    return testing::internal::GetCapturedStderr();
  }
  std::size_t FilesIn(const std::string& folder) const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
  }
  comm::Communicator world_;
  TemporaryFolder folder_;
};

TEST_F(ProductChoices, TheFileIsOfTheCardAndTheLibrary) {
  const std::string name =
      "/trireme/products_NVIDIA_H100_80GB_HBM3__132_multiprocessors_cuBLASLt_130100.json";
  {
    const Variable cache("XDG_CACHE_HOME", "/some/cache"), home("HOME", "/some/home");
    EXPECT_EQ(train::ChoicesFile(kChosen), "/some/cache" + name);
  }
  {
    const Variable cache("XDG_CACHE_HOME", nullptr), home("HOME", "/some/home");
    EXPECT_EQ(train::ChoicesFile(kChosen), "/some/home/.cache" + name);
  }
  {
    const Variable cache("XDG_CACHE_HOME", ""), home("HOME", "/some/home");
    EXPECT_EQ(train::ChoicesFile(kChosen), "/some/home/.cache" + name);
  }
  const Variable cache("XDG_CACHE_HOME", nullptr), home("HOME", nullptr);
  EXPECT_EQ(train::ChoicesFile(kChosen), "");
}

TEST_F(ProductChoices, KeptAndTaken) {
  const std::string file = folder_ / "a/b/products.json";
  EXPECT_EQ(Keep(file, Listening(kChosen)), "");
  EXPECT_EQ(Read(file), std::string(kChosen) + "\n");
  EXPECT_EQ(FilesIn(folder_ / "a/b"), 1u);  // the temporary one is gone
  Listening taking(kChosen);
  train::TakeKeptChoices(world_, file, taking);
  EXPECT_THAT(taking.Adopted(), ElementsAre(ElementsAre(std::string(kChosen) + "\n")));
  // Written anew.
  EXPECT_EQ(Keep(file, Listening("{}")), "");
  EXPECT_EQ(Read(file), "{}\n");
}

TEST_F(ProductChoices, NothingIsTakenOfNothing) {
  Listening taking(kChosen);
  train::TakeKeptChoices(world_, "", taking);
  train::TakeKeptChoices(world_, folder_ / "missing.json", taking);
  std::ofstream(folder_ / "empty.json").close();
  train::TakeKeptChoices(world_, folder_ / "empty.json", taking);
  EXPECT_TRUE(taking.Adopted().empty());
  EXPECT_EQ(Keep("", taking), "");
}

// run.products = products.json: where the job was started.
TEST_F(ProductChoices, AFileWithoutAFolder) {
  const fs::path before = fs::current_path();
  fs::current_path(folder_.Path());
  const std::string said = Keep("products.json", Listening(kChosen));
  const std::string written = Read("products.json");
  fs::current_path(before);
  EXPECT_EQ(said, "");
  EXPECT_EQ(written, std::string(kChosen) + "\n");
}

TEST_F(ProductChoices, WhatCannotBeKeptIsAWarning) {
  std::ofstream(folder_ / "file") << "no folder\n";
  const std::string file = folder_ / "file/products.json";
  const std::string said = Keep(file, Listening(kChosen));
  EXPECT_THAT(said, HasSubstr("warning: " + file +
                              ": the algorithms of the matrix products could not be kept ("));
  EXPECT_THAT(said, HasSubstr("(run.products)\n"));
  EXPECT_EQ(Read(folder_ / "file"), "no folder\n");
  // A folder has the file's name: nothing is left behind, and the folder stays.
  fs::create_directories(folder_ / "taken/products.json/full");
  EXPECT_THAT(Keep(folder_ / "taken/products.json", Listening(kChosen)),
              HasSubstr("could not be kept"));
  EXPECT_EQ(FilesIn(folder_ / "taken"), 1u);
  EXPECT_TRUE(fs::is_directory(folder_ / "taken/products.json/full"));
  Listening taking(kChosen);
  train::TakeKeptChoices(world_, folder_ / "taken/products.json", taking);
  EXPECT_TRUE(taking.Adopted().empty());
}

}  // namespace
}  // namespace trireme::test
