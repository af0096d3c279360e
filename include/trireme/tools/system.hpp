// Facts of one host, from Linux's files: network devices, file systems, limits, processors.
#ifndef TRIREME_TOOLS_SYSTEM_HPP_
#define TRIREME_TOOLS_SYSTEM_HPP_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::tools {

// Folders in which Linux describes the host; tests have their own.
struct Roots {
  std::string sys = "/sys";
  std::string proc = "/proc";
};

// Network devices that are up.
struct Devices {
  std::vector<std::string> infiniband;  // "mlx5_0 InfiniBand 200 Gb/sec (4X HDR)"; RoCE too
  std::vector<std::string> slingshot;   // "cxi0"
  std::vector<std::string> ethernet;    // "eth0 10 Gbit/s"
  bool Fast() const { return !infiniband.empty() || !slingshot.empty(); }
  std::string Text() const;  // at most a few names of each kind
};
Devices FindDevices(const Roots& roots);

// NUMA node of a PCI device of the system ("0000:41:00.0") or of another path that has one; -1: not
// known.
int NumaNodeOf(const std::string& folder);
// A sentence if the card on PCI address `address` hangs on another NUMA node than all of `cores`,
// or if the network cards that `chosen` names (UCX_NET_DEVICES: "mlx5_0:1,mlx5_1:1") hang on others
// while one of the card's own is there; empty: all well, or not known.
std::string FarCard(const std::string& address, std::span<const int> cores, std::string_view chosen,
                    const Roots& roots);

// Ways of MPI between hosts. library: MPI_Get_library_version; objects: file names of the loaded
// shared objects, among which Open MPI's components are (mca_pml_ob1.so); environment: a lookup.
struct Fabric {
  std::string library;     // "Open MPI 4.1.4", "MPICH 4.0.2"
  std::string transports;  // "pml ob1, btl self tcp vader", "ch4:ofi"; empty: not known
  bool tcp = false;        // between hosts, and nothing faster
};
using Lookup = const char* (*)(const char*);
Fabric FabricOf(const std::string& library, std::span<const std::string> objects,
                Lookup environment);
std::vector<std::string> LoadedObjects();  // file names without folders

// File system of a path, or of the nearest folder above it that exists.
struct FileSystem {
  std::string type;      // "lustre", "nfs", "ext4"; "type 0x1234" if it has no name here
  std::string striping;  // "4 stripes of 1 MiB"; empty: none, or not known
  bool shared = false;   // by many hosts, as its type says
  bool network_file_system = false;  // NFS
  std::uint64_t identity = 0;        // of the very place, for local types
  std::string Text() const;
};
FileSystem FileSystemOf(const std::string& path);
// Text of Lustre's attribute "lustre.lov"; empty if its form is not known.
std::string StripingOf(std::string_view attribute);

// Limits of this process and its node; -1: none.
struct Limits {
  std::int64_t locked_bytes = -1, open_files = -1, core_bytes = -1;
  std::int64_t shm_bytes = 0, shm_free = 0;  // of /dev/shm; 0: there is none
  std::string Text() const;
};
Limits ReadLimits();

// Numbers of the hardware threads that a job on this host may use: of its control group, else all.
std::vector<int> OnlineCores(const Roots& roots);

// "0-3,8"
std::string RangesOf(std::span<const int> numbers);

}  // namespace trireme::tools

#endif  // TRIREME_TOOLS_SYSTEM_HPP_
