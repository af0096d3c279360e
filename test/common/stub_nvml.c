/* A library in the place of NVIDIA's: cards are the lines of the file that TRIREME_STUB_NVML names,
 * "UUID energy_mJ power_mW utilisation_percent used_bytes", read anew at every call. A negative
 * energy or power is not supported. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kSuccess = 0, kNotSupported = 3, kNotFound = 6, kDriverNotLoaded = 9, kMostCards = 16 };

struct Card {
  char uuid[96];
  long long energy, power, utilisation, used;
};
struct Utilisation {
  unsigned int gpu, memory;
};
struct Memory {
  unsigned long long total, free, used;
};

static char handles[kMostCards];

static int ReadCards(struct Card* cards) {
  const char* path = getenv("TRIREME_STUB_NVML");
  FILE* file = path ? fopen(path, "r") : NULL;
  if (!file) return -1;
  int count = 0;
  while (count < kMostCards &&
         fscanf(file, "%95s %lld %lld %lld %lld", cards[count].uuid, &cards[count].energy,
                &cards[count].power, &cards[count].utilisation, &cards[count].used) == 5) {
    ++count;
  }
  fclose(file);
  return count;
}

static int Find(const void* device, struct Card* card) {
  struct Card cards[kMostCards];
  const int count = ReadCards(cards);
  const long index = (const char*)device - handles;
  if (index < 0 || index >= count) return 15; /* the card is lost */
  *card = cards[index];
  return kSuccess;
}

int nvmlInit_v2(void) {
  struct Card cards[kMostCards];
  return ReadCards(cards) < 0 ? kDriverNotLoaded : kSuccess;
}
int nvmlShutdown(void) { return kSuccess; }
const char* nvmlErrorString(int result) {
  return result == kDriverNotLoaded ? "Driver Not Loaded" : result == kNotFound ? "Not Found" : "Unknown Error";
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  struct Card cards[kMostCards];
  const int count = ReadCards(cards);
  for (int i = 0; i < count; ++i) {
    if (strcmp(cards[i].uuid, uuid) != 0) continue;
    *device = &handles[i];
    return kSuccess;
  }
  return kNotFound;
}
int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* energy) {
  struct Card card;
  const int result = Find(device, &card);
  if (result != kSuccess) return result;
  if (card.energy < 0) return kNotSupported;
  *energy = (unsigned long long)card.energy;
  return kSuccess;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned int* power) {
  struct Card card;
  const int result = Find(device, &card);
  if (result != kSuccess) return result;
  if (card.power < 0) return kNotSupported;
  *power = (unsigned int)card.power;
  return kSuccess;
}
int nvmlDeviceGetUtilizationRates(void* device, struct Utilisation* rates) {
  struct Card card;
  const int result = Find(device, &card);
  if (result != kSuccess) return result;
  rates->gpu = (unsigned int)card.utilisation;
  rates->memory = 0;
  return kSuccess;
}
int nvmlDeviceGetMemoryInfo(void* device, struct Memory* memory) {
  struct Card card;
  const int result = Find(device, &card);
  if (result != kSuccess) return result;
  memory->total = 80ULL << 30;
  memory->used = (unsigned long long)card.used;
  memory->free = memory->total - memory->used;
  return kSuccess;
}
