// Baselines: reads the train split once, sums losses over evaluated targets. KneserNey: 5-grams.
#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <numeric>

#include "trireme/base/exact_sum.hpp"
#include "trireme/data/windows.hpp"
#include "trireme/report/monitor.hpp"
#include "trireme/tasks/evaluate.hpp"

namespace trireme::tasks {

namespace {

constexpr std::int64_t kPiece = std::int64_t{1} << 20;  // tokens read and evaluated at once

// Reads the targets of a split in pieces, each with the tokens before it that contexts need.
class TargetReader {
 public:
  TargetReader(const data::TokenFile& file, data::Split split, bool document_mask)
      : reader_(file, split, document_mask), document_mask_(document_mask) {}

  // Adds the next piece to `stream`; false if there is none.
  bool Next(TargetStream& stream) {
    if (at_ >= reader_.Size()) return false;
    const std::int64_t count = std::min(kPiece, reader_.Size() - at_);
    const data::WindowView piece = reader_.Read(at_, count, window_);
    reader_.RequireUnchanged();
    data::VisitTokens(piece, document_mask_, [&](std::int64_t i, bool begins, bool counts) {
      const bool starts = at_ == 0 || (document_mask_ && begins);
      known_ = starts ? 0 : std::min(known_ + 1, kOrder - 1);
      if (at_ > 0 && counts) {
        stream.targets.push_back(static_cast<std::uint32_t>(stream.ids.size()));
      }
      stream.ids.push_back(static_cast<std::uint32_t>(piece.Id(i)));
      stream.known.push_back(static_cast<std::uint8_t>(known_));
      ++at_;
      return true;
    });
    return true;
  }

 private:
  data::TokenReader reader_;
  const bool document_mask_;
  data::Window window_;
  std::int64_t at_ = 0;
  int known_ = 0;
};

// Drops all but the last kOrder - 1 tokens, which are context for the next piece.
void KeepContext(TargetStream& stream) {
  const auto kept = static_cast<std::ptrdiff_t>(
      std::min(stream.ids.size(), static_cast<std::size_t>(kOrder - 1)));
  stream.ids.erase(stream.ids.begin(), stream.ids.end() - kept);
  stream.known.erase(stream.known.begin(), stream.known.end() - kept);
  stream.targets.clear();
}

constexpr int kContext = kOrder - 1;

NGram NGramAt(const TargetStream& stream, std::uint32_t at, std::uint32_t missing) {
  NGram ngram;
  for (int i = 0; i < kContext; ++i) {
    ngram[static_cast<std::size_t>(i)] =
        i < stream.known[at] ? stream.ids[at - 1 - static_cast<std::uint32_t>(i)] : missing;
  }
  ngram[kContext] = stream.ids[at];
  return ngram;
}

// Compares the nearest `count` tokens of two contexts: negative, 0 or positive.
int Compare(const NGram& a, const NGram& b, int count) {
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (a[at] != b[at]) return a[at] < b[at] ? -1 : 1;
  }
  return 0;
}

int CommonContext(const NGram& a, const NGram& b) {
  int count = 0;
  while (count < kContext &&
         a[static_cast<std::size_t>(count)] == b[static_cast<std::size_t>(count)]) {
    ++count;
  }
  return count;
}

// Counts of the words that follow one context.
struct Followers {
  explicit Followers(std::size_t vocabulary) : counts(vocabulary) {}
  void Add(std::uint32_t word) {
    if (counts[word]++ == 0) words.push_back(word);
  }
  void Clear() {
    for (const std::uint32_t word : words) counts[word] = 0;
    words.clear();
  }
  std::vector<std::uint32_t> counts;  // [vocabulary]
  std::vector<std::uint32_t> words;   // words with a count above 0
};

}  // namespace

TargetStream ReadTargets(const data::TokenFile& file, data::Split split, bool document_mask) {
  TargetStream stream;
  const auto tokens = static_cast<std::size_t>(file.Size(split));
  stream.ids.reserve(tokens);
  stream.known.reserve(tokens);
  stream.targets.reserve(tokens);
  TargetReader reader(file, split, document_mask);
  while (reader.Next(stream)) {
  }
  return stream;
}

