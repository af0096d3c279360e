// The harbour grammar: headings, lines and the beginnings of sentences.
#include "rules.hpp"

#include <stdexcept>

#include "words.hpp"

namespace trireme::data {

HarbourRules::HarbourRules() {
  for (const bool vowel : {false, true}) {
    initial_.push_back(
        {Initial(lexicon_.adjectives_any, vowel), Initial(lexicon_.adjectives_people, vowel),
         Initial(lexicon_.adjectives_things, vowel), Initial(lexicon_.men.one, vowel),
         Initial(lexicon_.women.one, vowel), Initial(lexicon_.vessels.one, vowel),
         Initial(lexicon_.goods.one, vowel), Initial(lexicon_.places.one, vowel)});
  }
}

State HarbourRules::Renewal() { return {Place::kTitleArticle}; }

void HarbourRules::Add(Choices& choices, double weight, const WordList& words,
                       const State& next) const {
  choices.push_back({weight, words, next});
}

void HarbourRules::Add(Choices& choices, double weight, const char* word, const State& next) const {
  choices.push_back({weight, Single(word), next});
}

Choices HarbourRules::After(const State& state) const {
  Choices choices;
  const bool known = AddText(state, choices) || AddNounPhrase(state, choices) ||
                     AddName(state, choices) || AddAfterSubject(state, choices) ||
                     AddPredicate(state, choices);
  if (!known) throw std::logic_error("the harbour grammar has no rule for a state");
  return choices;
}

bool HarbourRules::AddText(const State& state, Choices& choices) const {
  const auto to = [&](Place place) {
    return State{place, Kind::kNobody, Role::kNone, Scope::kAll, state.ship};
  };
  const std::string eos(kEndOfSentence);
  switch (state.place) {
    case Place::kHeading:
      Add(choices, 0.5, "=", to(Place::kSection));
      Add(choices, 0.5, "The", Renewal());
      return true;
    case Place::kTitleArticle:
      AddTitle(state, choices);
      return true;
    case Place::kTitleName:
    case Place::kSectionClose:
      Add(choices, 1, "=", to(Place::kHeadingClose));
      return true;
    case Place::kSection:
      Add(choices, 1, lexicon_.topics, to(Place::kSectionTopic));
      return true;
    case Place::kSectionTopic:
      Add(choices, 1, "=", to(Place::kSectionClose));
      return true;
    case Place::kHeadingClose:
      Add(choices, 1, eos.c_str(), to(Place::kHeadingLine));
      return true;
    case Place::kHeadingLine:
      Add(choices, 1, eos.c_str(), to(Place::kSentence));
      return true;
    case Place::kBlankLine:
      Add(choices, 1, "=", to(Place::kHeading));
      return true;
    case Place::kBetween:
      Add(choices, 0.4, eos.c_str(), to(Place::kBlankLine));
      AddSentence(to(Place::kSentence), choices);
      return true;
    case Place::kSentence:
      if (state.kind != Kind::kNobody) Add(choices, 0.28, eos.c_str(), to(Place::kBetween));
      AddSentence(state, choices);
      return true;
    case Place::kFront:
      Add(choices, 0.6, "the", to(Place::kFrontArticle));
      Add(choices, 0.4, lexicon_.years, to(Place::kFrontEnd));
      return true;
    case Place::kFrontArticle:
      Add(choices, 1, lexicon_.times, to(Place::kFrontEnd));
      return true;
    case Place::kFrontEnd:
      Add(choices, 1, ",", to(Place::kClause));
      return true;
    case Place::kClause:
      AddClause(state, choices);
      return true;
    default:
      return false;
  }
}

// "= The": each name belongs to an article of its own.
void HarbourRules::AddTitle(const State& state, Choices& choices) const {
  const WordList& names = lexicon_.ship_names;
  for (std::size_t i = 0; i < names.words.size(); ++i) {
    State next = state;
    next.place = Place::kTitleName;
    next.ship = static_cast<int>(i);
    Add(choices, names.probabilities[i], names.words[i].c_str(), next);
  }
}

// Weights sum to 1 where the last subject is known, else to 0.8.
void HarbourRules::AddSentence(const State& state, Choices& choices) const {
  const auto to = [&](Place place, Kind kind = Kind::kNobody) {
    return State{place, kind, Role::kNone, Scope::kAll, state.ship};
  };
  AddDeterminers(State{Place::kNounPhrase, Kind::kNobody, Role::kSubject, Scope::kAll, state.ship},
                 0.5, true, choices);
  Add(choices, 0.06, lexicon_.men_names, to(Place::kGivenName, Kind::kMan));
  Add(choices, 0.06, lexicon_.women_names, to(Place::kGivenName, Kind::kWoman));
  Add(choices, 0.09, "In", to(Place::kFront));
  Add(choices, 0.05, lexicon_.prepositions_front, to(Place::kFront));
  Add(choices, 0.04, lexicon_.adverbs_front, to(Place::kFrontEnd));
  if (state.kind == Kind::kNobody) return;
  Add(choices, 0.2, Capitalised(Single(PronounOf(state.kind))), to(Place::kVerbPhrase, state.kind));
}

// The same within a sentence.
void HarbourRules::AddClause(const State& state, Choices& choices) const {
  AddDeterminers(State{Place::kNounPhrase, Kind::kNobody, Role::kSubject, Scope::kAll, state.ship},
                 0.8, false, choices);
  Add(choices, 0.1, lexicon_.men_names,
      {Place::kGivenName, Kind::kMan, Role::kNone, Scope::kAll, state.ship});
  Add(choices, 0.1, lexicon_.women_names,
      {Place::kGivenName, Kind::kWoman, Role::kNone, Scope::kAll, state.ship});
}

const char* PronounOf(Kind kind) {
  switch (kind) {
    case Kind::kMan:
      return "he";
    case Kind::kWoman:
    case Kind::kVessel:
      return "she";
    case Kind::kThing:
      return "it";
    default:
      return "they";
  }
}

const char* PossessiveOf(Kind kind) {
  switch (kind) {
    case Kind::kMan:
      return "his";
    case Kind::kWoman:
    case Kind::kVessel:
      return "her";
    case Kind::kThing:
      return "its";
    default:
      return "their";
  }
}

bool IsMany(Kind kind) {
  return kind == Kind::kPeople || kind == Kind::kVessels || kind == Kind::kThings;
}

bool IsPerson(Kind kind) {
  return kind == Kind::kMan || kind == Kind::kWoman || kind == Kind::kPeople;
}

bool IsActor(Kind kind) {
  return IsPerson(kind) || kind == Kind::kVessel || kind == Kind::kVessels;
}

}  // namespace trireme::data
