// The words of the harbour corpus by category, each category with one fixed distribution.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data {

// Words with probabilities that fall with their rank like Zipf's law and sum to one.
struct WordList {
  std::vector<std::string> words;
  std::vector<double> probabilities;
};

// A noun's or a verb's forms share ranks, so that they share probabilities.
struct Noun {
  WordList one, many;  // ship, ships
};
struct Verb {
  WordList base, third, past;  // carry, carries, carried; the past participle is the past
};

struct Lexicon {
  Lexicon();

  Noun men, women, vessels, goods, places;
  WordList cargoes;  // without number: salt
  WordList roles;    // of a named person: pilot
  WordList ship_names, towns, men_names, women_names, surnames, years, topics, times;
  WordList adjectives_any, adjectives_people, adjectives_things;
  WordList adverbs_before, adverbs_after, adverbs_front;
  Verb acts_on, acts;              // people and vessels: with and without an object
  Verb thing_acts_on, thing_acts;  // other things
  WordList prepositions, prepositions_front, subordinators, conjunctions, modals;
  WordList determiners_one, determiners_many;
};

// The words of `list` that begin with a vowel, or those that do not, and their share of it.
WordList Initial(const WordList& list, bool vowel);
double VowelShare(const WordList& list);

WordList Single(std::string_view word);
WordList Capitalised(const WordList& list);

// The grammar of the harbour corpus: the words that may follow in a state, and the state after
// each.

// Kind of a subject: decides number, pronoun, relative pronoun and verbs, however far they follow.
enum class Kind { kNobody, kMan, kWoman, kVessel, kThing, kPeople, kVessels, kThings };
const char* PronounOf(Kind kind);     // "she"
const char* PossessiveOf(Kind kind);  // "her"
bool IsMany(Kind kind);
bool IsPerson(Kind kind);
bool IsActor(Kind kind);  // people and vessels

// Place of a state in the text: what was read last.
enum class Place {
  // headings and lines
  kHeading,       // "="
  kTitleArticle,  // "= The"
  kTitleName,     // "= The Heron": the article is about this ship from here on
  kSection,       // "= ="
  kSectionTopic,  // "= = Cargo"
  kSectionClose,  // "= = Cargo ="
  kHeadingClose,  // the heading's last "="
  kHeadingLine,   // the heading's <eos>
  kBetween,       // a paragraph's <eos>
  kBlankLine,     // and an empty line's
  // beginning of a sentence
  kSentence,      // "."; or a blank line after a heading
  kFront,         // "In", "After"
  kFrontArticle,  // "In the"
  kFrontEnd,      // "In the morning", "Later"
  kClause,        // "In the morning ,"
  // noun phrases; Role says what for
  kNounPhrase,  // nothing of it yet
  kAfterThe,    // "the"
  kAfterOwn,    // "her"
  kAfterA,      // "a"
  kAfterAn,     // "an"
  kAfterOne,    // "each"
  kAfterMany,   // "some"
  kAnyNoun,     // "the old"
  kOneNoun,     // "a small"
  kManyNouns,   // "some small"
  // names
  kGivenName,      // "Anna"
  kName,           // "Anna Hale"
  kNameAnd,        // "Anna Hale and"
  kSecondName,     // "Anna Hale and Thomas"
  kApposition,     // "Anna Hale ,"
  kRoleArticle,    // "Anna Hale , the"
  kRole,           // "Anna Hale , the pilot"
  kRoleOf,         // "... of"
  kRoleOfThe,      // "... of the"
  kAppositionEnd,  // "... of the Heron"
  // after a subject
  kSubject,       // "the captains"
  kSubjectRest,   // "the captains of the old ship"
  kRelative,      // "the captains who"
  kRelativeHad,   // "the captains who had"
  kRelativeVerb,  // "the barges that the pilot"
  // verbs and what follows them
  kVerbPhrase,    // a subject that takes no more: "she"
  kBeforePast,    // "she often"
  kBe,            // "she was"
  kBeMore,        // "she was not", "she had been"
  kPassive,       // "she was repaired"
  kHave,          // "she had"
  kModal,         // "she could"
  kAfterVerb,     // "she waited"
  kAfterObject,   // "she carried the salt"
  kAfterPhrase,   // "she waited near the quay"
  kAfterAdverb,   // "she waited again"
  kConjunction,   // "she waited ,"
  kSecondClause,  // "she waited , and", "she waited because"
};

// Role of a noun phrase: decides its nouns, and how the sentence goes on after it.
enum class Role { kNone, kSubject, kOfSubject, kInRelative, kAgent, kObject, kPhrase };

