// Tally: merging, and its way up a tree of ranks.
#include "trireme/tools/tally.hpp"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace trireme::tools {

namespace {

constexpr int kTallyTag = 71;

void MergeRanks(const std::vector<int>& more, std::vector<int>& ranks) {
  std::vector<int> merged;
  std::ranges::set_union(ranks, more, std::back_inserter(merged));
  if (merged.size() > Tally::kMostRanks) merged.resize(Tally::kMostRanks);
  ranks = std::move(merged);
}

// The part before the separator, which leaves the text with it.
std::string_view Take(std::string_view& text, char separator) {
  const std::size_t end = std::min(text.find(separator), text.size());
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

std::int64_t Number(std::string_view text) {
  std::int64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
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

// A line for each text: topic, count, ranks, text, with tabs between.
std::string Tally::Pack() const {
  std::string packed;
  for (const auto& [topic, texts] : topics_) {
    for (const Said& said : texts) {
      packed += fmt::format("{}\t{}\t", topic, said.count);
      for (const int rank : said.ranks) packed += fmt::format("{} ", rank);
      packed += fmt::format("\t{}\n", said.text);
    }
  }
  return packed;
}

Tally Tally::Unpack(std::string_view text) {
  Tally tally;
  while (!text.empty()) {
    std::string_view line = Take(text, '\n');
    const std::string topic(Take(line, '\t'));
    Said said{.text = {}, .count = Number(Take(line, '\t')), .ranks = {}};
    for (std::string_view ranks = Take(line, '\t'); !ranks.empty();) {
      said.ranks.push_back(static_cast<int>(Number(Take(ranks, ' '))));
    }
    said.text = line;
    tally.Put(topic, std::move(said));
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

}  // namespace trireme::tools
