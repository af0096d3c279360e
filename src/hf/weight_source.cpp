// WeightSource: converts a model folder's tensors into parameters.
#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <shared_mutex>

#include "tensor_map.hpp"
#include "trireme/base/dtype.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/files.hpp"
#include "trireme/base/partition.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/hf/weights.hpp"

namespace trireme::hf {

namespace {

using checkpoint::ListProblems, checkpoint::ShapeText;
using checkpoint::StoredTensor;

constexpr std::int64_t kPieceBytes = std::int64_t{4} << 20;
constexpr std::int64_t kBlockElements = std::int64_t{1} << 16;  // converted at a time: fits a cache

}  // namespace

struct WeightSource::State {
  // A mapped tensor and where it is stored.
  struct Place {
    const MappedTensor* mapped = nullptr;
    const StoredTensor* stored = nullptr;
    std::string file;  // path
    Stored type = Stored::kF32;
  };
  struct Parameter {
    std::size_t place = 0;  // index in `places`
    std::size_t part = 0;   // index in its tensor's parts
  };

  void Match(const std::string& folder, Family family) {
    const TensorNames names(map, listing, family);
    std::map<const MappedTensor*, Place> found;
    std::vector<std::string> problems;
    for (const ListedFile& file : listing.files) {
      for (const StoredTensor& stored : file.contents.tensors) {
        const MappedTensor* const mapped = names.Find(stored.name);
        if (mapped == nullptr) {
          if (IsBuffer(family, stored.name)) continue;
          problems.push_back(fmt::format("tensor {}: nothing expected, {} {} found",
                                         deck::Shown(stored.name), stored.dtype,
                                         ShapeText(stored.shape)));
          continue;
        }
        std::string problem = Problem(*mapped, stored);
        const Stored type = StoredOf(stored.dtype).value_or(Stored::kF32);
        if (!problem.empty()) problems.push_back(std::move(problem));
        found[mapped] = {mapped, &stored, folder + "/" + file.name, type};
      }
    }
    for (const MappedTensor& mapped : map) {
      const auto place = found.find(&mapped);
      if (place != found.end()) {
        if (mapped.copy) {
          head = place->second;
        } else {
          places.push_back(place->second);
        }
      } else if (!mapped.copy) {
        problems.push_back(fmt::format("tensor {}: {} expected, nothing found", mapped.name,
                                       ShapeText(mapped.shape)));
      }
    }
    if (problems.empty()) return;
    throw InputError(
        ListProblems(fmt::format("{}: its weights are not those of its {}", folder, kConfigFile),
                     problems),
        "A model with a language-modelling head of this family is expected.");
  }

  // Why a listed tensor cannot be the mapped one; empty: it can.
  std::string Problem(const MappedTensor& mapped, const StoredTensor& stored) const {
    if (!StoredOf(stored.dtype)) {
      return fmt::format("tensor {}: F32, F64, BF16 or F16 expected, {} found", stored.name,
                         stored.dtype);
    }
    if (mapped.shape == stored.shape) return {};
    return fmt::format("tensor {}: shape {} expected, {} found", stored.name,
                       ShapeText(mapped.shape), ShapeText(stored.shape));
  }

  void ListParameters() {
    for (std::size_t i = 0; i < places.size(); ++i) {
      for (std::size_t part = 0; part < places[i].mapped->parts.size(); ++part) {
        parameters[places[i].mapped->parts[part].name] = {i, part};
      }
    }
  }

  const PositionedFile& Open(const std::string& path) {
    const std::lock_guard lock(mutex);
    return files.try_emplace(path, path, PositionedFile::Access::kRead, ExitCode::kBadInput)
        .first->second;
  }

