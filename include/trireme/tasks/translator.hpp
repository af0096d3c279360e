// Translations of many texts at once by beam search, on all ranks of a grid.
#ifndef TRIREME_TASKS_TRANSLATOR_HPP_
#define TRIREME_TASKS_TRANSLATOR_HPP_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "trireme/tasks/beam_search.hpp"
#include "trireme/tasks/turns.hpp"
#include "trireme/model/parallel_model.hpp"

namespace trireme::tasks {

// Each data replica has places for texts, each of as many slots of the model's cache as a search
// has beams; a place that is free takes the replica's next text, long ones first. A turn is one
// more token of each text: the encoder reads a new one, whose keys and values are kept, and the
// decoder sees the newest token of each beam.
class Translator {
 public:
  struct Setup {
    model::ParallelModel& model;  // that translates, with cache slots for one text at least
    BeamSearch::Options search;   // texts begin with its eos
    std::int64_t types = 0;       // of target texts: rows of the head from here on are no token
    std::function<bool()> stopped = {};  // whether this rank was asked to stop
  };
  // Texts get no longer than the model's sequences. RunError for a model that cannot translate so.
  explicit Translator(Setup setup);
  ~Translator();
  Translator(const Translator&) = delete;
  Translator& operator=(const Translator&) = delete;

  using Ids = std::vector<std::int32_t>;
  // Collective over the grid, whose ranks pass the same source texts, none empty or longer than the
  // model's sequences. Text i is translated by data rank i % D: on its ranks result i is there,
  // unless Stopped(). AgreedError (exit code 1) if a prediction is not finite.
  std::vector<std::optional<BeamSearch::Result>> Run(std::span<const Ids> sources);
  bool Stopped() const {
    return stopped_;
  }  // the last Run ended early, because a rank was asked to

 private:
  struct Text;
  // A beam of a text, whose next tokens a row of logits has.
  struct Row {
    Text* text = nullptr;
    std::size_t beam = 0;
  };
  // The passes of a turn, and the rows that they give, in order. A text's rows are neighbours.
  struct Turn : TurnPasses {
    std::vector<Row> rows;
  };
  std::size_t Width() const { return static_cast<std::size_t>(setup_.search.beams); }
  void Fill();
  Turn MakeTurn();
  void AddFresh(Turn& turn, std::span<Text* const> texts) const;
  void AddContinued(Turn& turn, std::span<const Row> rows) const;
  std::size_t FreshTogether(std::span<Text* const> texts) const;
  void RunTurn(Turn& turn, std::int64_t entries);
  void Choose(std::span<const double> logits, std::span<double> choices) const;
  void Advance(std::span<const Row> rows, std::span<const double> choices);
  void MoveBeams(Text& text) const;

  Setup setup_;
  std::span<const Ids> sources_;
  std::vector<std::size_t> order_;             // this replica's texts, long ones first
  std::size_t next_ = 0;                       // in order_
  std::vector<std::unique_ptr<Text>> active_;  // [places]; null: free
  std::vector<std::optional<BeamSearch::Result>> results_;
  bool finite_ = true, stopped_ = false;
};

}  // namespace trireme::tasks

#endif  // TRIREME_TASKS_TRANSLATOR_HPP_