Baselines::Baselines(const data::TokenFile& file, bool document_mask, std::int64_t most)
    : vocabulary_(file.VocabularySize()), document_mask_(document_mask) {
  const std::int64_t tokens = file.Size(data::Split::kTrain);
  if (tokens > most) {
    left_out_ =
        fmt::format("unigram and 5-gram are left out: the train split has {} tokens, more than {}",
                    report::WithThousands(tokens), report::WithThousands(most));
    return;
  }
  TargetStream train = ReadTargets(file, data::Split::kTrain, document_mask);
  if (train.targets.empty()) {
    left_out_ = "unigram and 5-gram are left out: no target of the train split counts";
    return;
  }
  unigram_.assign(static_cast<std::size_t>(vocabulary_), 1);
  for (const std::uint32_t at : train.targets) ++unigram_[train.ids[at]];
  const auto total =
      static_cast<double>(std::ssize(train.targets)) + static_cast<double>(vocabulary_);
  for (double& value : unigram_) value = -std::log(value / total);
  n_gram_.emplace_back(std::move(train), vocabulary_);
}

Baselines::Result Baselines::Evaluate(const data::TokenFile& file, data::Split split) const {
  Result result;
  ExactSum unigram, n_gram;
  TargetReader reader(file, split, document_mask_);
  TargetStream stream;
  while (reader.Next(stream)) {
    result.targets += std::ssize(stream.targets);
    if (!n_gram_.empty()) {
      for (const std::uint32_t at : stream.targets) unigram.Add(unigram_[stream.ids[at]]);
      for (const double loss : n_gram_.front().Losses(stream)) n_gram.Add(loss);
    }
    KeepContext(stream);
  }
  const double uniform = std::log(static_cast<double>(vocabulary_));
  result.nats = {{"uniform", uniform * static_cast<double>(result.targets)}};
  if (n_gram_.empty()) return result;
  result.nats.emplace_back("unigram", unigram.Value());
  result.nats.emplace_back("5-gram", n_gram.Value());
  return result;
}

// Kneser-Ney counts without tables of n-grams: training targets are sorted by their contexts; one
// pass over them counts each context's continuations and answers all queries.

// Kneser-Ney counts of a context, and of one word after it. Highest order: occurrences in training;
// lower orders: the number of different tokens seen before the n-gram.
struct KneserNey::Seen {
  std::uint32_t count = 0;               // count of the word after the context
  std::uint32_t total = 0;               // sum over all words
  std::array<std::uint32_t, 3> kinds{};  // words counted once, twice, more often
};

// A pass over the sorted training targets. At any time contexts of 0 to 4 tokens are open, each the
// beginning of the next. When a context ends its counts are complete, and each of its words counts
// once for the context that is one token shorter.
class KneserNey::Scan {
 public:
  using Order = std::array<std::int64_t, 4>;
  // queries: sorted; seen: [queries], filled in.
  Scan(const KneserNey& model, std::span<const NGram> queries,
       std::span<std::array<Seen, kOrder>> seen)
      : model_(model),
        queries_(queries),
        seen_(seen),
        open_(kOrder, Followers(model.vocabulary_)) {}

  void Run() {
    const std::vector<std::uint32_t>& targets = model_.train_.targets;
    if (targets.empty()) return;
    NGram current = NGramAt(model_.train_, targets.front(), model_.vocabulary_);
    for (const std::uint32_t at : targets) {
      const NGram next = NGramAt(model_.train_, at, model_.vocabulary_);
      Close(current, CommonContext(current, next));
      current = next;
      open_[kContext].Add(next[kContext]);
    }
    Close(current, 0);
    Count(current, 0);
  }

  const std::array<Order, kOrder>& Counted() const { return counted_; }  // [tokens of the context]

 private:
  // Closes the open contexts of more than `kept` tokens.
  void Close(const NGram& context, int kept) {
    for (int tokens = kContext; tokens > kept; --tokens) {
      Followers& followers = open_[static_cast<std::size_t>(tokens)];
      // Skip a context of this length if the document begins within it.
      if (context[static_cast<std::size_t>(tokens - 1)] != model_.vocabulary_) {
        Count(context, tokens);
      }
      Followers& shorter = open_[static_cast<std::size_t>(tokens - 1)];
      for (const std::uint32_t word : followers.words) shorter.Add(word);
      followers.Clear();
    }
  }

  void Count(const NGram& context, int tokens) {
    const auto length = static_cast<std::size_t>(tokens);
    const Followers& followers = open_[length];
    Seen all;
    for (const std::uint32_t word : followers.words) {
      const std::uint32_t count = followers.counts[word];
      all.total += count;
      ++all.kinds[std::min<std::uint32_t>(count, 3) - 1];
      if (count <= 4) ++counted_[length][count - 1];
    }
    std::size_t& at = answered_[length];
    for (; at < queries_.size(); ++at) {
      const int order = Compare(queries_[at], context, tokens);
      if (order > 0) break;
      if (order < 0) continue;
      Seen& seen = seen_[at][length];
      seen = all;
      seen.count = followers.counts[queries_[at][kContext]];
    }
  }

