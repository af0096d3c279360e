// LengthsOf a file that is not opened: positioned reads of the beginnings of its texts.
#include "pair_lengths.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "element_checks.hpp"
#include "positioned_file.hpp"
#include "token_layout.hpp"
#include "trireme/base/error.hpp"
#include "trireme/data/pair_batches.hpp"

namespace trireme::data {

namespace {

struct OpenSide {
  OpenSide(const std::string& path, Side side)
      : layout(InspectTokenFile(path, side)), file(path, layout) {}
  void Read(Split split, std::int64_t first, std::span<std::int32_t> lengths) const;
  TokenLayout layout;
  PositionedFile file;
};

void OpenSide::Read(Split split, std::int64_t first, std::span<std::int32_t> lengths) const {
  const std::int64_t texts = layout.Of(split, Array::kDocuments).count;
  const std::int64_t after = std::min(texts, first + std::ssize(lengths) + 1);
  std::vector<std::int64_t> begins(lengths.size() + 1, layout.Tokens(split));
  Elements elements{begins.data(), first, after};
  file.Read(layout, split, Array::kDocuments, first, after, begins.data());
  if (first > 0) file.Read(layout, split, Array::kDocuments, first - 1, first, &elements.before);
  file.RequireGood(layout, split, Array::kDocuments, elements);
  const std::string where = file.Path() + ": " + layout.PathOf(split, Array::kDocuments);
  LengthsBetween(begins, first, where, lengths);
}

}  // namespace

void LengthsBetween(std::span<const std::int64_t> begins, std::int64_t first,
                    const std::string& where, std::span<std::int32_t> lengths) {
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const std::int64_t length = begins[i + 1] - begins[i];
    if (length > std::numeric_limits<std::int32_t>::max()) {
      throw RunError(fmt::format("{}: pair {} has a text of {} tokens", where,
                                 first + static_cast<std::int64_t>(i), length));
    }
    lengths[i] = static_cast<std::int32_t>(length);
  }
}

ReadPairLengths LengthsOf(const std::string& path, Split split) {
  const auto source = std::make_shared<const OpenSide>(path, Side::kSource);
  const auto target = std::make_shared<const OpenSide>(path, Side::kTarget);
  return [source, target, split](std::int64_t first, std::span<std::int32_t> sources,
                                 std::span<std::int32_t> targets) {
    source->Read(split, first, sources);
    target->Read(split, first, targets);
  };
}

}  // namespace trireme::data
