// Machine descriptions: all that come with Trireme are read, and a written one reads back alike.
#include "trireme/predict/machine.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "trireme/base/error.hpp"

namespace trireme::predict {
namespace {

using testing::HasSubstr;

TEST(Machine, AllDescriptionsAreRead) {
  const std::vector<std::string> names = MachineNames(TRIREME_SOURCE);
  EXPECT_GE(names.size(), 10U);
  for (const std::string& name : names) {
    const Machine machine = ReadMachine(name, TRIREME_SOURCE);
    EXPECT_FALSE(machine.source.empty()) << name;
    EXPECT_FALSE(machine.assumptions.empty()) << name;
    EXPECT_GT(machine.bf16.peak, 1e14) << name;
    EXPECT_GT(machine.node.bandwidth, machine.network.bandwidth) << name;
  }
}

TEST(Machine, WrittenOneReadsBackAlike) {
  const Machine machine = ReadMachine("jupiter", TRIREME_SOURCE);
  const std::string path = testing::TempDir() + "/written.in";
  std::ofstream(path) << Write(machine, "a test");
  const Machine again = ReadMachine(path, TRIREME_SOURCE);
  EXPECT_EQ(Write(again, "a test"), Write(machine, "a test"));
  EXPECT_EQ(again.nodes, 5884);
  EXPECT_EQ(again.memory_bytes, machine.memory_bytes);
}

std::string Complaint(const std::string& name) {
  try {
    ReadMachine(name, TRIREME_SOURCE);
  } catch (const Error& error) {
    EXPECT_EQ(error.Code(), ExitCode::kBadInput);
    return error.what();
  }
  return "";
}

TEST(Machine, ErrorsNameTheFileAndItsLine) {
  EXPECT_THAT(Complaint("juptier"), HasSubstr("input/machines/juptier.in cannot be read"));
  EXPECT_THAT(Complaint("juptier"), HasSubstr("jupiter"));
  const std::string path = testing::TempDir() + "/typo.in";
  std::ofstream(path) << "[machine]\ntitle = x\n[compute]\nmemory_gb = 3\n";
  EXPECT_THAT(Complaint(path), HasSubstr(path + ":4"));
  EXPECT_THAT(Complaint(path), HasSubstr("memory_gbs"));
  std::ofstream(path) << "[compute]\nmemory_gbs = 3\n";
  EXPECT_THAT(Complaint(path), HasSubstr("links.node_gbs"));
}

// A program that was copied to a card without its files trains all the same.
TEST(Machine, ARunHasTheDescriptionOfItsCardOrNone) {
  device::GpuContext card;
  card.name = "NVIDIA H200";
  card.memory_bytes = std::int64_t{140} << 30;
  train::MachineFacts facts;
  facts.stream.gpu = &card;
  facts.dtype = Dtype::kBfloat16;
  const Described described = DescribeRun(kAutoMachine, facts, TRIREME_SOURCE);
  ASSERT_TRUE(described.machine) << described.why_none;
  EXPECT_EQ(described.machine->name, "h200");
  const Described none = DescribeRun(kAutoMachine, facts, testing::TempDir());
  EXPECT_FALSE(none.machine);
  EXPECT_THAT(none.why_none, HasSubstr("input/machines/h200.in is not beside the program"));
  EXPECT_THROW(DescribeRun("h200", facts, testing::TempDir()), Error);
}

}  // namespace
}  // namespace trireme::predict
