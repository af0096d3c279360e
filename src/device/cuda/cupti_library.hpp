// CUPTI's functions, from a library that is loaded when they are first wanted and never unloaded: a
// thread of its own may still be running.
#ifndef TRIREME_SRC_DEVICE_CUDA_CUPTI_LIBRARY_HPP_
#define TRIREME_SRC_DEVICE_CUDA_CUPTI_LIBRARY_HPP_

#include <cupti.h>

#include <string>
#include <vector>

namespace trireme::device::cuda {

class CuptiLibrary {
 public:
  // The library of TRIREME_CUPTI; else one beside the CUDA runtime, else one on the library path.
  // Why() says what failed; empty: nothing.
  CuptiLibrary();

  const std::string& Why() const { return why_; }
  std::string Name() const;  // "CUPTI 13.0 (/usr/lib/libcupti.so.13)"
  std::string ErrorText(CUptiResult result) const;

  decltype(&cuptiSubscribe) subscribe = nullptr;
  decltype(&cuptiUnsubscribe) unsubscribe = nullptr;
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiActivityGetNumDroppedRecords) dropped_records = nullptr;
  decltype(&cuptiActivityPushExternalCorrelationId) push = nullptr;
  decltype(&cuptiActivityPopExternalCorrelationId) pop = nullptr;
  decltype(&cuptiGetTimestamp) timestamp = nullptr;
  decltype(&cuptiGetStreamIdEx) stream_id = nullptr;
  // Null in older libraries.
  using EnableCall = CUptiResult (*)(CUpti_CallbackId, std::uint8_t);
  EnableCall enable_runtime_call = nullptr, enable_driver_call = nullptr;

 private:
  template <typename Function>
  void Find(const char* name, Function& function, bool needed = true);
  void Open();

  void* library_ = nullptr;
  std::string path_, why_;
  decltype(&cuptiGetVersion) version_ = nullptr;
  decltype(&cuptiGetResultString) result_string_ = nullptr;
};

// "13.0" of 130001; "12" of the numbers of before.
std::string CuptiVersion(std::uint32_t number);

}  // namespace trireme::device::cuda

#endif  // TRIREME_SRC_DEVICE_CUDA_CUPTI_LIBRARY_HPP_
