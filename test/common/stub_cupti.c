/* A library in the place of NVIDIA's CUPTI, for the emulated GPU, which tells it of calls and of work (stub_cupti.h). Its
 * clock runs faster than the host's by 1/kFaster and from another time on. One thread.
 * TRIREME_STUB_CUPTI has any of these words: subscribed (another profiler is there), privileges (the driver forbids it),
 * lost (each seventh kernel has no times), small (a buffer holds one record in eight of what it could). */
#include "stub_cupti.h"

#include <cupti.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kMostKinds = 64, kMostDepth = 256, kMostStreams = 64, kFaster = 10000, kFirstStream = 7 };

static CUpti_BuffersCallbackRequestFunc requested;
static CUpti_BuffersCallbackCompleteFunc completed;
static int enabled[kMostKinds], subscribed;
static uint64_t open_ids[kMostDepth];
static int depth;
static const void* streams[kMostStreams];
static int stream_count;
static uint32_t calls;
static uint8_t* buffer;
static size_t room, used;
static size_t dropped;
static uint32_t kernels;

static int Asked(const char* word) {
  const char* words = getenv("TRIREME_STUB_CUPTI");
  return words != NULL && strstr(words, word) != NULL;
}

static uint64_t OwnTime(uint64_t steady) { return 1700000000000000000ULL + steady + steady / kFaster; }

static uint32_t StreamNumber(const void* stream) {
  for (int i = 0; i < stream_count; ++i) {
    if (streams[i] == stream) return (uint32_t)(kFirstStream + i);
  }
  if (stream_count == kMostStreams) return 1;
  streams[stream_count] = stream;
  return (uint32_t)(kFirstStream + stream_count++);
}

static size_t SizeOf(CUpti_ActivityKind kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: return sizeof(CUpti_ActivityKernel9) + 8; /* a newer record is longer */
    case CUPTI_ACTIVITY_KIND_MEMCPY: return sizeof(CUpti_ActivityMemcpy5) + 8;
    case CUPTI_ACTIVITY_KIND_MEMSET: return sizeof(CUpti_ActivityMemset4);
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: return sizeof(CUpti_ActivityExternalCorrelation);
    default: return 0;
  }
}

static void Complete(void) {
  if (buffer == NULL) return;
  uint8_t* const full = buffer;
  buffer = NULL;
  completed(NULL, 0, full, room, used);
}

static void Put(const void* record, CUpti_ActivityKind kind, size_t bytes) {
  if (!enabled[kind] || requested == NULL) return;
  const size_t size = SizeOf(kind);
  if (buffer != NULL && used + size > (Asked("small") ? room / 8 : room)) Complete();
  if (buffer == NULL) {
    size_t most = 0;
    requested(&buffer, &room, &most);
    used = 0;
    if (buffer == NULL) {
      ++dropped;
      return;
    }
  }
  memset(buffer + used, 0, size);
  memcpy(buffer + used, record, bytes);
  used += size;
}

uint32_t StubCuptiCall(void) {
  ++calls;
  if (depth == 0 || !(enabled[CUPTI_ACTIVITY_KIND_RUNTIME] || enabled[CUPTI_ACTIVITY_KIND_DRIVER])) return calls;
  const CUpti_ActivityExternalCorrelation record = {.kind = CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
                                                    .externalKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0,
                                                    .externalId = open_ids[depth - 1],
                                                    .correlationId = calls};
  Put(&record, record.kind, sizeof record);
  return calls;
}

void StubCuptiWork(const struct StubWork* work) {
  const uint64_t begin = OwnTime(work->begin), end = OwnTime(work->end);
  const uint32_t stream = StreamNumber(work->stream);
  if (work->kind == kStubKernel) {
    const int lost = Asked("lost") && ++kernels % 7 == 0;
    const CUpti_ActivityKernel9 record = {.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                          .start = lost ? 0 : begin,
                                          .end = lost ? 0 : end,
                                          .streamId = stream,
                                          .correlationId = work->call,
                                          .name = work->name,
                                          .graphNodeId = work->node,
                                          .graphId = work->graph};
    Put(&record, record.kind, sizeof record);
  } else if (work->kind == kStubCopy) {
    const CUpti_ActivityMemcpy5 record = {.kind = CUPTI_ACTIVITY_KIND_MEMCPY,
                                          .bytes = work->bytes,
                                          .start = begin,
                                          .end = end,
                                          .streamId = stream,
                                          .correlationId = work->call,
                                          .graphNodeId = work->node,
                                          .graphId = work->graph};
    Put(&record, record.kind, sizeof record);
  } else {
    const CUpti_ActivityMemset4 record = {.kind = CUPTI_ACTIVITY_KIND_MEMSET,
                                          .bytes = work->bytes,
                                          .start = begin,
                                          .end = end,
                                          .streamId = stream,
                                          .correlationId = work->call,
                                          .graphNodeId = work->node,
                                          .graphId = work->graph};
    Put(&record, record.kind, sizeof record);
  }
}

CUptiResult cuptiGetVersion(uint32_t* version) {
  *version = 130200;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiGetResultString(CUptiResult result, const char** text) {
  *text = result == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES              ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
          : result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED ? "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED"
                                                                     : "another error";
  return CUPTI_SUCCESS;
}
CUptiResult cuptiSubscribe(CUpti_SubscriberHandle* subscriber, CUpti_CallbackFunc callback, void* userdata) {
  (void)callback, (void)userdata;
  if (Asked("subscribed") || subscribed) return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
  subscribed = 1;
  *subscriber = (CUpti_SubscriberHandle)(void*)&subscribed;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle subscriber) {
  if ((void*)subscriber != (void*)&subscribed || !subscribed) return CUPTI_ERROR_INVALID_PARAMETER;
  subscribed = 0;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc request,
                                           CUpti_BuffersCallbackCompleteFunc complete) {
  requested = request;
  completed = complete;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  if (Asked("privileges")) return CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
  enabled[kind] = 1;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
  enabled[kind] = 0;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityFlushAll(uint32_t flag) {
  (void)flag;
  if (completed != NULL) Complete();
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNextRecord(uint8_t* from, size_t valid, CUpti_Activity** record) {
  uint8_t* const next =
      *record == NULL ? from : (uint8_t*)*record + SizeOf((*record)->kind);
  if (next >= from + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  *record = (CUpti_Activity*)(void*)next;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t* count) {
  (void)context, (void)stream;
  *count = dropped;
  dropped = 0;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t id) {
  (void)kind;
  if (depth == kMostDepth) return CUPTI_ERROR_MAX_LIMIT_REACHED;
  open_ids[depth++] = id;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind kind, uint64_t* last) {
  (void)kind;
  if (depth == 0) return CUPTI_ERROR_QUEUE_EMPTY;
  --depth;
  if (last != NULL) *last = open_ids[depth];
  return CUPTI_SUCCESS;
}
CUptiResult cuptiGetTimestamp(uint64_t* nanoseconds) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  *nanoseconds = OwnTime((uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiGetStreamIdEx(CUcontext context, CUstream stream, uint8_t per_thread, uint32_t* id) {
  (void)context, (void)per_thread;
  *id = StreamNumber(stream);
  return CUPTI_SUCCESS;
}
