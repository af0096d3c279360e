// Matrices of a warp by the layouts of PTX's documents, and copies that reach shared memory as late
// as they may.
#include "matrix.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "block.hpp"
#include "mutation.hpp"
#include "settings.hpp"
#include "stream.hpp"
#include "trireme/device/cuda/matrix.cuh"

namespace emulator {

namespace {

using Kind = MatrixRequest::Kind;
constexpr int kLanes = 32, kBanks = 32, kBankBytes = 4, kRowBytes = 16, kRows = 8, kMatrices = 4;

MatrixLoads loads;

const MatrixRequest& Request(std::uint64_t address) {
  return *reinterpret_cast<const MatrixRequest*>(address);
}

float Half(unsigned word, int half) {
  return std::bit_cast<float>(half == 0 ? word << 16 : word & 0xFFFF0000u);
}

// Element [row][column] of each lane's registers, as MultiplyMatrices has it.
void Multiply(const std::uint64_t (&requests)[kLanes]) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < kLanes; ++lane) {
    const MatrixRequest& request = Request(requests[lane]);
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 4; ++i) {
        a[group + i % 2 * 8][pair + i / 2 * 8 + half] = Half(request.a[i], half);
      }
      for (int i = 0; i < 2; ++i) b[pair + i * 8 + half][group] = Half(request.b[i], half);
    }
  }
  float sums[16][8] = {};
  for (int row = 0; row < 16; ++row) {
    for (int inner = 0; inner < 16; ++inner) {
      for (int column = 0; column < 8; ++column)
        sums[row][column] += a[row][inner] * b[inner][column];
    }
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    float* d = Request(requests[lane]).d;
    for (int i = 0; i < 4; ++i) d[i] += sums[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  }
}

// Rows of one matrix in the same bank take one turn each.
void CountTurns(const std::uint64_t (&requests)[kLanes], int matrix) {
  int rows[kBanks * kBankBytes / kRowBytes] = {};
  for (int row = 0; row < kRows; ++row) {
    const auto address =
        reinterpret_cast<std::uintptr_t>(Request(requests[matrix * kRows + row]).row);
    if (address % kRowBytes != 0) {
      Die(fmt::format("a row of a matrix begins at {:#x}, not on a boundary of 16 bytes", address));
    }
    ++rows[address / kRowBytes % std::size(rows)];
  }
  ++loads.turns;
  loads.more += *std::max_element(std::begin(rows), std::end(rows)) - 1;
}

void Load(const std::uint64_t (&requests)[kLanes], bool transposed) {
  for (int matrix = 0; matrix < kMatrices; ++matrix) {
    CountTurns(requests, matrix);
    unsigned short elements[kRows][kRows];
    for (int row = 0; row < kRows; ++row) {
      std::memcpy(elements[row], Request(requests[matrix * kRows + row]).row, kRowBytes);
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      const int group = lane / 4, pair = lane % 4 * 2;
      const unsigned low = transposed ? elements[pair][group] : elements[group][pair];
      const unsigned high = transposed ? elements[pair + 1][group] : elements[group][pair + 1];
      Request(requests[lane]).to[matrix] = low | high << 16;
    }
  }
}

struct Copy {
  void* shared;
  const void* global;
  bool inside;
  int group;
};
struct Copies {
  std::vector<Copy> under_way;
  int groups = 0;  // closed ones
};
Copies copies[kMaxThreads];

constexpr int kPoison = 0xFF;

}  // namespace

void DoForLanes(const std::uint64_t (&requests)[kLanes]) {
  const Kind kind = Request(requests[0]).kind;
  for (const std::uint64_t request : requests) {
    if (Request(request).kind != kind)
      Die("lanes of one warp ask for different operations on matrices");
  }
  if (kind == Kind::kMultiply) return Multiply(requests);
  Load(requests, kind == Kind::kLoadTransposed);
}

void DoInWarp(MatrixRequest& request) {
  MeetInWarp(WarpOperation::kMatrix, ~0u, reinterpret_cast<std::uint64_t>(&request), 0);
}

void BeginCopy(void* shared, const void* global, bool inside) {
  using trireme::device::cuda::kCopyBytes;
  const auto to = reinterpret_cast<std::uintptr_t>(shared);
  const auto from = reinterpret_cast<std::uintptr_t>(global);
  if (to % kCopyBytes != 0 || from % kCopyBytes != 0) {
    Die(fmt::format("a copy from {:#x} to {:#x} is not on boundaries of 16 bytes", from, to));
  }
  std::memset(shared, kPoison, kCopyBytes);
  Copies& mine = copies[current_thread];
  mine.under_way.push_back({shared, global, inside, mine.groups});
}

void CloseCopies() { ++copies[current_thread].groups; }

void AwaitCopies(int pending) {
  if (mutations_watched && IsOmitted(Mutation::kCopyWait, __builtin_return_address(0))) return;
  Copies& mine = copies[current_thread];
  const auto done = [&](const Copy& copy) {
    if (copy.group >= mine.groups - pending) return false;
    if (copy.inside) {
      std::memcpy(copy.shared, copy.global, trireme::device::cuda::kCopyBytes);
    } else {
      std::memset(copy.shared, 0, trireme::device::cuda::kCopyBytes);
    }
    return true;
  };
  std::erase_if(mine.under_way, done);
}

void EndCopies(int thread) {
  Copies& mine = copies[thread];
  if (!mine.under_way.empty()) {
    Die(fmt::format("a thread of a kernel ends with {} copies to shared memory under way",
                    mine.under_way.size()));
  }
  mine.groups = 0;
}

MatrixLoads CountedMatrixLoads() { return loads; }

}  // namespace emulator
