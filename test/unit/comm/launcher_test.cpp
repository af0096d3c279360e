// What launchers say in the environment, and processes that MPI does not know of each other.
#include "trireme/comm/runtime.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

namespace trireme::comm {
namespace {

using Variables = std::map<std::string, std::string>;

class LauncherTest : public testing::Test {
 protected:
  LauncherTest() {
    for (const char* name : {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE", "PMI_RANK",
                             "FLUX_JOB_SIZE", "FLUX_TASK_RANK", "JSM_NAMESPACE_SIZE",
                             "JSM_NAMESPACE_RANK", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}) {
      if (const char* value = std::getenv(name)) before_[name] = value;
      names_.emplace_back(name);
    }
  }
  ~LauncherTest() override { Set(before_); }
  void Set(const Variables& variables) {
    for (const std::string& name : names_) ::unsetenv(name.c_str());
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  }
  Launcher Read(const Variables& variables) {
    Set(variables);
    return ReadLauncher();
  }
  std::string Refusal(const Variables& variables) {
    try {
      EXPECT_FALSE(RefuseSingletons(Read(variables), 1));
    } catch (const Error& error) {
      EXPECT_EQ(error.Code(), ExitCode::kBadInput);
      return error.what();
    }
    return "";
  }

 private:
  std::vector<std::string> names_;
  Variables before_;
};

TEST_F(LauncherTest, StepOfSlurmWithoutPmix) {
  const Variables step = {{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "0"}};
  EXPECT_THAT(Refusal(step), testing::HasSubstr("the Slurm step has 2 tasks, MPI sees 1"));
  EXPECT_THAT(Refusal(step), testing::HasSubstr("srun --mpi=pmix"));
  EXPECT_FALSE(RefuseSingletons(Read(step), 2));
  // One message is enough.
  EXPECT_TRUE(RefuseSingletons(Read({{"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "1"}}), 1));
  // pmi2, which this MPI library does not speak.
  Variables pmi2 = step;
  pmi2["PMI_SIZE"] = "2";
  pmi2["PMI_RANK"] = "0";
  EXPECT_THAT(Refusal(pmi2), testing::HasSubstr("the Slurm step has 2 tasks"));
}

TEST_F(LauncherTest, AShellInAJobIsNoStep) {
  EXPECT_EQ(Refusal({}), "");
  EXPECT_EQ(Refusal({{"SLURM_NTASKS", "8"}, {"SLURM_JOB_NUM_NODES", "2"}}), "");
  EXPECT_EQ(Refusal({{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}}), "");
  EXPECT_EQ(Refusal({{"SLURM_STEP_NUM_TASKS", "many"}}), "");
}

TEST_F(LauncherTest, TheNearestLauncherCounts) {
  // mpirun starts its daemons through a step of two nodes, and one rank.
  const Variables mpirun = {{"SLURM_STEP_NUM_TASKS", "2"},
                            {"SLURM_PROCID", "0"},
                            {"OMPI_COMM_WORLD_SIZE", "1"},
                            {"OMPI_COMM_WORLD_RANK", "0"}};
  EXPECT_EQ(Refusal(mpirun), "");
  const Variables hydra = {{"SLURM_STEP_NUM_TASKS", "2"}, {"PMI_SIZE", "1"}, {"PMI_RANK", "0"}};
  EXPECT_EQ(Refusal(hydra), "");
}

TEST_F(LauncherTest, OtherLaunchers) {
  EXPECT_THAT(Refusal({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "0"}}),
              testing::HasSubstr("Open MPI's mpirun has 4 tasks, MPI sees 1"));
  EXPECT_THAT(Refusal({{"PMI_SIZE", "3"}, {"PMI_RANK", "0"}}),
              testing::HasSubstr("the launcher has 3 tasks"));
  EXPECT_THAT(Refusal({{"FLUX_JOB_SIZE", "3"}, {"FLUX_TASK_RANK", "0"}}),
              testing::HasSubstr("flux run has 3 tasks"));
  EXPECT_THAT(Refusal({{"JSM_NAMESPACE_SIZE", "6"}, {"JSM_NAMESPACE_RANK", "0"}}),
              testing::HasSubstr("jsrun has 6 tasks"));
  // Nobody says which process is the first: all speak.
  EXPECT_NE(Refusal({{"PMI_SIZE", "3"}}), "");
}

}  // namespace
}  // namespace trireme::comm