  // Reads `count` elements of a tensor, beginning with element `first`, as stored.
  void ReadBytes(const Place& place, std::int64_t first, std::int64_t count, char* to) {
    const std::int64_t size = BytesOf(place.type);
    Open(place.file).Read(to, count * size, place.stored->offset + first * size);
  }
  // Reads elements [first, last) of a part in the checkpoint's type. Returns the first one that is
  // not finite, or kAllFinite.
  std::int64_t ReadRows(const Place& place, const MappedPart& part, std::int64_t first,
                        std::int64_t last, char* to) {
    if (place.mapped->transposed) return ReadTransposed(place, part, first, last, to);
    const auto size = static_cast<std::int64_t>(SizeOf(CheckpointType(place.type)));
    const std::int64_t begin = part.begin * place.mapped->Columns();
    std::vector<char> memory = TakeScratch();
    for (std::int64_t at = first; at < last; at += kBlockElements) {
      const std::int64_t count = std::min(kBlockElements, last - at);
      memory.resize(std::max(memory.size(), static_cast<std::size_t>(count * size)));
      ReadBytes(place, begin + at, count, memory.data());
      const std::int64_t bad = Widen(place.type, memory.data(), count, to + (at - first) * size);
      if (bad != kAllFinite) return at + bad;
    }
    GiveScratch(std::move(memory));
    return kAllFinite;
  }

  // One thread loads the tensor; others that need it wait. Later ones read it at the same time.
  std::int64_t ReadTransposed(const Place& place, const MappedPart& part, std::int64_t first,
                              std::int64_t last, char* to) {
    {
      const std::shared_lock reading(whole_mutex);
      if (whole == &place) return TransposeWhole(place, part, first, last, to);
    }
    const std::unique_lock alone(whole_mutex);
    if (whole != &place) {
      whole = nullptr;
      whole_bytes.resize(static_cast<std::size_t>(place.stored->bytes));
      ReadBytes(place, 0, place.mapped->Elements(), whole_bytes.data());
      whole = &place;
    }
    return TransposeWhole(place, part, first, last, to);
  }

  std::int64_t TransposeWhole(const Place& place, const MappedPart& part, std::int64_t first,
                              std::int64_t last, char* to) {
    const std::int64_t size = BytesOf(place.type), columns = place.mapped->Columns();
    const std::int64_t row = first / columns, rows = CeilDivide(last, columns) - row;
    std::vector<char> memory = TakeScratch();
    memory.resize(std::max(memory.size(), static_cast<std::size_t>(rows * columns * size)));
    Transpose(size, {whole_bytes.data() + (part.begin + row) * size, place.mapped->Rows()},
              {memory.data(), columns}, rows, columns);
    const std::int64_t bad =
        Widen(place.type, memory.data() + (first - row * columns) * size, last - first, to);
    GiveScratch(std::move(memory));
    return bad == kAllFinite ? bad : first + bad;
  }

  std::vector<char> TakeScratch() {
    const std::lock_guard lock(mutex);
    if (scratch.empty()) return {};
    std::vector<char> memory = std::move(scratch.back());
    scratch.pop_back();
    return memory;
  }

  void GiveScratch(std::vector<char> memory) {
    const std::lock_guard lock(mutex);
    scratch.push_back(std::move(memory));
  }

