// Facts of a host from trees of the test's own: network devices, distances, file systems, fabrics.
#include "trireme/base/files.hpp"
#include "trireme/tools/preflight.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "temporary_folder.hpp"

namespace trireme::tools {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class SystemTest : public testing::Test {
 protected:
  void Put(const std::string& path, const std::string& text) {
    const std::filesystem::path at(folder_ / path);
    std::filesystem::create_directories(at.parent_path());
    std::ofstream(at) << text << '\n';
  }
  Roots Root() const { return {.sys = folder_.Path(), .proc = folder_.Path()}; }
  test::TemporaryFolder folder_;
};

TEST_F(SystemTest, DevicesThatAreUp) {
  Put("class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE");
  Put("class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand");
  Put("class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)");
  Put("class/infiniband/mlx5_1/ports/1/state", "1: DOWN");
  Put("class/net/lo/operstate", "unknown");
  Put("class/net/eth0/operstate", "up");
  Put("class/net/eth0/speed", "25000");
  Put("class/net/eth1/operstate", "down");
  const Devices devices = FindDevices(Root());
  EXPECT_THAT(devices.infiniband, testing::ElementsAre("mlx5_0 InfiniBand 200 Gb/sec (4X HDR)"));
  EXPECT_THAT(devices.ethernet, testing::ElementsAre("eth0 25 Gbit/s"));
  EXPECT_TRUE(devices.Fast());
  Put("class/cxi/cxi0/device/numa_node", "3");
  EXPECT_THAT(FindDevices(Root()).slingshot, testing::ElementsAre("cxi0"));
  EXPECT_FALSE(FindDevices({.sys = folder_ / "nowhere"}).Fast());
}

TEST_F(SystemTest, ACardFarFromItsCoresOrItsNetworkCard) {
  Put("bus/pci/devices/0000:41:00.0/numa_node", "1");
  Put("bus/pci/devices/0000:41:00.0/local_cpulist", "8-15,24-31");
  const std::vector<int> near = {8, 9}, far = {0, 1, 2}, both = {7, 8};
  const auto complaint = [&](const std::vector<int>& cores, const char* chosen) {
    return FarCard("0000:41:00.0", cores, chosen, Root());
  };
  EXPECT_THAT(complaint(far, ""), HasSubstr("hangs on cores 8-15,24-31 (NUMA node 1)"));
  EXPECT_THAT(complaint(far, ""), HasSubstr("bound to cores 0-2"));
  EXPECT_THAT(complaint(near, ""), IsEmpty());
  EXPECT_THAT(complaint(both, ""), IsEmpty());
  Put("class/infiniband/mlx5_0/device/numa_node", "0");
  EXPECT_THAT(complaint(near, "mlx5_0:1"), IsEmpty());  // there is no nearer one
  Put("class/infiniband/mlx5_1/device/numa_node", "1");
  EXPECT_THAT(complaint(near, "mlx5_0:1"), HasSubstr("network card mlx5_0 of another node"));
  EXPECT_THAT(complaint(near, "mlx5_0:1,mlx5_1:1"), IsEmpty());
  EXPECT_THAT(FarCard("0000:99:00.0", far, "", Root()), IsEmpty());  // not known
}

TEST(Fabric, OfOpenMpiByItsComponents) {
  const auto none = [](const char*) -> const char* { return nullptr; };
  const std::string library = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4";
  const auto of = [&](std::vector<std::string> objects, Lookup environment) {
    return FabricOf(library, objects, environment);
  };
  const Fabric tcp =
      of({"libmpi.so.40", "mca_pml_ob1.so", "mca_btl_tcp.so", "mca_btl_self.so"}, none);
  EXPECT_EQ(tcp.library, "Open MPI 4.1.4");
  EXPECT_EQ(tcp.transports, "pml ob1, btl self tcp");
  EXPECT_TRUE(tcp.tcp);
  EXPECT_FALSE(of({"mca_pml_ob1.so", "mca_btl_tcp.so", "mca_btl_openib.so"}, none).tcp);
  EXPECT_FALSE(of({"mca_pml_ucx.so", "mca_btl_tcp.so"}, none).tcp);
  const auto chosen = [](const char* name) -> const char* {
    return std::strcmp(name, "UCX_TLS") == 0 ? "tcp,self,sm" : nullptr;
  };
  EXPECT_TRUE(of({"mca_pml_ucx.so"}, chosen).tcp);
  for (const auto& [transports, tcp_alone] : {std::pair{"tcp,sm,cuda_copy", true},
                                              {"^tcp", false},
                                              {"tcp,rc_x", false},
                                              {"all", false}}) {
    static const char* value;
    value = transports;
    const auto given = [](const char* name) -> const char* {
      return std::strcmp(name, "UCX_TLS") == 0 ? value : nullptr;
    };
    EXPECT_EQ(of({"mca_pml_ucx.so"}, given).tcp, tcp_alone) << transports;
  }
  EXPECT_EQ(of({}, none).transports, "");
}

TEST(Fabric, OfMpichByItsDevice) {
  const std::string library =
      "MPICH Version:\t4.0.2\nMPICH Release date:\tx\nMPICH Device:\tch4:ofi\n";
  const auto none = [](const char*) -> const char* { return nullptr; };
  EXPECT_EQ(FabricOf(library, {}, none).library, "MPICH 4.0.2");
  EXPECT_EQ(FabricOf(library, {}, none).transports, "ch4:ofi");
  EXPECT_FALSE(FabricOf(library, {}, none).tcp);
  const auto sockets = [](const char* name) -> const char* {
    return std::strcmp(name, "FI_PROVIDER") == 0 ? "sockets" : nullptr;
  };
  EXPECT_TRUE(FabricOf(library, {}, sockets).tcp);
}

// As Linux and Lustre define them.
TEST(FileSystem, TypesHaveNames) {
  EXPECT_EQ(NameOfFileSystem(0x0BD00BD0), "lustre");
  EXPECT_EQ(NameOfFileSystem(0x47504653), "gpfs");
  EXPECT_EQ(NameOfFileSystem(0x19830326), "beegfs");
  EXPECT_EQ(NameOfFileSystem(0x6969), "nfs");
  EXPECT_EQ(NameOfFileSystem(0x1234), "type 0x1234");
  const FileSystem here = FileSystemOf("/dev/shm/not/there/yet");
  EXPECT_EQ(here.type, "tmpfs");
  EXPECT_FALSE(here.shared);
  EXPECT_EQ(here.identity, FileSystemOf("/dev/shm").identity);
}

template <typename T>
void Write(std::string& bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

TEST(FileSystem, StripingOfLustre) {
  std::string plain(32, '\0');
  Write<std::uint32_t>(plain, 0, 0x0BD10BD0);
  Write<std::uint32_t>(plain, 24, 4 << 20);
  Write<std::uint16_t>(plain, 28, 8);
  EXPECT_EQ(StripingOf(plain), "8 stripes of 4 MiB");
  Write<std::uint16_t>(plain, 28, 0xFFFF);
  EXPECT_EQ(StripingOf(plain), "stripes of 4 MiB over all servers");
  EXPECT_EQ(StripingOf(plain.substr(0, 20)), "");

  std::string composite(32 + 2 * 48, '\0');
  Write<std::uint32_t>(composite, 0, 0x0BD60BD0);
  Write<std::uint16_t>(composite, 14, 2);
  Write<std::uint32_t>(composite, 32 + 48 + 24, static_cast<std::uint32_t>(composite.size()));
  Write<std::uint32_t>(composite, 32 + 48 + 28, 32);
  Write<std::uint16_t>(plain, 28, 1);
  EXPECT_EQ(StripingOf(composite + plain), "2 components, the last with 1 stripe of 4 MiB");
  Write<std::uint32_t>(composite, 32 + 48 + 24, 0xFFFFFF00U);
  EXPECT_EQ(StripingOf(composite + plain), "");
  Write<std::uint16_t>(composite, 14, 0xFFFF);
  EXPECT_EQ(StripingOf(composite), "");
}

TEST(Ranges, OfNumbers) {
  EXPECT_EQ(RangesOf(std::vector<int>{0, 1, 2, 8, 10, 11}), "0-2,8,10-11");
  EXPECT_EQ(RangesOf(std::vector<int>{}), "");
}

}  // namespace
}  // namespace trireme::tools
