// Measure: measures all nodes at once, in one or two passes, and gathers the results on rank 0.
#include <fmt/format.h>
#include <mpi.h>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

#include "trireme/base/clock.hpp"
#include "trireme/base/dtype.hpp"
#include "trireme/base/json.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/device/memory.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/kernels/linear.hpp"
#include "trireme/tools/preflight.hpp"

namespace trireme::tools {

// Single measurements: matrix products and memory on a rank's own device, messages between ranks.

namespace {

using kernels::Matrix;

constexpr int kSpeedTag = 72;

// Product of two matrices of numbers near 1, as bytes. finite: becomes false if an element is not.
std::vector<std::byte> MultiplyOnce(const device::Stream& stream, Dtype dtype, bool& finite) {
  constexpr std::int64_t kSize = 512;
  const auto element = static_cast<std::int64_t>(SizeOf(dtype));
  const std::int64_t bytes = kSize * kSize * element;
  device::Arena arena(3 * bytes, stream.Where());
  const Matrix a = kernels::Allocate(arena, dtype, kSize, kSize);
  const Matrix b = kernels::Allocate(arena, dtype, kSize, kSize);
  const Matrix c = kernels::Allocate(arena, dtype, kSize, kSize);
  constexpr std::int64_t kPattern = 1021;  // a prime, so that rows differ
  std::vector<std::byte> pattern(static_cast<std::size_t>(kPattern * element));
  for (std::int64_t i = 0; i < kPattern; ++i) {
    const double value = 0.5 + static_cast<double>(i) / kPattern;
    const auto single = static_cast<float>(value);
    // A bf16 number is the upper half of an fp32 number.
    const char* const end = reinterpret_cast<const char*>(&single) + sizeof single;
    const void* const from =
        dtype == Dtype::kFloat64 ? &value : static_cast<const void*>(end - element);
    std::memcpy(pattern.data() + i * element, from, SizeOf(dtype));
  }
  for (const Matrix& operand : {a, b}) device::Repeat(stream, pattern, operand.data, bytes);
  kernels::MatrixMultiply(stream, kernels::Form::kPlain, a, kernels::Form::kPlain, b, c, false);
  std::vector<std::byte> result(static_cast<std::size_t>(bytes));
  device::CopyOut(stream, c.data, result.data(), bytes);
  device::Synchronise(stream);
  // Widening to fp32 keeps infinities and NaNs.
  for (std::int64_t i = 0; i < kSize * kSize; ++i) {
    double value = 0;
    float single = 0;
    char* const end = reinterpret_cast<char*>(&single) + sizeof single;
    void* const to = dtype == Dtype::kFloat64 ? &value : static_cast<void*>(end - element);
    std::memcpy(to, result.data() + i * element, SizeOf(dtype));
    finite = finite && std::isfinite(value) && std::isfinite(single);
  }
  return result;
}

// Seconds of the fastest call of `once`, called at least `least` times and for `seconds`.
double Fastest(double seconds, int least, const std::function<void()>& once) {
  double best = 0, total = 0;
  for (int i = 0; i < least || total < seconds; ++i) {
    const double start = Seconds();
    once();
    const double took = Seconds() - start;
    best = i == 0 ? took : std::min(best, took);
    total += took;
  }
  return best;
}

constexpr std::int64_t kLeastBytes = std::int64_t{1} << 18, kMostBytes = std::int64_t{1} << 25;
struct Messages {
  explicit Messages(std::int64_t bytes) : sent(static_cast<std::size_t>(bytes), 1), taken(sent) {}
  // Seconds of the fastest of `times` exchanges.
  double Exchange(const comm::Communicator& group, int partner, int times) {
    const int bytes = static_cast<int>(sent.size());
    return Fastest(0, times, [&] {
      MPI_Sendrecv(sent.data(), bytes, MPI_CHAR, partner, kSpeedTag, taken.data(), bytes, MPI_CHAR,
                   partner, kSpeedTag, group.Handle(), MPI_STATUS_IGNORE);
    });
  }
  std::vector<char> sent, taken;
};
// Chooses messages whose exchange with the slowest partner takes about kWanted seconds; all ranks
// agree on the size. partner: -1 for none.
Messages ChooseMessages(const comm::Communicator& group, int partner) {
  constexpr double kWanted = 0.02;
  double seconds = partner >= 0 ? Messages(kLeastBytes).Exchange(group, partner, 2) : 0;
  seconds = group.Max(seconds);
  std::int64_t bytes = kLeastBytes;
  for (; seconds < kWanted / 2 && bytes < kMostBytes; seconds *= 2) bytes *= 2;
  return Messages(bytes);
}

constexpr int kExchanges = 3;  // per partner; the fastest counts
double BothWays(const Messages& messages, double seconds) {
  return seconds > 0 ? 2 * static_cast<double>(messages.sent.size()) / seconds : 0;
}

// FLOP/s, by kernels::MeasureRoof. right: false if a product was not finite, or differed when
// computed again.
double MeasureProduct(const device::Stream& stream, Dtype dtype, bool& right) {
  right = true;
  const std::vector<std::byte> first = MultiplyOnce(stream, dtype, right);
  const double flops = kernels::MeasureRoof(stream, dtype);
  right = first == MultiplyOnce(stream, dtype, right) && right;
  return flops;
}

// Bytes per second that a copy reads and writes in the stream's memory, using all of its threads.
double MeasureMemory(const device::Stream& stream) {
  constexpr std::int64_t kHostBytes = std::int64_t{32} << 20, kCardBytes = std::int64_t{512} << 20;
  constexpr std::int64_t kPiece = 4096;
  constexpr double kSeconds = 0.15;
  const std::int64_t bytes = stream.OnGpu() ? kCardBytes : kHostBytes;
  device::Arena arena(2 * bytes, stream.Where());
  auto* const from = static_cast<std::byte*>(arena.Allocate(bytes));
  auto* const to = static_cast<std::byte*>(arena.Allocate(bytes));
  const auto on_host = [&] {
  // Each thread always copies the same part, so that its pages lie on its own NUMA node.
#pragma omp parallel for num_threads(stream.threads) schedule(static)
    for (std::int64_t i = 0; i < bytes / kPiece; ++i) {
      std::memcpy(to + i * kPiece, from + i * kPiece, kPiece);
    }
  };
  const auto on_card = [&] {
    device::CopyWithin(stream, from, to, bytes);
    device::Synchronise(stream);
  };
  const double seconds = Fastest(kSeconds, 3, [&] { stream.OnGpu() ? on_card() : on_host(); });
  return 2 * static_cast<double>(bytes) / seconds;
}

// Collective over `units`. Bytes per second in both directions, with one partner at a time.
struct Pairs {
  double median = 0, worst = 0;  // 0: there is no partner
  int worst_partner = -1;
};
Pairs MeasurePairs(const comm::Communicator& units) {
  Pairs pairs;
  if (units.Size() < 2) return pairs;
  const std::vector<int> rounds = ChosenRounds(units.Size());
  const auto partner_in = [&](int round) { return Partner(units.Rank(), round, units.Size()); };
  Messages messages = ChooseMessages(units, partner_in(rounds.front()));
  std::vector<double> speeds;
  for (const int round : rounds) {
    const int partner = partner_in(round);
    units.Barrier();
    if (partner < 0) continue;
    speeds.push_back(BothWays(messages, messages.Exchange(units, partner, kExchanges)));
    if (pairs.worst > 0 && speeds.back() >= pairs.worst) continue;
    pairs.worst = speeds.back();
    pairs.worst_partner = partner;
  }
  if (speeds.empty()) return pairs;
  const auto middle = speeds.begin() + std::ssize(speeds) / 2;
  std::ranges::nth_element(speeds, middle);
  pairs.median = *middle;
  return pairs;
}

// Collective. Bytes/s in both directions; all ranks at once, each with the rank half the job away.
double MeasureTogether(const comm::Communicator& world) {
  const int half = world.Size() / 2;
  if (half == 0) return 0;
  const int rank = world.Rank();
  const int partner = rank < half ? rank + half : rank < 2 * half ? rank - half : -1;
  Messages messages = ChooseMessages(world, partner);
  world.Barrier();
  return BothWays(messages, partner >= 0 ? messages.Exchange(world, partner, kExchanges) : 0);
}

// Collective. Speed of an all-reduce, bytes of the operand per second; the same on all ranks.
double MeasureAllReduce(const comm::Communicator& world) {
  if (world.Size() == 1) return 0;
  constexpr int kElements = 1 << 20;  // 4 MiB
  std::vector<float> values(kElements, 0), sums(kElements);
  world.Barrier();
  const double seconds = Fastest(0, kExchanges, [&] {
    MPI_Allreduce(values.data(), sums.data(), kElements, MPI_FLOAT, MPI_SUM, world.Handle());
  });
  return static_cast<double>(kElements) * sizeof(float) / world.Max(seconds);
}

// Passes over all nodes at once; results go to rank 0.

constexpr int kPasses = 2;

// Communicators of this unit's ranks (a node's, or one rank) and of all units' first ranks.
struct Parts {
  const comm::Communicator& world;
  comm::Communicator unit, firsts;  // firsts: null except on first ranks
};

// Measured values of this rank's unit; complete on its first rank only.
Unit MeasureUnit(const Parts& parts, const device::Stream& stream, Dtype dtype,
                 double& all_reduce) {
  const comm::Communicator& unit = parts.unit;
  Unit mine;
  mine.rank = parts.world.Rank();
  parts.world.Barrier();
  bool right = true;
  const double flops = MeasureProduct(stream, dtype, right), slowest = -unit.Max(-flops);
  mine.values[kProduct] = slowest;
  mine.slowest = unit.Min(flops == slowest ? std::int64_t{parts.world.Rank()}
                                           : std::numeric_limits<std::int64_t>::max());
  mine.wrong = unit.Sum(std::int64_t{right ? 0 : 1});
  parts.world.Barrier();
  mine.values[kMemory] = unit.Sum(MeasureMemory(stream));
  parts.world.Barrier();
  if (unit.IsRoot()) {
    const Pairs pairs = MeasurePairs(parts.firsts);
    mine.values[kPairs] = pairs.median;
    mine.worst_pair = pairs.worst;
    mine.worst_partner = pairs.worst_partner;
  }
  parts.world.Barrier();
  mine.values[kTogether] = unit.Sum(MeasureTogether(parts.world));
  all_reduce = std::max(all_reduce, MeasureAllReduce(parts.world));
  return mine;
}

// All units, gathered on world rank 0; empty elsewhere.
std::vector<Unit> Gather(const Parts& parts, const Unit& mine) {
  std::vector<Unit> units;
  if (!parts.unit.IsRoot()) return units;
  const comm::Communicator& firsts = parts.firsts;
  if (firsts.IsRoot()) units.resize(static_cast<std::size_t>(firsts.Size()));
  MPI_Gather(&mine, sizeof mine, MPI_BYTE, units.data(), sizeof mine, MPI_BYTE, 0, firsts.Handle());
  return units;
}

void TakeBest(const std::vector<Unit>& more, std::vector<Unit>& units) {
  if (units.empty()) units = more;
  for (std::size_t i = 0; i < units.size(); ++i) {
    Unit& unit = units[i];
    if (more[i].values[kProduct] > unit.values[kProduct]) unit.slowest = more[i].slowest;
    for (std::size_t q = 0; q < kQuantities; ++q) {
      unit.values[q] = std::max(unit.values[q], more[i].values[q]);
    }
    if (more[i].worst_pair > unit.worst_pair) {
      unit.worst_pair = more[i].worst_pair;
      unit.worst_partner = more[i].worst_partner;
    }
    unit.wrong = std::max(unit.wrong, more[i].wrong);
  }
}

}  // namespace

Measured Measure(const comm::Communicator& world, const comm::Communicator& node,
                 const device::Stream& stream, Dtype dtype) {
  const double start = Seconds();
  Measured measured;
  measured.of_ranks = world.Max(std::int64_t{node.Size()}) == world.Size();
  const std::int64_t first =
      measured.of_ranks ? world.Rank() : node.Min(std::int64_t{world.Rank()});
  Parts parts{.world = world,
              .unit = world.Split(static_cast<int>(first), world.Rank(), "unit"),
              .firsts = world.Split(first == world.Rank() ? 0 : 1, world.Rank(), "units")};
  for (int pass = 0; pass < kPasses; ++pass) {
    const Unit mine = MeasureUnit(parts, stream, dtype, measured.all_reduce);
    TakeBest(Gather(parts, mine), measured.units);
    const std::int64_t slow = std::ssize(FindSlow(measured.units));  // 0 on all ranks but rank 0
    if (world.Max(slow) == 0) break;
  }
  measured.seconds = Seconds() - start;
  return measured;
}

// Tally: merging, and sending it up a tree of ranks.

namespace {

constexpr int kTallyTag = 71;

void MergeRanks(const std::vector<int>& more, std::vector<int>& ranks) {
  std::vector<int> merged;
  std::ranges::set_union(ranks, more, std::back_inserter(merged));
  if (merged.size() > Tally::kMostRanks) merged.resize(Tally::kMostRanks);
  ranks = std::move(merged);
}

bool MoreFrequent(const Tally::Said& a, const Tally::Said& b) {
  if (a.text.empty() != b.text.empty()) return b.text.empty();
  return a.count != b.count ? a.count > b.count : a.ranks < b.ranks;
}

}  // namespace

void Tally::Add(std::string_view topic, std::string_view text, int rank) {
  std::string clean(text.substr(0, kMostBytes));
  for (char& c : clean) {
    if (static_cast<unsigned char>(c) < ' ') c = ' ';
  }
  if (clean.empty()) clean = "nothing";
  Put(std::string(topic), {.text = std::move(clean), .count = 1, .ranks = {rank}});
}

void Tally::Put(const std::string& topic, Said said) {
  std::vector<Said>& known = topics_[topic];
  auto at = std::ranges::find(known, said.text, &Said::text);
  if (at == known.end() && known.size() >= kMostTexts) {
    said.text.clear();
    at = std::ranges::find(known, said.text, &Said::text);
  }
  if (at == known.end()) {
    known.push_back(std::move(said));
  } else {
    at->count += said.count;
    MergeRanks(said.ranks, at->ranks);
  }
  std::ranges::sort(known, MoreFrequent);
}

void Tally::Merge(const Tally& other) {
  for (const auto& [topic, texts] : other.topics_) {
    for (const Said& said : texts) Put(topic, said);
  }
}

const std::vector<Tally::Said>& Tally::Of(std::string_view topic) const {
  static const std::vector<Said> none;
  const auto at = topics_.find(topic);
  return at == topics_.end() ? none : at->second;
}

std::string Tally::Text(std::string_view topic) const {
  const std::vector<Said>& texts = Of(topic);
  if (texts.empty()) return {};
  if (texts.size() == 1) return texts.front().text;
  return fmt::format("{}, and {} other{}", texts.front().text, texts.size() - 1,
                     texts.size() == 2 ? "" : "s");
}

std::string Tally::Pack() const {
  nlohmann::json packed = nlohmann::json::array();
  for (const auto& [topic, texts] : topics_) {
    for (const Said& said : texts) packed.push_back({topic, said.text, said.count, said.ranks});
  }
  std::string bytes;
  nlohmann::json::to_msgpack(packed, bytes);
  return bytes;
}

Tally Tally::Unpack(const std::string& packed) {
  Tally tally;
  for (const nlohmann::json& said : nlohmann::json::from_msgpack(packed)) {
    tally.Put(said[0], {.text = said[1], .count = said[2], .ranks = said[3]});
  }
  return tally;
}

Tally MergeOnRoot(const comm::Communicator& group, Tally mine) {
  for (int distance = 1; distance < group.Size(); distance *= 2) {
    if ((group.Rank() & distance) != 0) {
      const std::string packed = mine.Pack();
      MPI_Send(packed.data(), static_cast<int>(packed.size()), MPI_CHAR, group.Rank() - distance,
               kTallyTag, group.Handle());
      return mine;
    }
    if (group.Rank() + distance >= group.Size()) continue;
    MPI_Status status;
    MPI_Probe(group.Rank() + distance, kTallyTag, group.Handle(), &status);
    int bytes = 0;
    MPI_Get_count(&status, MPI_CHAR, &bytes);
    std::string packed(static_cast<std::size_t>(bytes), '\0');
    MPI_Recv(packed.data(), bytes, MPI_CHAR, group.Rank() + distance, kTallyTag, group.Handle(),
             MPI_STATUS_IGNORE);
    mine.Merge(Tally::Unpack(packed));
  }
  return mine;
}

// Tournament by the circle method: one player stays, the others move on one place per round.

static constexpr int kMostRounds = 16;

int Rounds(int players) { return players < 2 ? 0 : players - 1 + players % 2; }

// If the number of players is odd, a dummy is added: who meets it pauses.
int Partner(int self, int round, int players) {
  const int circle = Rounds(players);
  const int fixed = circle;  // number of the player who stays, or of the dummy
  int partner = 0;
  if (self == fixed) {
    // Solve 2 * partner = round modulo the circle's length, which is odd.
    partner = round % 2 == 0 ? round / 2 : (round + circle) / 2;
  } else {
    partner = (round - self + circle) % circle;
    if (partner == self) partner = fixed;
  }
  return partner < players ? partner : -1;
}

std::vector<int> ChosenRounds(int players) {
  const int all = Rounds(players), count = std::min(all, kMostRounds);
  std::vector<int> rounds;
  for (int i = 0; i < count; ++i) {
    rounds.push_back(static_cast<int>(static_cast<std::int64_t>(i) * all / count));
  }
  return rounds;
}

}  // namespace trireme::tools