  Listing listing;
  std::vector<MappedTensor> map;
  std::vector<Place> places;  // in the order of `map`, without copies
  std::optional<Place> head;  // the copy of a tied embedding, if the folder has one
  std::map<std::string, Parameter> parameters;
  std::shared_mutex whole_mutex;  // guards the next two; readers hold it shared
  const Place* whole = nullptr;   // the transposed tensor in `whole_bytes`
  std::vector<char> whole_bytes;
  std::mutex mutex;                             // guards the next two
  std::map<std::string, PositionedFile> files;  // open files, by path
  std::vector<std::vector<char>> scratch;       // buffers of calls that have ended
};

WeightSource::WeightSource(const std::string& folder, Listing listing, Family family,
                           const model::Options& options)
    : state_(std::make_unique<State>()) {
  state_->listing = std::move(listing);
  state_->map = MapTensors(family, options);
  state_->Match(folder, family);
  state_->ListParameters();
}

WeightSource::~WeightSource() = default;

std::vector<kernels::StateBlock> WeightSource::Blocks(int rank, int ranks) const {
  std::int64_t all = 0;
  for (const State::Place& place : state_->places) all += place.mapped->Elements();
  const Part mine = PartOf(all, rank, ranks);
  std::vector<kernels::StateBlock> blocks;
  std::int64_t at = 0;
  for (const State::Place& place : state_->places) {
    // A whole tensor belongs to the rank whose part contains its first element.
    const bool here = mine.begin <= at && at < mine.end;
    for (const MappedPart& part : place.mapped->parts) {
      const std::int64_t count = kernels::ElementCount(part.shape);
      kernels::StateBlock block{.name = part.name,
                                .shape = part.shape,
                                .dtype = CheckpointType(place.type),
                                .data = state_.get()};
      if (place.mapped->transposed) {
        block.end = here ? count : 0;
      } else {
        block.begin = std::clamp<std::int64_t>(mine.begin - at, 0, count);
        block.end = std::clamp<std::int64_t>(mine.end - at, block.begin, count);
      }
      at += count;
      blocks.push_back(std::move(block));
    }
  }
  return blocks;
}

void WeightSource::Read(const kernels::StateBlock& block, std::int64_t first, std::int64_t last,
                        void* to) {
  const State::Parameter& parameter = state_->parameters.at(block.name);
  const State::Place& place = state_->places[parameter.place];
  const MappedPart& part = place.mapped->parts[parameter.part];
  const std::int64_t bad = state_->ReadRows(place, part, first, last, static_cast<char*>(to));
  if (bad == kAllFinite) return;
  throw InputError(fmt::format("{}: tensor {}: element {} of {} is infinite or no number",
                               place.file, place.stored->name, bad, block.name),
                   "The file is damaged, or its training went astray.");
}

void WeightSource::CheckTiedHead(int rank, int ranks) const {
  if (!state_->head) return;
  const State::Place &head = *state_->head, &table = state_->places.front();
  const Part mine = PartOf(table.mapped->Elements(), rank, ranks);
  // Different types are compared in the shorter one: a rounded copy counts as a copy.
  const Stored type = BytesOf(head.type) < BytesOf(table.type) ? head.type : table.type;
  const std::int64_t step = kPieceBytes / 8;
  std::vector<char> bytes(kPieceBytes), others(kPieceBytes), wide(kPieceBytes);
  const auto read = [&](const State::Place& place, std::int64_t at, std::int64_t count, char* to) {
    state_->ReadBytes(place, at, count, to);
    if (place.type == type) return;
    Widen(place.type, to, count, wide.data());
    Narrow(CheckpointType(place.type), wide.data(), count, type, to);
  };
  bool same = true;
  for (std::int64_t at = mine.begin; same && at < mine.end; at += step) {
    const std::int64_t count = std::min(step, mine.end - at);
    read(table, at, count, bytes.data());
    read(head, at, count, others.data());
    const auto size = static_cast<std::size_t>(count * BytesOf(type));
    same = std::memcmp(bytes.data(), others.data(), size) == 0;
  }
  if (same) return;
  throw InputError(fmt::format("{}: tensor {}: differs from {}, but the configuration ties them",
                               head.file, head.stored->name, table.stored->name),
                   "Set tie_word_embeddings to false in config.json if the head is of its own.");
}

std::int64_t WeightSource::Bytes() const {
  std::int64_t bytes = 0;
  for (const State::Place& place : state_->places) bytes += place.stored->bytes;
  return bytes;
}

PassingMemory WeightSource::Memory(int threads) const {
  PassingMemory memory;
  std::int64_t piece = 0;
  for (const State::Place& place : state_->places) {
    const std::int64_t size = BytesOf(place.type);
    const auto wide = static_cast<std::int64_t>(SizeOf(CheckpointType(place.type)));
    piece = std::max(piece, kBlockElements * wide);
    if (!place.mapped->transposed) continue;
    memory.tensor = std::max(memory.tensor, place.stored->bytes);
    // Room for a checkpoint segment that begins and ends within rows.
    const std::int64_t elements = std::min(kPieceBytes / wide, place.mapped->Elements());
    piece = std::max(piece, (elements + 2 * place.mapped->Columns()) * size);
  }
  memory.buffers = threads * piece;
  return memory;
}

const Listing& WeightSource::Files() const { return state_->listing; }

// Conversion of stored elements.

namespace {

// out[i] = convert(in[i]). Returns the first i whose result is not finite, or kAllFinite. Tests
// blocks of results, to have no branch per element.
template <typename In, typename Out, typename Convert, typename IsFinite>
std::int64_t ConvertAll(const In* in, std::int64_t count, Out* out, const Convert& convert,
                        const IsFinite& is_finite) {
  constexpr std::int64_t kBlock = 4096;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, count);
    bool good = true;
    for (std::int64_t i = begin; i < end; ++i) {
      out[i] = convert(in[i]);
      good &= is_finite(out[i]);
    }
    for (std::int64_t i = begin; !good && i < end; ++i) {
      if (!is_finite(out[i])) return i;
    }
  }
  return kAllFinite;
}