// Nouns that an adjective leaves: anything is old, people are brave, things are rusty.
enum class Scope { kAll, kPeople, kThings };

struct State {
  Place place = Place::kHeading;
  Kind kind = Kind::kNobody;  // of the subject
  Role role = Role::kNone;    // inside a noun phrase
  Scope scope = Scope::kAll;  // after an adjective
  int ship = 0;               // subject of the article
  auto operator<=>(const State&) const = default;
};

// A way on: one of the words (chosen by the list's probabilities), taken with a weight relative to
// the other ways out of the state.
struct Choice {
  double weight;
  WordList words;
  State next;
};
using Choices = std::vector<Choice>;

class HarbourRules {
 public:
  HarbourRules();
  // The state after a title's "= The": each article passes through it, and it remembers nothing.
  static State Renewal();
  Choices After(const State& state) const;

 private:
  // Weights of the words that end or prolong a clause.
  struct Tail {
    double stop, phrase, comma, also, subordinate, adverb;
  };
  static constexpr Tail kAfterVerb = {0.26, 0.44, 0.10, 0.05, 0.07, 0.08};
  static constexpr Tail kAfterObject = {0.42, 0.30, 0.11, 0.06, 0.06, 0.05};
  static constexpr Tail kAfterPhrase = {0.58, 0.07, 0.15, 0.08, 0.08, 0.04};
  static constexpr Tail kAfterAdverb = {0.60, 0.10, 0.16, 0.06, 0.08, 0.00};

  void Add(Choices& choices, double weight, const WordList& words, const State& next) const;
  void Add(Choices& choices, double weight, const char* word, const State& next) const;

  // Headings, lines, beginnings of sentences.
  bool AddText(const State& state, Choices& choices) const;
  void AddSentence(const State& state, Choices& choices) const;
  void AddClause(const State& state, Choices& choices) const;
  void AddTitle(const State& state, Choices& choices) const;
  // Noun phrases.
  bool AddNounPhrase(const State& state, Choices& choices) const;
  bool AddName(const State& state, Choices& choices) const;
  void AddDeterminers(const State& state, double weight, bool capital, Choices& choices) const;
  void AddOpening(const State& state, Choices& choices) const;
  void AddAdjectives(const State& state, Place next, int initial, Choices& choices) const;
  void AddNouns(const State& state, double weight, bool one, bool many, int initial,
                Choices& choices) const;
  State Close(const State& state, Kind noun) const;
  // Verb phrases.
  bool AddAfterSubject(const State& state, Choices& choices) const;
  bool AddPredicate(const State& state, Choices& choices) const;
  bool AddEnding(const State& state, Choices& choices) const;
  const Verb& ActsOn(Kind kind) const;  // verbs with an object
  const Verb& Acts(Kind kind) const;    // and without
  void AddVerbs(const State& state, double weight, Choices& choices) const;
  void AddQualities(const State& state, double weight, Choices& choices) const;
  void AddTail(const State& state, double weight, const Tail& tail, Choices& choices) const;

  Lexicon lexicon_;
  // Words of an initial vowel ([1]) or consonant ([0]), for "a" and "an".
  struct ByInitial {
    WordList any, people, things;                 // adjectives
    WordList men, women, vessels, goods, places;  // nouns
  };
  std::vector<ByInitial> initial_;
};

// The harbour grammar unfolded: a Markov chain of states whose arcs carry words.

struct Arc {
  std::int32_t word = 0;
  std::int32_t next = 0;   // state
  double probability = 0;  // of this word in this state
  double cumulative = 0;   // with all arcs before it; exactly 1 at a state's last arc
};

class HarbourChain {
 public:
  // Follows the rules from the renewal state. Throws std::logic_error where a word leads from one
  // state to two (the grammar would not be unifilar).
  HarbourChain();

  std::int32_t States() const { return static_cast<std::int32_t>(first_arc_.size()) - 1; }
  std::span<const Arc> Arcs(std::int32_t state) const;           // by ascending word
  const Arc* Find(std::int32_t state, std::int32_t word) const;  // nullptr: impossible
  const std::vector<std::string>& Words() const { return words_; }

  // Long-run share of tokens that are written from each state; sums to one.
  const std::vector<double>& Stationary() const { return stationary_; }
  // h = sum over states s of Stationary(s) H(words | s), in nats per token (Shannon 1948, section
  // 7).
  double EntropyRate() const;

 private:
  void Unfold();
  void Solve();

  std::vector<std::string> words_;
  std::vector<Arc> arcs_;
  std::vector<std::size_t> first_arc_;  // [states + 1]
  std::vector<double> stationary_;      // [states]
};

}  // namespace trireme::data
