// Parts shared by the checkpoint tests: writing one checkpoint at once, temporary folders, a small
// disk, and a state with known values that can be split over ranks in any way.
#pragma once

#include <sys/mount.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "folders.hpp"
#include "trireme/base/dtype.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"
#include "trireme/checkpoint/writer.hpp"
#include "trireme/kernels/registry.hpp"

namespace trireme::checkpoint {

// Contents of a checkpoint: model.safetensors, optimizer.safetensors and run.json.
struct Contents {
  std::vector<kernels::StateBlock> model;
  std::vector<kernels::StateBlock> optimizer;
  nlohmann::json run;   // the same on every rank
  ReadBlock read = {};  // empty: each block lies at its `data`
};

// Collective. Keeps the `keep` last written checkpoints (0: all). If it fails, every rank throws an
// AgreedError.
inline void Write(const comm::Communicator& world, const std::string& folder, std::int64_t step,
                  const Contents& contents, bool best, std::int64_t keep) {
  Writer writer(world, {contents.model, contents.optimizer, contents.read}, {});
  writer.Begin({.folder = folder,
                .step = step,
                .run = contents.run,
                .best = best,
                .retention = {.keep = keep}});
  const Outcome outcome = writer.Finish();
  if (!outcome.failure.empty()) throw AgreedError(ExitCode::kFailed, outcome.failure);
}

}  // namespace trireme::checkpoint

namespace trireme::checkpoint::test {

namespace fs = std::filesystem;

using trireme::test::ReadBytes;
using trireme::test::SharedFolder;
using trireme::test::TemporaryFolder;
using trireme::test::WriteBytes;

// A real file system of a few pages; mounting needs root.
class SmallDisk {
 public:
  SmallDisk(const std::string& path, const std::string& size) : path_(path) {
    fs::create_directories(path);
    if (mount("tmpfs", path.c_str(), "tmpfs", 0, ("size=" + size).c_str()) != 0) {
      reason_ = std::string("SKIPPED: no small tmpfs can be mounted here: ") + std::strerror(errno);
    }
  }
  ~SmallDisk() {
    if (Mounted()) umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool Mounted() const { return reason_.empty(); }
  const std::string& Reason() const { return reason_; }

 private:
  std::string path_;
  std::string reason_;
};

// One global tensor; element i has the value Value(i), whoever holds it.
struct TestTensor {
  std::string name;
  kernels::Shape shape;
  Dtype dtype = Dtype::kFloat32;
  double scale = 1;
  double Value(std::int64_t i) const {
    return scale * (static_cast<double>((i * 2654435761LL) % 1000003) / 1000003.0 - 0.5);
  }
};

// The tensors of a rank, with memory.
class TestState {
 public:
  // Part of a tensor that this rank holds.
  struct Part {
    std::int64_t begin = 0, end = 0;
    int replica = 0, replicas = 1;
  };
  using Split = std::function<Part(std::int64_t tensor, std::int64_t elements)>;
  static Part Whole(std::int64_t, std::int64_t elements) { return {0, elements, 0, 1}; }

  explicit TestState(std::vector<TestTensor> tensors, const Split& split = Whole)
      : tensors_(std::move(tensors)) {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const Part part =
          split(static_cast<std::int64_t>(t), kernels::ElementCount(tensors_[t].shape));
      parts_.push_back(part);
      memory_.emplace_back(static_cast<std::size_t>(part.end - part.begin) *
                           SizeOf(tensors_[t].dtype));
    }
  }

  // Sets every element to its known value.
  void Fill() {
    ForEach([](auto& element, double value) {
      element = static_cast<std::remove_reference_t<decltype(element)>>(value);
    });
  }
  // Number of elements that differ from the known values (at the lower of both precisions).
  std::int64_t Wrong(bool as_float = false) {
    std::int64_t wrong = 0;
    ForEach([&](auto& element, double value) {
      using T = std::remove_reference_t<decltype(element)>;
      const T expected =
          as_float ? static_cast<T>(static_cast<float>(value)) : static_cast<T>(value);
      wrong += element != expected;
    });
    return wrong;
  }

  std::vector<kernels::StateBlock> Blocks() {
    std::vector<kernels::StateBlock> blocks;
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const Part& part = parts_[t];
      blocks.push_back({tensors_[t].name, tensors_[t].shape, tensors_[t].dtype, part.begin,
                        part.end, part.begin == part.end ? nullptr : memory_[t].data(),
                        part.replica, part.replicas});
    }
    return blocks;
  }

 private:
  template <typename Body>
  void ForEach(const Body& body) {
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      DispatchDtype(tensors_[t].dtype, [&](auto zero) {
        using T = decltype(zero);
        T* elements = reinterpret_cast<T*>(memory_[t].data());
        for (std::int64_t i = parts_[t].begin; i < parts_[t].end; ++i) {
          body(elements[i - parts_[t].begin], tensors_[t].Value(i));
        }
      });
    }
  }

  std::vector<TestTensor> tensors_;
  std::vector<Part> parts_;
  std::vector<std::vector<char>> memory_;  // bytes of each part
};

// A model with the shapes that matter: a scalar, a vector, a matrix, one of several segments.
inline std::vector<TestTensor> SmallModel(Dtype dtype = Dtype::kFloat32) {
  return {{"embedding.weight", {37, 16}, dtype, 1.0},
          {"blocks.0.norm.weight", {16}, dtype, 2.0},
          {"blocks.0.query.weight", {16, 16}, dtype, 0.5},
          {"scale", {}, dtype, 3.0}};
}

inline std::vector<TestTensor> Moments(std::vector<TestTensor> tensors) {
  for (TestTensor& item : tensors) {
    item.name += ".first_moment";
    item.scale *= 0.01;
  }
  return tensors;
}

// Runs `body` and returns the error that it throws; code kDone when it throws none.
inline Error Caught(const std::function<void()>& body) {
  try {
    body();
  } catch (const AgreedError& error) {
    return error;
  }
  return Error(ExitCode::kDone, "nothing was thrown");
}

}  // namespace trireme::checkpoint::test