// A value is infinite or NaN if and only if all exponent bits are ones.
bool FiniteBfloat16(std::uint16_t bits) { return (bits & 0x7f80) != 0x7f80; }
bool FiniteHalf(std::uint16_t bits) { return (bits & 0x7c00) != 0x7c00; }
bool Finite(double value) { return std::isfinite(value); }
bool Finite(float value) {
  constexpr std::uint32_t kExponent = 0x7f800000;
  return (std::bit_cast<std::uint32_t>(value) & kExponent) != kExponent;
}

// The same for results of type Out, fp32 or fp64.
template <typename Out, typename In, typename Convert>
std::int64_t ConvertTo(const void* in, std::int64_t count, void* out, const Convert& convert) {
  return ConvertAll(static_cast<const In*>(in), count, static_cast<Out*>(out), convert,
                    [](Out value) { return Finite(value); });
}

template <typename In>
std::int64_t NarrowFrom(const void* in, std::int64_t count, Stored to, void* out) {
  const auto single = [](In value) { return static_cast<float>(value); };
  const auto narrow = [&](auto convert, auto is_finite) {
    return ConvertAll(
        static_cast<const In*>(in), count, static_cast<std::uint16_t*>(out),
        [&](In value) { return convert(single(value)); }, is_finite);
  };
  switch (to) {
    case Stored::kF32:
      return ConvertTo<float, In>(in, count, out, single);
    case Stored::kF64:
      return ConvertTo<double, In>(in, count, out, [](In value) { return value; });
    case Stored::kBf16:
      return narrow(RoundToBfloat16, FiniteBfloat16);
    case Stored::kF16:
      return narrow(ToHalf, FiniteHalf);
  }
  return kAllFinite;
}

}  // namespace

std::optional<Stored> StoredOf(const std::string& dtype) {
  for (const Stored type : {Stored::kF32, Stored::kF64, Stored::kBf16, Stored::kF16}) {
    if (dtype == SafetensorsName(type)) return type;
  }
  return std::nullopt;
}

const char* SafetensorsName(Stored type) {
  constexpr std::array kNames = {"F32", "F64", "BF16", "F16"};
  return kNames.at(static_cast<std::size_t>(type));
}

std::int64_t Widen(Stored from, const void* in, std::int64_t count, void* out) {
  const auto same = [](auto value) { return value; };
  switch (from) {
    case Stored::kF32:
      return ConvertTo<float, float>(in, count, out, same);
    case Stored::kF64:
      return ConvertTo<double, double>(in, count, out, same);
    case Stored::kBf16:
      return ConvertTo<float, std::uint16_t>(in, count, out, FromBfloat16);
    case Stored::kF16:
      return ConvertTo<float, std::uint16_t>(in, count, out, FromHalf);
  }
  return kAllFinite;
}

std::int64_t Narrow(Dtype from, const void* in, std::int64_t count, Stored to, void* out) {
  return from == Dtype::kFloat64 ? NarrowFrom<double>(in, count, to, out)
                                 : NarrowFrom<float>(in, count, to, out);
}

// Names of tensors with and without their common prefix.

static bool Lists(const Listing& listing, const std::string& name) {
  return std::any_of(listing.files.begin(), listing.files.end(), [&](const ListedFile& file) {
    return std::any_of(file.contents.tensors.begin(), file.contents.tensors.end(),
                       [&](const auto& tensor) { return tensor.name == name; });
  });
}

TensorNames::TensorNames(const std::vector<MappedTensor>& map, const Listing& listing,
                         Family family) {
  const std::string prefix = OptionalPrefix(family);
  const std::string& first = map.front().name;
  const bool bare =
      !prefix.empty() && !Lists(listing, first) && Lists(listing, first.substr(prefix.size()));
  for (const MappedTensor& tensor : map) {
    const bool cut = bare && tensor.name.starts_with(prefix);
    by_name_[cut ? tensor.name.substr(prefix.size()) : tensor.name] = &tensor;
  }
}

const MappedTensor* TensorNames::Find(const std::string& listed) const {
  const auto found = by_name_.find(listed);
  return found == by_name_.end() ? nullptr : found->second;
}

}  // namespace trireme::hf
