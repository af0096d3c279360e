/* Stand-in for NVIDIA's header of the same name: the few types, numbers and functions that the program uses, laid out as
 * in CUDA 12.4 to 13 (test/unit/device/cuda/activities_test.cpp holds the real header to the same). A program built with
 * it loads the library that TRIREME_CUPTI names, and finds none elsewhere: there is no version 99. C and C++. */
#ifndef TRIREME_TEST_EMULATOR_CUPTI_H_
#define TRIREME_TEST_EMULATOR_CUPTI_H_

#include <stddef.h>
#include <stdint.h>

#define CUPTI_API_VERSION 990000
#define CUPTI_ACTIVITY_FLAG_FLUSH_FORCED 1

#ifdef __cplusplus
extern "C" {
#endif

typedef struct CUctx_st* CUcontext;
typedef struct CUstream_st* CUstream;
typedef struct CUpti_Subscriber_st* CUpti_SubscriberHandle;
typedef uint32_t CUpti_CallbackId;

typedef enum {
  CUPTI_SUCCESS = 0,
  CUPTI_ERROR_INVALID_PARAMETER = 1,
  CUPTI_ERROR_MAX_LIMIT_REACHED = 12,
  CUPTI_ERROR_QUEUE_EMPTY = 18,
  CUPTI_ERROR_INSUFFICIENT_PRIVILEGES = 35,
  CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED = 39,
  CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES = 40
} CUptiResult;

typedef enum { CUPTI_CB_DOMAIN_INVALID = 0 } CUpti_CallbackDomain;
typedef void (*CUpti_CallbackFunc)(void* userdata, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data);

typedef enum {
  CUPTI_ACTIVITY_KIND_MEMCPY = 1,
  CUPTI_ACTIVITY_KIND_MEMSET = 2,
  CUPTI_ACTIVITY_KIND_DRIVER = 4,
  CUPTI_ACTIVITY_KIND_RUNTIME = 5,
  CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL = 10,
  CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION = 39
} CUpti_ActivityKind;
typedef enum { CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0 = 3 } CUpti_ExternalCorrelationKind;

enum {
  CUPTI_RUNTIME_TRACE_CBID_cudaGetLastError_v3020 = 10,
  CUPTI_RUNTIME_TRACE_CBID_cudaStreamQuery_v3020 = 132,
  CUPTI_RUNTIME_TRACE_CBID_cudaEventRecord_v3020 = 135,
  CUPTI_RUNTIME_TRACE_CBID_cudaEventQuery_v3020 = 138,
  CUPTI_RUNTIME_TRACE_CBID_cudaStreamWaitEvent_v3020 = 147
};
enum {
  CUPTI_DRIVER_TRACE_CBID_cuEventRecord = 119,
  CUPTI_DRIVER_TRACE_CBID_cuEventQuery = 120,
  CUPTI_DRIVER_TRACE_CBID_cuStreamQuery = 125,
  CUPTI_DRIVER_TRACE_CBID_cuStreamWaitEvent = 295
};

typedef struct {
  CUpti_ActivityKind kind;
} CUpti_Activity;

typedef struct {
  CUpti_ActivityKind kind;
  uint32_t ignored0[3];
  uint64_t start, end; /* nanoseconds */
  uint64_t completed;
  uint32_t deviceId, contextId, streamId;
  uint32_t ignored1[10];
  uint32_t correlationId;
  int64_t gridId;
  const char* name;
  uint64_t ignored2[4];
  uint64_t graphNodeId;
  uint32_t ignored3;
  uint32_t graphId;
  uint64_t ignored4[6];
} CUpti_ActivityKernel9;

typedef struct {
  CUpti_ActivityKind kind;
  uint8_t copyKind, srcKind, dstKind, flags;
  uint64_t bytes;
  uint64_t start, end;
  uint32_t deviceId, contextId, streamId, correlationId;
  uint64_t ignored0[2];
  uint64_t graphNodeId;
  uint32_t graphId;
  uint32_t ignored1[3];
} CUpti_ActivityMemcpy5;

typedef struct {
  CUpti_ActivityKind kind;
  uint32_t value;
  uint64_t bytes;
  uint64_t start, end;
  uint32_t deviceId, contextId, streamId, correlationId;
  uint64_t ignored0[2];
  uint64_t graphNodeId;
  uint32_t graphId;
  uint32_t ignored1[3];
} CUpti_ActivityMemset4;

typedef struct {
  CUpti_ActivityKind kind;
  CUpti_ExternalCorrelationKind externalKind;
  uint64_t externalId;
  uint32_t correlationId;
  uint32_t ignored0;
} CUpti_ActivityExternalCorrelation;

typedef void (*CUpti_BuffersCallbackRequestFunc)(uint8_t** buffer, size_t* size, size_t* most_records);
typedef void (*CUpti_BuffersCallbackCompleteFunc)(CUcontext context, uint32_t stream, uint8_t* buffer, size_t size,
                                                  size_t valid);

CUptiResult cuptiGetVersion(uint32_t* version);
CUptiResult cuptiGetResultString(CUptiResult result, const char** text);
CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* subscriber, CUpti_CallbackFunc callback, void* userdata);
CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle subscriber);
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc requested,
                                           CUpti_BuffersCallbackCompleteFunc completed);
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind);
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind);
CUptiResult cuptiActivityFlushAll(uint32_t flag);
CUptiResult cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, CUpti_Activity** record);
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t* dropped);
CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id);
CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t* last);
CUptiResult cuptiGetTimestamp(uint64_t* nanoseconds);
CUptiResult cuptiGetStreamIdEx(CUcontext context, CUstream stream, uint8_t per_thread, uint32_t* id);

#ifdef __cplusplus
}
#endif

#endif /* TRIREME_TEST_EMULATOR_CUPTI_H_ */