  const KneserNey& model_;
  std::span<const NGram> queries_;
  std::span<std::array<Seen, kOrder>> seen_;
  std::vector<Followers> open_;                 // [n]: followers of the open context of n tokens
  std::array<std::size_t, kOrder> answered_{};  // queries answered so far, by length of context
  std::array<Order, kOrder> counted_{};
};

KneserNey::KneserNey(TargetStream train, std::int64_t vocabulary)
    : train_(std::move(train)), vocabulary_(static_cast<std::uint32_t>(vocabulary)) {
  Sort();
  Scan scan(*this, {}, {});
  scan.Run();
  std::transform(scan.Counted().begin(), scan.Counted().end(), discounts_.begin(), DiscountsOf);
}

// Radix sort: counting sorts by one token after another, the most significant one last.
void KneserNey::Sort() {
  std::vector<std::uint32_t>& targets = train_.targets;
  std::vector<std::uint32_t> sorted(targets.size());
  std::vector<std::size_t> places;
  for (const int token : {4, 3, 2, 1, 0}) {
    const auto key = [&](std::uint32_t at) -> std::size_t {
      if (token == kContext) return train_.ids[at];
      if (token >= train_.known[at]) return vocabulary_;
      return train_.ids[at - 1 - static_cast<std::uint32_t>(token)];
    };
    places.assign(std::size_t{vocabulary_} + 2, 0);
    for (const std::uint32_t at : targets) ++places[key(at) + 1];
    std::partial_sum(places.begin(), places.end(), places.begin());
    for (const std::uint32_t at : targets) sorted[places[key(at)]++] = at;
    targets.swap(sorted);
  }
}

std::array<double, 3> KneserNey::DiscountsOf(const std::array<std::int64_t, 4>& counted) {
  constexpr std::array<double, 3> kElse = {0.5, 1, 1.5};
  const auto n = [&](int times) {
    return static_cast<double>(counted[static_cast<std::size_t>(times - 1)]);
  };
  if (std::find(counted.begin(), counted.end(), 0) != counted.end()) return kElse;
  const double y = n(1) / (n(1) + 2 * n(2));
  std::array<double, 3> discounts{};
  for (int i = 1; i <= 3; ++i) {
    const double discount = i - (i + 1) * y * n(i + 1) / n(i);
    if (!(discount > 0 && discount <= i)) return kElse;
    discounts[static_cast<std::size_t>(i - 1)] = discount;
  }
  return discounts;
}

double KneserNey::Loss(const NGram& ngram, const std::array<Seen, kOrder>& seen) const {
  double probability = 1.0 / vocabulary_;
  for (std::size_t tokens = 0; tokens < kOrder; ++tokens) {
    if (tokens > 0 && ngram[tokens - 1] == vocabulary_) break;  // the document begins here
    const Seen& here = seen[tokens];
    if (here.total == 0) break;  // a longer context was not seen either
    const std::array<double, 3>& discounts = discounts_[tokens];
    double kept = here.count;
    if (here.count > 0) kept -= discounts[std::min<std::uint32_t>(here.count, 3) - 1];
    double given = 0;
    for (std::size_t i = 0; i < 3; ++i) given += discounts[i] * here.kinds[i];
    probability = (kept + given * probability) / here.total;
  }
  return -std::log(probability);
}

std::vector<double> KneserNey::Losses(const TargetStream& stream) const {
  std::vector<std::uint32_t> order(stream.targets.size());
  std::iota(order.begin(), order.end(), 0);
  std::vector<NGram> queries;
  queries.reserve(order.size());
  for (const std::uint32_t at : stream.targets) {
    queries.push_back(NGramAt(stream, at, vocabulary_));
  }
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return queries[a] != queries[b] ? queries[a] < queries[b] : a < b;
  });
  std::vector<NGram> sorted;
  sorted.reserve(order.size());
  for (const std::uint32_t i : order) sorted.push_back(queries[i]);
  queries = {};
  std::vector<std::array<Seen, kOrder>> seen(sorted.size());
  Scan(*this, sorted, seen).Run();
  std::vector<double> losses(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) losses[order[i]] = Loss(sorted[i], seen[i]);
  return losses;
}

}  // namespace trireme::tasks
