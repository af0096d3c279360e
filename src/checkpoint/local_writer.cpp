// LocalWriter: each rank writes one file for itself and one for each rank whose partner it is.
#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "exchange.hpp"
#include "local_file.hpp"
#include "safetensors.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/checkpoint/local.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/comm/flight_recorder.hpp"

namespace trireme::checkpoint {

namespace {

// Copies bytes [first, last) of a piece to `to`.
void FillFrom(const State& state, const kernels::StateBlock& block, std::int64_t first,
              std::int64_t last, std::byte* to) {
  const std::int64_t size = BytesOf(block.dtype, 1);
  if (state.read)
    return state.read(block, block.begin + first / size, block.begin + last / size, to);
  std::memcpy(to, static_cast<const std::byte*>(block.data) + first,
              static_cast<std::size_t>(last - first));
}

// Copies bytes of the file's data from `begin` on to `to`; zeros between pieces. places: starts of
// the stored pieces, and the end. Neither end of the range splits an element, since pieces begin at
// multiples of 64 bytes.
void FillData(const State& state, const LocalShares& shares,
              const std::vector<std::int64_t>& places, std::int64_t begin,
              std::span<std::byte> to) {
  const std::int64_t end = begin + std::ssize(to);
  std::int64_t done = begin;
  const auto zeros_until = [&](std::int64_t place) {
    std::memset(to.data() + (done - begin), 0, static_cast<std::size_t>(place - done));
  };
  const auto after = std::upper_bound(places.begin(), places.end() - 1, begin);
  auto i = static_cast<std::size_t>(after - places.begin());
  if (i > 0) --i;
  for (; i < shares.stored.size() && places[i] < end; ++i) {
    const std::size_t piece = shares.stored[i];
    const std::int64_t first = std::max(begin, places[i]);
    const std::int64_t last = std::min(end, places[i] + shares.needs[piece].bytes);
    if (first >= last) continue;
    zeros_until(first);
    FillFrom(state, *shares.blocks[piece], first - places[i], last - places[i],
             to.data() + (first - begin));
    done = last;
  }
  zeros_until(end);
}

// A file that is written under a temporary name.
struct LocalDraft {
  std::string path;  // its final name
  std::optional<PositionedFile> file;

  void Name(const std::string& folder, const LocalName& name) {
    path = folder + "/" + FileName(name);
    file.reset();
  }
  std::string Temporary() const { return path + kLocalTemporary; }
  // Creates the file anew and reserves its space. Throws RunError.
  void Open(std::int64_t bytes) {
    ::unlink(Temporary().c_str());
    bool held = true;
    if (const int error = Reserve(Temporary(), bytes, held); error != 0) {
      throw RunError(
          fmt::format("{}: {} cannot be reserved: {}", path, Mebibytes(bytes), ErrorText(error)));
    }
    file.emplace(Temporary(), PositionedFile::Access::kWrite, ExitCode::kFailed);
  }
  // Gives the file its final name. Throws RunError.
  void Publish() {
    file->Close();
    Rename(Temporary(), path);
  }
  void Remove() const {
    if (path.empty()) return;
    ::unlink(Temporary().c_str());
    ::unlink(path.c_str());
  }
};

namespace fs = std::filesystem;

// Free bytes of the file system of `folder`, which may not exist yet; -1: unknown.
std::int64_t FreeFor(fs::path folder) {
  std::error_code error;
  while (!fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  return FreeBytes(folder);
}

// Bytes of the run's existing files.
std::int64_t Present(const std::string& run) {
  std::int64_t bytes = 0;
  for (const std::string& name : ListLocal(run)) {
    std::error_code error;
    const std::uintmax_t size = fs::file_size(run + "/" + name, error);
    if (!error) bytes += static_cast<std::int64_t>(size);
  }
  return bytes;
}

constexpr int kDataTag = 21, kEndTag = 22;
constexpr std::size_t kLocalSlots = 2;  // one is filled while the other is sent
constexpr std::size_t kKept = 2;        // complete local checkpoints that stay

struct Client {
  int rank = 0;
  std::int64_t bytes = 0;  // of data that it sends
};

}  // namespace

class LocalWriter::Work {
 public:
  Work(const LocalNodes& nodes, State state, LocalRun run, std::optional<std::int64_t> keep)
      : world_(nodes.world),
        state_(std::move(state)),
        run_(std::move(run)),
        folder_(LocalFolder(run_.folder, run_.id)),
        place_(PlaceOf(nodes.hosts, world_.Rank())),
        host_(world_.Split(place_.host, world_.Rank(), "host")),
        line_(world_.Duplicate()),
        shares_(ShareOut(world_, host_, place_, state_)) {
    if (keep) kept_.push_back(*keep);
    header_.id = run_.id;
    header_.session = run_.session;
    header_.rank = world_.Rank();
    header_.ranks = world_.Size();
    header_.needs = shares_.needs;
    header_.stored.assign(shares_.stored.begin(), shares_.stored.end());
    places_ = PlacesOf(header_);
    copy_bytes_ = PlacesOf(CopyHeader()).back();
    ShareClients();
    bytes_ = world_.Sum(places_.back());
    copied_ = world_.Sum(copy_bytes_);
    world_.Together([&] {
      for (std::vector<std::byte>& slot : slots_) {
        slot.resize(static_cast<std::size_t>(std::min(places_.back(), kSegmentBytes)));
      }
      std::int64_t most = 0;
      for (const Client& client : clients_) most = std::max(most, client.bytes);
      received_.resize(static_cast<std::size_t>(std::min(most, kSegmentBytes)));
    });
    Prune();
    lack_ = FindLack(nodes.hosts.Of(world_.Rank()));
  }

