// CuptiLibrary: where the library may lie, and its functions.
#include "cupti_library.hpp"

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace trireme::device::cuda {

namespace {

constexpr std::uint32_t kNewNumbers = 10000;  // from CUDA 13.0 on: major * 10000 + minor * 100
constexpr int kOldMajor = 12;

// The folder of the CUDA runtime in use; of the program, if that is linked into it.
std::filesystem::path RuntimeFolder() {
  Dl_info place{};
  if (dladdr(reinterpret_cast<const void*>(&cudaRuntimeGetVersion), &place) == 0) return {};
  std::error_code error;
  return std::filesystem::canonical(place.dli_fname, error).parent_path();
}

// In the order in which they are tried: of the toolkit, of NVIDIA's packages of PyPI (a folder for
// all libraries, or one for each), of the system.
std::vector<std::string> Candidates() {
  if (const char* const given = std::getenv("TRIREME_CUPTI")) return {given};
  const std::uint32_t api = CUPTI_API_VERSION;
  const std::uint32_t major = api < kNewNumbers ? kOldMajor : api / kNewNumbers;
  const std::string name = fmt::format("libcupti.so.{}", major);
  std::vector<std::string> paths;
  const std::filesystem::path folder = RuntimeFolder();
  for (const char* const way :
       {".", "../extras/CUPTI/lib64", "../../../extras/CUPTI/lib64", "../../cuda_cupti/lib"}) {
    std::error_code error;
    const std::filesystem::path path = folder / way / name;
    if (!folder.empty() && std::filesystem::exists(path, error)) paths.push_back(path.string());
  }
  paths.push_back(name);
  return paths;
}

}  // namespace

std::string CuptiVersion(std::uint32_t number) {
  if (number < kNewNumbers) return fmt::format("{}", kOldMajor);
  return fmt::format("{}.{}", number / kNewNumbers, number % kNewNumbers / 100);
}

template <typename Function>
void CuptiLibrary::Find(const char* name, Function& function, bool needed) {
  function = reinterpret_cast<Function>(dlsym(library_, name));
  if (function == nullptr && needed && why_.empty()) {
    why_ = fmt::format("{} lacks {}", path_, name);
  }
}

void CuptiLibrary::Open() {
  for (const std::string& path : Candidates()) {
    library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ != nullptr) {
      path_ = path;
      why_.clear();
      return;
    }
    const char* const reason = dlerror();
    if (why_.empty()) why_ = reason == nullptr ? path : reason;
  }
}

CuptiLibrary::CuptiLibrary() {
  Open();
  if (library_ == nullptr) return;
  Find("cuptiGetVersion", version_);
  Find("cuptiGetResultString", result_string_);
  Find("cuptiSubscribe", subscribe);
  Find("cuptiUnsubscribe", unsubscribe);
  Find("cuptiActivityRegisterCallbacks", register_callbacks);
  Find("cuptiActivityEnable", enable);
  Find("cuptiActivityDisable", disable);
  Find("cuptiActivityFlushAll", flush);
  Find("cuptiActivityGetNextRecord", next_record);
  Find("cuptiActivityGetNumDroppedRecords", dropped_records);
  Find("cuptiActivityPushExternalCorrelationId", push);
  Find("cuptiActivityPopExternalCorrelationId", pop);
  Find("cuptiGetTimestamp", timestamp);
  Find("cuptiGetStreamIdEx", stream_id);
  Find("cuptiActivityEnableRuntimeApi", enable_runtime_call, false);
  Find("cuptiActivityEnableDriverApi", enable_driver_call, false);
}

std::string CuptiLibrary::Name() const {
  std::uint32_t version = 0;
  version_(&version);
  return fmt::format("CUPTI {} ({})", CuptiVersion(version), path_);
}

std::string CuptiLibrary::ErrorText(CUptiResult result) const {
  const char* text = nullptr;
  if (result_string_(result, &text) != CUPTI_SUCCESS || text == nullptr) {
    return fmt::format("error {}", static_cast<int>(result));
  }
  return text;
}

}  // namespace trireme::device::cuda
