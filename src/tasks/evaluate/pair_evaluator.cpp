// Evaluation of a model that translates: each split's loss, then its translations, whose scores are
// sums of whole numbers over the ranks.
#include "trireme/tasks/pair_evaluator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "report.hpp"
#include "result_file.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/error.hpp"
#include "trireme/report/monitor.hpp"

namespace trireme::tasks {

namespace {

constexpr std::size_t kShown = 3;  // translations of each kind on the screen

// Numbers of the pairs that the model takes.
std::vector<std::int64_t> Suitable(const data::PairFile& pairs, data::Split split,
                                   std::int64_t longest) {
  const std::int64_t count = pairs.Pairs(split);
  std::vector<std::int32_t> sources(static_cast<std::size_t>(count)), targets(sources.size());
  pairs.ReadLengths(data::Side::kSource, split, 0, sources);
  pairs.ReadLengths(data::Side::kTarget, split, 0, targets);
  std::vector<std::int64_t> suitable;
  for (std::int64_t pair = 0; pair < count; ++pair) {
    const auto i = static_cast<std::size_t>(pair);
    if (std::max(sources[i], targets[i]) <= longest) suitable.push_back(pair);
  }
  return suitable;
}

bool IsRight(const TranslatedPair& pair) { return pair.translation == pair.reference; }

// Of pairs in the split's order the first few that are right and the first few that are wrong.
std::vector<TranslatedPair> FirstOfEach(const std::vector<TranslatedPair>& pairs) {
  std::array<std::size_t, 2> count{};
  std::vector<TranslatedPair> few;
  for (const TranslatedPair& pair : pairs) {
    if (count.at(IsRight(pair) ? 1 : 0)++ < kShown) few.push_back(pair);
  }
  return few;
}

void SumOver(const comm::Communicator& world, ScoreCounts& counts) {
  std::vector<std::int64_t*> numbers = {&counts.texts, &counts.exact, &counts.hypothesis_words,
                                        &counts.reference_words};
  const auto add = [&](auto& orders) {
    for (ScoreCounts::Grams& grams : orders) {
      numbers.insert(numbers.end(), {&grams.hypothesis, &grams.reference, &grams.matches});
    }
  };
  add(counts.words);
  add(counts.characters);
  for (std::int64_t* const number : numbers) *number = world.Sum(*number);
}

Json AsJson(const TranslatedPair& pair) {
  constexpr double kDigits = 1e6;  // layouts differ by rounding
  return {{"pair", pair.number},
          {"source", pair.source},
          {"reference", pair.reference},
          {"text", pair.translation},
          {"log_probability", Number(std::round(pair.log_probability * kDigits) / kDigits)},
          {"reason", pair.ended ? "eos" : "length"}};
}

std::string Dump(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// Pairs of all ranks, on every rank, in the split's order.
std::vector<Json> Gather(const comm::Communicator& world,
                         const std::vector<TranslatedPair>& pairs) {
  Json mine = Json::array();
  for (const TranslatedPair& pair : pairs) mine.push_back(AsJson(pair));
  std::vector<Json> all;
  for (const std::string& text : world.Gather(Dump(mine))) {
    for (Json& pair : Json::parse(text)) all.push_back(std::move(pair));
  }
  std::ranges::sort(all, {}, [](const Json& pair) { return pair["pair"].get<std::int64_t>(); });
  return all;
}

void Show(const std::vector<Json>& pairs, bool right) {
  std::size_t shown = 0;
  for (const Json& pair : pairs) {
    const std::string text = pair["text"], reference = pair["reference"];
    if ((text == reference) != right || shown++ >= kShown) continue;
    Say(fmt::format("{}{}   {} -> {}{}", kIndent, right ? "right" : "wrong",
                    pair["source"].get<std::string>(), text,
                    right ? "" : fmt::format("   (right: {})", reference)));
  }
}

}  // namespace

Translator::Setup SetupOf(model::ParallelModel& model, const data::PairFile& pairs,
                          const TranslationOptions& options) {
  const data::TokenFile& targets = pairs.Of(data::Side::kTarget);
  return {.model = model,
          .search = {.beams = options.beams,
                     .length_penalty = options.length_penalty,
                     .longest = options.longest,
                     .eos = static_cast<std::int32_t>(targets.Words().eos)},
          .types = targets.VocabularySize(),
          .stopped = options.stopped};
}

SplitTranslations TranslateSplit(Translator& translator, const model::ParallelModel& model,
                                 const data::PairFile& pairs, data::Split split, bool keep) {
  const comm::ProcessGrid& grid = model.Grid();
  const double start = Seconds();
  std::vector<std::int64_t> numbers;
  std::vector<Translator::Ids> sources;
  grid.World().Together([&] {
    numbers = Suitable(pairs, split, model.Plan().length);
    sources.resize(numbers.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      pairs.ReadText(data::Side::kSource, split, numbers[i], sources[i]);
    }
  });
  const auto results = translator.Run(sources);
  if (translator.Stopped()) {
    throw AgreedError(ExitCode::kStopped, "stopped by a signal: the evaluation is not complete");
  }
  SplitTranslations done;
  done.left_out = pairs.Pairs(split) - std::ssize(numbers);
  const comm::GridShape& at = grid.Coordinates();
  const bool first = at.pipeline == 0 && at.context == 0 && at.tensor == 0;  // of its replica
  Translator::Ids reference;
  for (std::size_t i = 0; first && i < results.size(); ++i) {
    if (!results[i]) continue;
    pairs.ReadText(data::Side::kTarget, split, numbers[i], reference);
    done.pairs.push_back({.number = numbers[i],
                          .source = pairs.Decode(data::Side::kSource, sources[i]),
                          .reference = pairs.Decode(data::Side::kTarget, reference),
                          .translation = pairs.Decode(data::Side::kTarget, results[i]->tokens),
                          .log_probability = results[i]->log_probability,
                          .ended = results[i]->ended});
    done.counts += CountMatches(done.pairs.back().translation, done.pairs.back().reference);
  }
  SumOver(grid.World(), done.counts);
  if (!keep) done.pairs = FirstOfEach(done.pairs);
  done.seconds = Seconds() - start;
  return done;
}

void EvaluateTranslations(model::ParallelModel& model, const data::PairFile& pairs,
                          const EvaluateOptions& options, const TranslationOptions& search,
                          const std::string& checkpoint) {
  const comm::Communicator& world = model.Grid().World();
  Translator translator(SetupOf(model, pairs, search));
  const bool keeps = !options.output.empty();
  Json results = {{"checkpoint", checkpoint},
                  {"beams", search.beams},
                  {"length_penalty", search.length_penalty},
                  {"bleu_signature", kBleuSignature},
                  {"chrf_signature", kChrFSignature}};
  std::string output;
  for (const data::Split split : {data::Split::kValid, data::Split::kTest}) {
    const train::Evaluation loss =
        train::EvaluatePairs(model, pairs, split, {.stop = search.stopped});
    if (world.IsRoot() && !loss.stopped) SayLoss(data::NameOf(split), loss, "");
    const SplitTranslations done = TranslateSplit(translator, model, pairs, split, keeps);
    const std::vector<Json> shown = Gather(world, done.pairs);
    if (!world.IsRoot()) continue;
    Say(fmt::format("{}exact match {} %   BLEU {:.2f}   chrF {:.2f}   {}   {:.1f} s", kIndent,
                    ExactMatchText(done.counts), Bleu(done.counts), ChrF(done.counts),
                    report::Counted(done.counts.texts, "text"), done.seconds));
    if (done.left_out > 0) {
      Say(fmt::format("{}{} left out: a text has at most {} tokens", kIndent,
                      report::Counted(done.left_out, "pair"), model.Plan().length));
    }
    Show(shown, true);
    Show(shown, false);
    results["sets"].push_back({{"split", data::NameOf(split)},
                               {"targets", loss.targets},
                               {"loss", Number(loss.loss)},
                               {"perplexity", Number(std::exp(loss.loss))},
                               {"texts", done.counts.texts},
                               {"left_out", done.left_out},
                               {"exact_match", ExactMatch(done.counts)},
                               {"bleu", Bleu(done.counts)},
                               {"chrf", ChrF(done.counts)},
                               {"seconds", done.seconds}});
    for (const Json& pair : keeps ? shown : std::vector<Json>()) {
      Json line = {{"split", data::NameOf(split)}};
      line.update(pair);
      output += Dump(line) + "\n";
    }
  }
  world.Together([&] {
    if (!world.IsRoot()) return;
    if (keeps) WriteResult(options.output, output);
    if (!options.results.empty()) WriteResult(options.results, Dump(results, 1) + "\n");
  });
}

}  // namespace trireme::tasks