  const std::string& LackOfRoom() const { return lack_; }
  int Hosts() const { return place_.hosts; }
  std::int64_t Bytes() const { return bytes_; }
  std::int64_t CopiedBytes() const { return copied_; }
  LocalOutcome Write(std::int64_t step, std::int64_t sequence, const nlohmann::json& run) {
    const double start = Seconds();
    failure_ = nullptr;
    header_.step = step;
    header_.sequence = sequence;
    header_.run = run;
    LocalOutcome outcome;
    outcome.bytes = bytes_;
    outcome.copied = copied_;
    Attempt([&] { Open(); });
    outcome.failure = AgreedFailure();
    if (outcome.failure.empty()) {
      StoreData();
      ExchangeEnds();
      outcome.failure = AgreedFailure();
    }
    if (outcome.failure.empty()) {
      Attempt([&] { Publish(); });
      outcome.failure = AgreedFailure();
    }
    std::erase(kept_, step);
    if (outcome.failure.empty()) {
      kept_.push_back(step);
      if (kept_.size() > kKept) kept_.erase(kept_.begin());
    } else {
      Discard();
    }
    Prune();
    outcome.seconds = world_.Max(Seconds() - start);
    return outcome;
  }

  void Forget(std::int64_t step) {
    std::erase_if(kept_, [step](std::int64_t kept) { return kept > step; });
    Prune();
  }
  void RemoveAll() {
    kept_.clear();
    Prune();
    if (host_.IsRoot()) ::rmdir(folder_.c_str());
    world_.Barrier();
  }

 private:
  LocalHeader CopyHeader() const {
    LocalHeader copy = header_;
    copy.copy = true;
    copy.stored.resize(shares_.copied);
    copy.hashes = copy_hashes_;
    return copy;
  }
  // Tells this rank's partner how much data it will get.
  void ShareClients() {
    std::vector<int> to;
    std::vector<Client> mine;
    if (place_.partner >= 0) {
      to.push_back(place_.partner);
      mine.push_back({.rank = world_.Rank(), .bytes = copy_bytes_});
    }
    clients_ = Deliver(world_, to, mine);
    copies_.resize(clients_.size());
  }

