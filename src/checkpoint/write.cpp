// Writing a checkpoint: reserve, write and sync, read back, rename.
#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "checksums.hpp"
#include "folder.hpp"
#include "parallel_file.hpp"
#include "posix_file.hpp"
#include "trireme/base/error.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "write_plan.hpp"

namespace trireme::checkpoint {

namespace fs = std::filesystem;

namespace {

using Plans = std::array<WritePlan, 2>;

// Rank 0: an empty temporary folder.
void MakeTemporary(const std::string& folder, const std::string& temporary) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw RunError(fmt::format("{}: cannot be created: {}", folder, error.message()));
  RemoveLeftovers(folder);
  fs::create_directory(temporary, error);
  if (error) throw RunError(fmt::format("{}: cannot be created: {}", temporary, error.message()));
}

// Rank 0: disk space for all tensor files, before the first byte is written.
void ReserveAll(const std::string& temporary, const Plans& plans) {
  std::int64_t needed = 0;
  for (const WritePlan& plan : plans) needed += plan.layout.bytes;
  const std::int64_t available = FreeBytes(temporary);
  for (const WritePlan& plan : plans) {
    const std::string path = temporary + "/" + plan.file;
    bool held = true;
    int error = Reserve(path, plan.layout.bytes, held);
    // The disk must not fill up during a collective write: some MPI libraries would not come back.
    if (error == 0 && !held && available >= 0 && needed > available) error = ENOSPC;
    if (error == 0) continue;
    const std::string space = available < 0 ? "an unknown amount" : Mebibytes(available);
    throw RunError(fmt::format("{}: cannot be reserved: {}: the checkpoint needs {}, {} free on {}",
                               path, ErrorText(error), Mebibytes(needed), space,
                               fs::path(temporary).parent_path().string()),
                   "make room there or give another job.output; earlier checkpoints are untouched");
  }
}

// Collective.
void WriteFile(const comm::Communicator& world, const std::string& temporary,
               const WritePlan& plan) {
  const std::string path = temporary + "/" + plan.file;
  {
    ParallelFile file(world, path, ParallelFile::Access::kWrite, ExitCode::kFailed);
    file.WriteAll(plan.pieces);
    file.SyncAndClose();
  }
  ParallelFile file(world, path, ParallelFile::Access::kRead, ExitCode::kFailed);
  VerifyTogether(world, file, plan.sums, plan.layout.entries);
}

// Rank 0: the small files, and everything flushed.
void FinishTemporary(const std::string& temporary, const Plans& plans, const nlohmann::json& run) {
  // Texts may hold bytes that are no UTF-8, such as those of a path: JSON has no place for them,
  // and no run should end for one.
  const std::string run_text =
      run.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const auto run_bytes = static_cast<std::int64_t>(run_text.size());
  Checksums sums;
  sums[kRunFile] = {run_bytes, {{0, run_bytes, Hash(run_text.data(), run_bytes)}}};
  for (const WritePlan& plan : plans) {
    sums[plan.file] = plan.sums;
    SyncPath(temporary + "/" + plan.file);
  }
  WriteTextDurably(temporary + "/" + kRunFile, run_text);
  WriteTextDurably(temporary + "/" + kChecksumsFile, ChecksumsText(sums));
  SyncPath(temporary);
}

// Rank 0.
void UpdateLinks(const std::string& folder, const std::string& name, bool best) {
  MoveLink(name, folder + "/latest");
  if (best) MoveLink(name, folder + "/best");
  SyncPath(folder);
}

}  // namespace

void Write(const comm::Communicator& world, const std::string& folder, std::int64_t step,
           const Contents& contents, bool best, std::int64_t keep) {
  const std::string name = StepName(step);
  const std::string temporary = folder + "/" + name + kTemporaryEnding;
  const auto on_root = [&](const auto& body) {
    world.Together([&] {
      if (world.IsRoot()) body();
    });
  };
  const Plans plans = {MakeWritePlan(world, kModelFile, contents.model),
                       MakeWritePlan(world, kOptimizerFile, contents.optimizer)};
  try {
    on_root([&] { MakeTemporary(folder, temporary); });
    on_root([&] { ReserveAll(temporary, plans); });
    for (const WritePlan& plan : plans) WriteFile(world, temporary, plan);
    on_root([&] { FinishTemporary(temporary, plans, contents.run); });
    on_root([&] { Publish(folder, name); });
  } catch (const Error&) {
    // All ranks come here together, with their files closed.
    std::error_code ignored;
    if (world.IsRoot()) fs::remove_all(temporary, ignored);
    throw;
  }
  on_root([&] {
    UpdateLinks(folder, name, best);
    Prune(folder, keep);
  });
}

}  // namespace trireme::checkpoint
