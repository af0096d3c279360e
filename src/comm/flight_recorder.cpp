// FlightRecorder: the shared memory of a node, and its writing side; then its reading side.
#include "trireme/comm/flight_recorder.hpp"

#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>

#include "flight_tables.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/json.hpp"
#include "trireme/comm/communicator.hpp"

namespace trireme::comm {

namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kRelease = std::memory_order_release;

// Low bits of a group's id that hold a counter; the bits above are its first rank's world rank.
constexpr int kCounterBits = 32;

// On the node's monotonic clock.
std::int64_t Nanoseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

std::int64_t BytesFor(int ranks) {
  return static_cast<std::int64_t>(sizeof(NodeWords)) +
         ranks * static_cast<std::int64_t>(sizeof(RankSlot));
}

template <typename T>
T& At(std::array<T, kRing>& ring, std::int64_t number) {
  return ring[static_cast<std::size_t>(number % kRing)];
}

// Tables of a node: from shared memory to rows, and from rows to JSON and back.

constexpr auto kAcquire = std::memory_order_acquire;
constexpr double kNanosecond = 1e-9;

template <std::size_t kBytes>
std::string Text(const std::array<Word<char>, kBytes>& words) {
  std::string text;
  for (const Word<char>& word : words) {
    const char letter = word.load(kAcquire);
    if (letter == '\0') break;
    text += letter;
  }
  return text;
}

// The call with that number; nullopt if it has been overwritten, or if its writer ended while
// writing it.
std::optional<CallRow> ReadCall(const RankSlot& slot, std::int64_t number, std::int64_t now) {
  const CallEntry& entry = slot.ring[static_cast<std::size_t>(number % kRing)];
  if (number == 0 || entry.number.load(kAcquire) != number) return std::nullopt;
  CallRow row = {
      .number = number,
      .sequence = entry.sequence.load(kAcquire),
      .bytes = entry.bytes.load(kAcquire),
      .step = entry.step.load(kAcquire),
      .phase = entry.phase.load(kAcquire),
      .call = entry.call.load(kAcquire),
      .group = 0,
      .name = {},
      .peer = entry.peer.load(kAcquire),
      .tag = entry.tag.load(kAcquire),
      .left = entry.state.load(kAcquire) == CallState::kLeft,
      .seconds = static_cast<double>(now - entry.nanoseconds.load(kAcquire)) * kNanosecond};
  const int group = entry.group.load(kAcquire);
  if (group >= 0 && group < kMostGroups) {
    const GroupEntry& of = slot.groups[static_cast<std::size_t>(group)];
    row.group = of.id.load(kAcquire);
    if (row.group != 0) row.name = Text(of.name);
  }
  if (entry.number.load(kAcquire) != number) return std::nullopt;
  return row;
}

RankTable ReadTable(const RankSlot& slot, const Hosts& hosts) {
  const std::int64_t now = Nanoseconds();
  RankTable table;
  table.rank = slot.world_rank.load(kAcquire);
  table.host = hosts.Of(table.rank);
  table.pid = slot.pid.load(kAcquire);
  const ProcessState process = LookAt(table.pid);
  const bool known = process.letter != '?' && process.started != slot.started.load(kAcquire);
  table.process = known ? '-' : process.letter;
  table.phase = slot.phase.load(kAcquire);
  table.step = slot.step.load(kAcquire);
  table.idle = slot.idle.load(kAcquire);
  table.waiting = ReadCall(slot, slot.waiting.load(kAcquire), now);
  for (const GroupEntry& group : slot.groups) {
    if (group.id.load(kAcquire) == 0) continue;
    table.groups.push_back({group.id.load(kAcquire), Text(group.name), group.rank.load(kAcquire),
                            group.size.load(kAcquire), group.entered.load(kAcquire)});
  }
  for (int i = 0; i < std::min(slot.flows.load(kAcquire), kMostFlows); ++i) {
    const FlowEntry& flow = slot.flow[static_cast<std::size_t>(i)];
    const int group = flow.group.load(kAcquire);
    if (group < 0) continue;
    table.flows.push_back({slot.groups[static_cast<std::size_t>(group)].id.load(kAcquire),
                           flow.peer.load(kAcquire), flow.tag.load(kAcquire),
                           flow.sent.load(kAcquire), flow.received.load(kAcquire)});
  }
  const std::int64_t calls = slot.calls.load(kAcquire);
  for (std::int64_t i = std::max<std::int64_t>(1, calls - kRing + 1); i <= calls; ++i) {
    if (auto call = ReadCall(slot, i, now)) table.calls.push_back(*std::move(call));
  }
  table.stack = Text(slot.stack);
  return table;
}

nlohmann::ordered_json ToJson(const CallRow& call) {
  nlohmann::ordered_json json = {
      {"number", call.number},       {"step", call.step},
      {"phase", NameOf(call.phase)}, {"call", NameOf(call.call)},
      {"group", call.name},          {"sequence", call.sequence},
      {"bytes", call.bytes},         {"state", call.left ? "left" : "entered"},
      {"seconds_ago", call.seconds}, {"group_id", call.group}};
  if (call.peer >= 0) {
    json["peer"] = call.peer;
    json["tag"] = call.tag;
  }
  return json;
}

template <typename Kind>
Kind ByName(const std::string& name, int count) {
  for (int i = 0; i < count; ++i) {
    if (name == NameOf(static_cast<Kind>(i))) return static_cast<Kind>(i);
  }
  return Kind{};
}

constexpr int kPhases = 5;

CallRow CallFrom(const nlohmann::json& json) {
  return {.number = json.at("number"),
          .sequence = json.at("sequence"),
          .bytes = json.at("bytes"),
          .step = json.at("step"),
          .phase = ByName<Phase>(json.at("phase"), kPhases),
          .call = ByName<Call>(json.at("call"), kCalls),
          .group = json.at("group_id"),
          .name = json.at("group"),
          .peer = json.value("peer", -1),
          .tag = json.value("tag", 0),
          .left = json.at("state") == "left",
          .seconds = json.at("seconds_ago")};
}

// `rows` as a JSON list, one row per line.
template <typename Row, typename Convert>
std::string List(const std::vector<Row>& rows, Convert convert) {
  std::string text = "[";
  for (const Row& row : rows) {
    text += fmt::format("{}\n   {}", text.size() > 1 ? "," : "", convert(row).dump());
  }
  return text + "]";
}

std::string ToText(const RankTable& table) {
  // Host names and stacks may hold bytes that are not UTF-8.
  const auto quoted = [](const std::string& text) {
    return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  std::string text = fmt::format(
      " {{\"rank\": {}, \"host\": {}, \"pid\": {}, \"process\": \"{}\", \"phase\": \"{}\", "
      "\"step\": {}, \"seconds_without_progress\": {:.3f},\n  \"waiting\": {}",
      table.rank, quoted(table.host), table.pid, table.process, NameOf(table.phase), table.step,
      table.idle, table.waiting ? ToJson(*table.waiting).dump() : "null");
  text += ",\n  \"groups\": " + List(table.groups, [](const GroupRow& row) {
            return nlohmann::ordered_json{{"group", row.name},
                                          {"rank", row.rank},
                                          {"size", row.size},
                                          {"entered", row.entered},
                                          {"group_id", row.id}};
          });
  text += ",\n  \"messages\": " + List(table.flows, [](const FlowRow& row) {
            return nlohmann::ordered_json{{"peer", row.peer},
                                          {"tag", row.tag},
                                          {"sent", row.sent},
                                          {"received", row.received},
                                          {"group_id", row.group}};
          });
  text += ",\n  \"calls\": " + List(table.calls, ToJson);
  std::vector<std::string> frames;
  for (std::size_t at = 0; at < table.stack.size();) {
    const std::size_t end = std::min(table.stack.find('\n', at), table.stack.size());
    frames.push_back(quoted(table.stack.substr(at, end - at)));
    at = end + 1;
  }
  text += fmt::format(",\n  \"stack\": [\n   {}]}}", fmt::join(frames, ",\n   "));
  return text;
}

RankTable TableFrom(const nlohmann::json& json) {
  RankTable table;
  table.rank = json.at("rank");
  table.host = json.at("host");
  table.pid = json.at("pid");
  table.process = json.at("process").get<std::string>().at(0);
  table.phase = ByName<Phase>(json.at("phase"), kPhases);
  table.step = json.at("step");
  table.idle = json.at("seconds_without_progress");
  if (!json.at("waiting").is_null()) table.waiting = CallFrom(json.at("waiting"));
  for (const auto& group : json.at("groups")) {
    table.groups.push_back({group.at("group_id"), group.at("group"), group.at("rank"),
                            group.at("size"), group.at("entered")});
  }
  for (const auto& flow : json.at("messages")) {
    table.flows.push_back({flow.at("group_id"), flow.at("peer"), flow.at("tag"), flow.at("sent"),
                           flow.at("received")});
  }
  for (const auto& call : json.at("calls")) table.calls.push_back(CallFrom(call));
  for (const auto& frame : json.at("stack")) table.stack += frame.get<std::string>() + "\n";
  return table;
}

}  // namespace

const char* NameOf(Call call) {
  constexpr std::array<const char*, kCalls> kNames = {
      "all-reduce", "reduce-scatter", "all-gather",    "all-to-all", "broadcast",
      "send",       "receive",        "shift",         "barrier",    "agreement",
      "split",      "exchange",       "device's work", "connection"};
  return kNames.at(static_cast<std::size_t>(call));
}

const char* NameOf(Phase phase) {
  constexpr std::array<const char*, 5> kNames = {"set-up", "step", "validation", "checkpoint",
                                                 "end"};
  return kNames.at(static_cast<std::size_t>(phase));
}

std::string Describe(Phase phase, std::int64_t step) {
  constexpr std::array<const char*, 5> kPlaces = {
      "in the set-up", "in step {}", "in the validation after step {}",
      "in the checkpoint of step {}", "at the end of the job"};
  return fmt::format(fmt::runtime(kPlaces.at(static_cast<std::size_t>(phase))), step);
}

FlightRecorder::FlightRecorder(int world_rank, const Communicator& node)
    : memory_(std::make_unique<FlightMemory>(node, BytesFor(node.Size()))) {
  if (const int error = memory_->shared.Error(); error != 0) {
    throw RunError(fmt::format("{} ranks of a node cannot share {}: {}", node.Size(),
                               Mebibytes(BytesFor(node.Size())), ErrorText(error)),
                   RoomForSharedMemory());
  }
  memory_->ranks = node.Size();
  memory_->rank = node.Rank();
  std::byte* const base = memory_->shared.Data();
  memory_->node = reinterpret_cast<NodeWords*>(base);
  memory_->slots = reinterpret_cast<RankSlot*>(base + sizeof(NodeWords));
  // The system has zeroed the memory.
  mine_ = memory_->slots + memory_->rank;
  const int pid = ::getpid();
  mine_->world_rank.store(world_rank, kRelaxed);
  mine_->pid.store(pid, kRelaxed);
  mine_->started.store(LookAt(pid).started, kRelaxed);
  node.Barrier();
}

FlightRecorder::~FlightRecorder() = default;

std::uint64_t FlightRecorder::NewGroupId() {
  const auto rank = static_cast<std::uint64_t>(mine_->world_rank.load(kRelaxed));
  return rank << kCounterBits | ++groups_made_;
}

int FlightRecorder::AddGroup(const std::string& name, std::uint64_t id, int rank, int size) {
  for (int place = 0; place < kMostGroups; ++place) {
    GroupEntry& group = mine_->groups[static_cast<std::size_t>(place)];
    if (group.id.load(kRelaxed) != 0) continue;
    group.entered.store(0, kRelaxed);
    group.rank.store(rank, kRelaxed);
    group.size.store(size, kRelaxed);
    for (std::size_t i = 0; i < group.name.size(); ++i) {
      group.name[i].store(i < name.size() && i + 1 < group.name.size() ? name[i] : '\0', kRelaxed);
    }
    group.id.store(id, kRelease);
    return place;
  }
  return -1;
}

void FlightRecorder::RemoveGroup(int group) {
  if (group < 0) return;
  mine_->groups[static_cast<std::size_t>(group)].id.store(0, kRelease);
  for (int i = 0; i < flows_; ++i) {
    FlowEntry& flow = mine_->flow[static_cast<std::size_t>(i)];
    if (flow.group.load(kRelaxed) == group) flow.group.store(-1, kRelease);
  }
}

FlightRecorder::Flight FlightRecorder::Record(const Flight& flight) {
  Flight recorded = flight;
  recorded.number = ++calls_;
  CallEntry& entry = At(mine_->ring, recorded.number);
  entry.number.store(0, kRelaxed);
  std::atomic_thread_fence(kRelease);
  entry.sequence.store(flight.sequence, kRelaxed);
  entry.bytes.store(flight.bytes, kRelaxed);
  entry.step.store(step_, kRelaxed);
  entry.nanoseconds.store(Nanoseconds(), kRelaxed);
  entry.group.store(flight.group, kRelaxed);
  entry.peer.store(flight.peer, kRelaxed);
  entry.tag.store(flight.tag, kRelaxed);
  entry.call.store(flight.call, kRelaxed);
  entry.state.store(CallState::kEntered, kRelaxed);
  entry.phase.store(mine_->phase.load(kRelaxed), kRelaxed);
  entry.number.store(recorded.number, kRelease);
  mine_->calls.store(calls_, kRelease);
  mine_->progress.store(++progress_, kRelease);
  return recorded;
}

FlightRecorder::Flight FlightRecorder::Enter(int group, Call call, std::int64_t bytes) {
  Flight flight = {.bytes = bytes, .group = group, .call = call};
  if (group < 0) return Record(flight);
  Word<std::int64_t>& entered = mine_->groups[static_cast<std::size_t>(group)].entered;
  flight.sequence = entered.load(kRelaxed) + 1;
  flight = Record(flight);
  entered.store(flight.sequence, kRelease);
  return flight;
}

FlightRecorder::Flight FlightRecorder::EnterMessage(int group, Call call, std::int64_t bytes,
                                                    int peer, int tag) {
  Flight flight = {.bytes = bytes, .group = group, .peer = peer, .tag = tag, .call = call};
  FlowEntry* found = nullptr;
  FlowEntry* unused = nullptr;
  for (int i = 0; i < flows_ && found == nullptr; ++i) {
    FlowEntry& flow = mine_->flow[static_cast<std::size_t>(i)];
    const int of = flow.group.load(kRelaxed);
    if (of < 0) unused = &flow;
    const bool same = of == group && flow.peer.load(kRelaxed) == peer;
    if (same && flow.tag.load(kRelaxed) == tag) found = &flow;
  }
  if (found == nullptr && (unused != nullptr || flows_ < kMostFlows)) {
    found = unused != nullptr ? unused : &mine_->flow[static_cast<std::size_t>(flows_++)];
    found->sent.store(0, kRelaxed);
    found->received.store(0, kRelaxed);
    found->peer.store(peer, kRelaxed);
    found->tag.store(tag, kRelaxed);
    found->group.store(group, kRelease);
    mine_->flows.store(flows_, kRelease);
  }
  if (found == nullptr) return Record(flight);
  Word<std::int64_t>& count = call == Call::kSend ? found->sent : found->received;
  flight.sequence = count.load(kRelaxed) + 1;
  flight = Record(flight);
  count.store(flight.sequence, kRelease);
  return flight;
}

void FlightRecorder::Await(Flight& flight) {
  // If the entry has been overwritten meanwhile, the same call is recorded again.
  if (At(mine_->ring, flight.number).number.load(kRelaxed) != flight.number) {
    flight = Record(flight);
  }
  flight.before = mine_->waiting.load(kRelaxed);
  mine_->waiting.store(flight.number, kRelease);
}

void FlightRecorder::Leave(const Flight& flight) {
  CallEntry& entry = At(mine_->ring, flight.number);
  if (entry.number.load(kRelaxed) == flight.number) {
    entry.state.store(CallState::kLeft, kRelaxed);
  }
  mine_->waiting.store(flight.before, kRelease);
  mine_->progress.store(++progress_, kRelease);
}

void FlightRecorder::Progress(Phase phase, std::int64_t step) {
  step_ = step;
  mine_->step.store(step, kRelaxed);
  mine_->phase.store(phase, kRelaxed);
  mine_->progress.store(++progress_, kRelease);
}

Recorded::Recorded(const Communicator& group, Call call, std::int64_t bytes)
    : Recorded(group.Recorder(), call, group.RecordedAs(), bytes) {}

Recorded::Recorded(FlightRecorder* recorder, Call call, int group, std::int64_t bytes)
    : recorder_(recorder) {
  if (recorder_ == nullptr) return;
  flight_ = recorder_->Enter(group, call, bytes);
  recorder_->Await(flight_);
}

std::vector<RankTable> ReadTables(const FlightMemory& memory, const Hosts& hosts) {
  std::vector<RankTable> tables;
  for (int rank = 0; rank < memory.ranks; ++rank) {
    tables.push_back(ReadTable(memory.slots[rank], hosts));
  }
  return tables;
}

std::string ToText(int node, const std::string& reason, const std::vector<RankTable>& tables) {
  std::string text = fmt::format("{{\"node\": {}, \"reason\": {},\n\"ranks\": [", node,
                                 nlohmann::json(reason).dump());
  for (const RankTable& table : tables) {
    text += (&table == tables.data() ? "\n" : ",\n") + ToText(table);
  }
  return text + "]}\n";
}

std::optional<std::vector<RankTable>> FromText(const std::string& text) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    std::vector<RankTable> tables;
    for (const auto& rank : json.at("ranks")) tables.push_back(TableFrom(rank));
    return tables;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

}  // namespace trireme::comm