  // Collective. A sentence on the first host that has too little free space for what it needs
  // beyond the run's existing files, and on how many hosts lack space; the same on every rank.
  // Empty: no host does, as far as file systems tell. host: name of this rank's host.
  std::string FindLack(const std::string& host) const {
    std::int64_t mine = places_.back();  // per checkpoint: this rank's part, and copies for others
    for (const Client& client : clients_) mine += client.bytes;
    const std::int64_t one = host_.Sum(mine);
    std::string lack;
    if (host_.IsRoot()) {
      const std::int64_t at_once = kKept + 1;
      const std::int64_t needed = std::max<std::int64_t>(at_once * one - Present(folder_), 0);
      const std::int64_t left = FreeFor(run_.folder);
      if (left >= 0 && left < needed) {
        lack = fmt::format(
            "{} on {} has {} free, and local checkpoints need {} there: {} at once of {} each",
            run_.folder, host, Mebibytes(left), Mebibytes(needed), at_once, Mebibytes(one));
      }
    }
    const std::int64_t hosts = world_.Sum(std::int64_t{lack.empty() ? 0 : 1});
    if (hosts == 0) return {};
    lack = world_.FirstText(lack);
    if (hosts > 1) lack += fmt::format("; hosts that lack room: {}", hosts);
    return lack;
  }

  // Runs what may fail on this rank alone, and keeps the first failure for AgreedFailure.
  template <typename Body>
  void Attempt(const Body& body) {
    if (failure_) return;
    try {
      body();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  std::string AgreedFailure() {
    try {
      world_.Together([&] {
        if (failure_) std::rethrow_exception(failure_);
      });
      return {};
    } catch (const Error& error) {
      return error.what();
    }
  }

  // Reserves space before the first byte is written, except for the ends of copies, which are
  // small.
  void Open() {
    own_.Name(folder_, {header_.step, world_.Rank(), false});
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      copies_[i].Name(folder_, {header_.step, clients_[i].rank, true});
    }
    MakeLocalFolder(folder_);
    header_.hashes.assign(static_cast<std::size_t>(CeilDivide(places_.back(), kSegmentBytes)), 0);
    copy_hashes_.assign(static_cast<std::size_t>(CeilDivide(copy_bytes_, kSegmentBytes)), 0);
    own_.Open(places_.back() + std::ssize(EndOf(header_)));
    for (std::size_t i = 0; i < clients_.size(); ++i) copies_[i].Open(clients_[i].bytes);
  }

  // In each round a segment of this rank's data goes to its file and its partner, and one comes
  // from each client. A rank waits only for segments of this or earlier rounds, so all make
  // progress.
  void StoreData() {
    const comm::Recorded recorded(world_, comm::Call::kExchange, copy_bytes_);
    const std::int64_t own = std::ssize(header_.hashes), sent = std::ssize(copy_hashes_);
    std::int64_t rounds = own;
    for (const Client& client : clients_) {
      rounds = std::max(rounds, CeilDivide(client.bytes, kSegmentBytes));
    }
    std::array<MPI_Request, kLocalSlots> requests = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    for (std::int64_t round = 0; round < rounds; ++round) {
      if (round < own) {
        const auto number = static_cast<std::size_t>(round);
        std::vector<std::byte>& slot = slots_[number % kLocalSlots];
        MPI_Request& request = requests[number % kLocalSlots];
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        const std::int64_t begin = round * kSegmentBytes;
        const std::int64_t bytes = std::min(kSegmentBytes, places_.back() - begin);
        const std::int64_t copied = std::clamp<std::int64_t>(copy_bytes_ - begin, 0, bytes);
        Attempt([&] {
          FillData(state_, shares_, places_, begin, {slot.data(), static_cast<std::size_t>(bytes)});
          header_.hashes[number] = Hash(slot.data(), bytes);
        });
        if (round < sent) {
          copy_hashes_[number] =
              copied == bytes ? header_.hashes[number] : Hash(slot.data(), copied);
          if (place_.partner >= 0) {
            MPI_Isend(slot.data(), static_cast<int>(copied), MPI_BYTE, place_.partner, kDataTag,
                      line_.Handle(), &request);
          }
        }
        Attempt([&] { own_.file->Write(slot.data(), bytes, begin); });
      }
      TakeData(round);
    }
    MPI_Waitall(kLocalSlots, requests.data(), MPI_STATUSES_IGNORE);
  }

  void TakeData(std::int64_t round) {
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      const std::int64_t begin = round * kSegmentBytes;
      if (begin >= clients_[i].bytes) continue;
      const std::int64_t bytes = std::min(kSegmentBytes, clients_[i].bytes - begin);
      MPI_Recv(received_.data(), static_cast<int>(bytes), MPI_BYTE, clients_[i].rank, kDataTag,
               line_.Handle(), MPI_STATUS_IGNORE);
      Attempt([&] { copies_[i].file->Write(received_.data(), bytes, begin); });
    }
  }

