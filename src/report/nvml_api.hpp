// Declarations of the few functions of NVIDIA's management library that are called, as its manual
// states them, so that building needs no header of its and running no library.
#ifndef TRIREME_SRC_REPORT_NVML_API_HPP_
#define TRIREME_SRC_REPORT_NVML_API_HPP_

namespace trireme::report {

extern "C" {

using NvmlDevice = struct nvmlDevice_st*;  // nvmlDevice_t

struct NvmlUtilization {  // nvmlUtilization_t: percent of the last sample period
  unsigned int gpu;
  unsigned int memory;
};
struct NvmlMemory {  // nvmlMemory_t: bytes
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

using NvmlInit = int (*)();      // nvmlInit_v2
using NvmlShutdown = int (*)();  // nvmlShutdown
using NvmlErrorString = const char* (*)(int);
using NvmlHandleByUuid = int (*)(const char*, NvmlDevice*);        // nvmlDeviceGetHandleByUUID
using NvmlTotalEnergy = int (*)(NvmlDevice, unsigned long long*);  // since the driver: millijoules
using NvmlPower = int (*)(NvmlDevice, unsigned int*);              // milliwatts
using NvmlUtilizationRates = int (*)(NvmlDevice, NvmlUtilization*);
using NvmlMemoryInfo = int (*)(NvmlDevice, NvmlMemory*);
}

inline constexpr int kNvmlSuccess = 0;  // NVML_SUCCESS

}  // namespace trireme::report

#endif  // TRIREME_SRC_REPORT_NVML_API_HPP_