  void ExchangeEnds() {
    std::string end = EndOf(CopyHeader());
    MPI_Request request = MPI_REQUEST_NULL;
    if (place_.partner >= 0) {
      MPI_Isend(end.data(), static_cast<int>(end.size()), MPI_BYTE, place_.partner, kEndTag,
                line_.Handle(), &request);
    }
    Attempt([&] {
      const std::string own_end = EndOf(header_);
      own_.file->Write(own_end.data(), std::ssize(own_end), places_.back());
    });
    std::string text;
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      MPI_Status status;
      int bytes = 0;
      MPI_Probe(clients_[i].rank, kEndTag, line_.Handle(), &status);
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      text.resize(static_cast<std::size_t>(bytes));
      MPI_Recv(text.data(), bytes, MPI_BYTE, clients_[i].rank, kEndTag, line_.Handle(),
               MPI_STATUS_IGNORE);
      Attempt([&] { copies_[i].file->Write(text.data(), bytes, clients_[i].bytes); });
    }
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  }

  void Publish() {
    own_.Publish();
    for (LocalDraft& copy : copies_) copy.Publish();
  }
  void Discard() {
    own_.Remove();
    for (const LocalDraft& copy : copies_) copy.Remove();
  }
  // Collective. One rank of each host removes the run's files of steps that are not kept.
  void Prune() const {
    const bool removes = host_.IsRoot();
    for (const std::string& name : removes ? ListLocal(folder_) : std::vector<std::string>{}) {
      const std::optional<LocalName> parsed = ParseFileName(name);
      if (parsed && std::ranges::find(kept_, parsed->step) != kept_.end()) continue;
      const bool draft = name.ends_with(kLocalTemporary) &&
                         ParseFileName(name.substr(0, name.size() - std::strlen(kLocalTemporary)));
      if (parsed || draft) ::unlink((folder_ + "/" + name).c_str());
    }
    world_.Barrier();
  }

  const comm::Communicator& world_;
  const State state_;
  const LocalRun run_;
  const std::string folder_;
  const LocalPlace place_;
  const comm::Communicator host_, line_;  // ranks of this host; the world, duplicated
  const LocalShares shares_;
  LocalHeader header_;
  std::vector<std::int64_t> places_;  // starts of the stored pieces, and the end
  std::int64_t copy_bytes_ = 0;       // of data that the partner keeps
  std::vector<std::uint64_t> copy_hashes_;
  std::vector<Client> clients_;
  std::int64_t bytes_ = 0, copied_ = 0;  // of all ranks
  std::vector<std::int64_t> kept_;       // steps complete on all nodes, oldest first
  std::string lack_;                     // names a host without space; empty: none

  // State of the checkpoint under way:
  std::array<std::vector<std::byte>, kLocalSlots> slots_;
  std::vector<std::byte> received_;
  LocalDraft own_;
  std::vector<LocalDraft> copies_;  // [clients]
  std::exception_ptr failure_;
};

LocalWriter::LocalWriter(const LocalNodes& nodes, State state, LocalRun run,
                         std::optional<std::int64_t> keep)
    : work_(std::make_unique<Work>(nodes, std::move(state), std::move(run), keep)) {}
LocalWriter::~LocalWriter() = default;
const std::string& LocalWriter::LackOfRoom() const { return work_->LackOfRoom(); }
int LocalWriter::Hosts() const { return work_->Hosts(); }
std::int64_t LocalWriter::Bytes() const { return work_->Bytes(); }
std::int64_t LocalWriter::CopiedBytes() const { return work_->CopiedBytes(); }
LocalOutcome LocalWriter::Write(std::int64_t step, std::int64_t sequence,
                                const nlohmann::json& run) {
  return work_->Write(step, sequence, run);
}
void LocalWriter::Forget(std::int64_t step) { work_->Forget(step); }
void LocalWriter::RemoveAll() { work_->RemoveAll(); }

}  // namespace trireme::checkpoint
