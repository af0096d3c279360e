// The harbour grammar: noun phrases and names of people.
#include "rules.hpp"

namespace trireme::data {

namespace {

// Probability that a noun phrase of each role takes each category of nouns; sums to one.
struct Mixture {
  double men, women, vessels, goods, places;
  double People() const { return men + women; }
};

Mixture MixtureOf(Role role) {
  switch (role) {
    case Role::kOfSubject:
      return {0.20, 0.08, 0.34, 0.10, 0.28};
    case Role::kInRelative:
    case Role::kObject:
      return {0.16, 0.06, 0.20, 0.44, 0.14};
    case Role::kAgent:
      return {0.60, 0.25, 0.15, 0.00, 0.00};
    case Role::kPhrase:
      return {0.06, 0.03, 0.22, 0.14, 0.55};
    default:
      return {0.34, 0.14, 0.22, 0.16, 0.14};
  }
}

Mixture MixtureOf(Role role, Scope scope) {
  const Mixture all = MixtureOf(role);
  const double people = 1 / all.People(), things = 1 / (1 - all.People());
  if (scope == Scope::kPeople) return {all.men * people, all.women * people, 0, 0, 0};
  if (scope == Scope::kThings) {
    return {0, 0, all.vessels * things, all.goods * things, all.places * things};
  }
  return all;
}

constexpr double kAdjective = 0.3;  // share of noun phrases with an adjective
constexpr double kShip = 0.12;      // and of the article's ship, which follows "the" alone
constexpr double kOneOfAny = 0.62;  // singular where the determiner leaves it open
constexpr int kAnyInitial = -1, kConsonant = 0, kVowel = 1;

}  // namespace

State HarbourRules::Close(const State& state, Kind noun) const {
  const auto to = [&](Place place, Kind kind) {
    return State{place, kind, Role::kNone, Scope::kAll, state.ship};
  };
  switch (state.role) {
    case Role::kOfSubject:
    case Role::kInRelative:
      return to(Place::kSubjectRest, state.kind);
    case Role::kAgent:
      return to(Place::kRelativeVerb, state.kind);
    case Role::kObject:
      return to(Place::kAfterObject, state.kind);
    case Role::kPhrase:
      return to(Place::kAfterPhrase, state.kind);
    default:
      return to(Place::kSubject, noun);
  }
}

void HarbourRules::AddAdjectives(const State& state, Place next, int initial,
                                 Choices& choices) const {
  constexpr double kFitsAll = 0.45;
  const double people = MixtureOf(state.role).People();
  const auto add = [&](double share, const WordList& all, WordList ByInitial::*filtered,
                       Scope scope) {
    State behind = state;
    behind.place = next;
    behind.scope = scope;
    const WordList& words =
        initial == kAnyInitial ? all : initial_[static_cast<std::size_t>(initial)].*filtered;
    Add(choices, kAdjective * share, words, behind);
  };
  add(kFitsAll, lexicon_.adjectives_any, &ByInitial::any, Scope::kAll);
  add((1 - kFitsAll) * people, lexicon_.adjectives_people, &ByInitial::people, Scope::kPeople);
  add((1 - kFitsAll) * (1 - people), lexicon_.adjectives_things, &ByInitial::things,
      Scope::kThings);
}

void HarbourRules::AddNouns(const State& state, double weight, bool one, bool many, int initial,
                            Choices& choices) const {
  const Mixture mixture = MixtureOf(state.role, state.scope);
  const double ones = one && many ? kOneOfAny : 1.0;
  const auto add = [&](double share, const Noun& noun, WordList ByInitial::*filtered, Kind kind_one,
                       Kind kind_many) {
    if (share <= 0) return;
    if (one && initial == kAnyInitial) {
      Add(choices, weight * ones * share, noun.one, Close(state, kind_one));
    } else if (one) {
      const double vowels = VowelShare(noun.one);
      const double kept = initial == kVowel ? vowels : 1 - vowels;
      Add(choices, weight * ones * share * kept,
          initial_[static_cast<std::size_t>(initial)].*filtered, Close(state, kind_one));
    }
    if (many) {
      Add(choices, weight * (one ? 1 - ones : 1) * share, noun.many, Close(state, kind_many));
    }
  };
  add(mixture.men, lexicon_.men, &ByInitial::men, Kind::kMan, Kind::kPeople);
  add(mixture.women, lexicon_.women, &ByInitial::women, Kind::kWoman, Kind::kPeople);
  add(mixture.vessels, lexicon_.vessels, &ByInitial::vessels, Kind::kVessel, Kind::kVessels);
  add(mixture.goods, lexicon_.goods, &ByInitial::goods, Kind::kThing, Kind::kThings);
  add(mixture.places, lexicon_.places, &ByInitial::places, Kind::kThing, Kind::kThings);
}

void HarbourRules::AddDeterminers(const State& state, double weight, bool capital,
                                  Choices& choices) const {
  const auto to = [&](Place place) {
    State next = state;
    next.place = place;
    return next;
  };
  const auto add = [&](double share, const WordList& words, Place place) {
    Add(choices, weight * share, capital ? Capitalised(words) : words, to(place));
  };
  add(0.60, Single("the"), Place::kAfterThe);
  add(0.14, Single("a"), Place::kAfterA);
  add(0.04, Single("an"), Place::kAfterAn);
  add(0.08, lexicon_.determiners_one, Place::kAfterOne);
  add(0.14, lexicon_.determiners_many, Place::kAfterMany);
}

// The first word of a noun phrase after a verb or a preposition.
void HarbourRules::AddOpening(const State& state, Choices& choices) const {
  AddDeterminers(state, 0.78, false, choices);
  State own = state;
  own.place = Place::kAfterOwn;
  Add(choices, 0.10, PossessiveOf(state.kind), own);
  if (state.role == Role::kPhrase || state.role == Role::kOfSubject) {
    Add(choices, 0.12, lexicon_.towns, Close(state, Kind::kThing));
  } else {
    Add(choices, 0.12, lexicon_.cargoes, Close(state, Kind::kThing));
  }
}

bool HarbourRules::AddNounPhrase(const State& state, Choices& choices) const {
  const WordList& names = lexicon_.ship_names;
  switch (state.place) {
    case Place::kNounPhrase:
      AddOpening(state, choices);
      return true;
    case Place::kAfterThe:
      Add(choices, kShip, names.words[static_cast<std::size_t>(state.ship)].c_str(),
          Close(state, Kind::kVessel));
      AddAdjectives(state, Place::kAnyNoun, kAnyInitial, choices);
      AddNouns(state, 1 - kAdjective - kShip, true, true, kAnyInitial, choices);
      return true;
    case Place::kAfterOwn:
      AddAdjectives(state, Place::kAnyNoun, kAnyInitial, choices);
      AddNouns(state, 1 - kAdjective, true, true, kAnyInitial, choices);
      return true;
    case Place::kAfterA:
    case Place::kAfterAn: {
      const int initial = state.place == Place::kAfterA ? kConsonant : kVowel;
      AddAdjectives(state, Place::kOneNoun, initial, choices);
      AddNouns(state, 1 - kAdjective, true, false, initial, choices);
      return true;
    }
    case Place::kAfterOne:
      AddAdjectives(state, Place::kOneNoun, kAnyInitial, choices);
      AddNouns(state, 1 - kAdjective, true, false, kAnyInitial, choices);
      return true;
    case Place::kAfterMany:
      AddAdjectives(state, Place::kManyNouns, kAnyInitial, choices);
      AddNouns(state, 1 - kAdjective, false, true, kAnyInitial, choices);
      return true;
    case Place::kAnyNoun:
      AddNouns(state, 1, true, true, kAnyInitial, choices);
      return true;
    case Place::kOneNoun:
      AddNouns(state, 1, true, false, kAnyInitial, choices);
      return true;
    case Place::kManyNouns:
      AddNouns(state, 1, false, true, kAnyInitial, choices);
      return true;
    default:
      return false;
  }
}

bool HarbourRules::AddName(const State& state, Choices& choices) const {
  const auto to = [&](Place place) {
    return State{place, state.kind, Role::kNone, Scope::kAll, state.ship};
  };
  const State people = {Place::kSubjectRest, Kind::kPeople, Role::kNone, Scope::kAll, state.ship};
  switch (state.place) {
    case Place::kGivenName:
      Add(choices, 1, lexicon_.surnames, to(Place::kName));
      return true;
    case Place::kName:
      Add(choices, 0.2, ",", to(Place::kApposition));
      Add(choices, 0.15, "and",
          {Place::kNameAnd, Kind::kPeople, Role::kNone, Scope::kAll, state.ship});
      AddVerbs(state, 0.65, choices);
      return true;
    case Place::kNameAnd:
      Add(choices, 0.5, lexicon_.men_names, to(Place::kSecondName));
      Add(choices, 0.5, lexicon_.women_names, to(Place::kSecondName));
      return true;
    case Place::kSecondName:
      Add(choices, 1, lexicon_.surnames, people);
      return true;
    case Place::kApposition:
      Add(choices, 1, "the", to(Place::kRoleArticle));
      return true;
    case Place::kRoleArticle:
      Add(choices, 1, lexicon_.roles, to(Place::kRole));
      return true;
    case Place::kRole:
      Add(choices, 1, "of", to(Place::kRoleOf));
      return true;
    case Place::kRoleOf:
      Add(choices, 1, "the", to(Place::kRoleOfThe));
      return true;
    case Place::kRoleOfThe:
      Add(choices, 0.5, lexicon_.ship_names.words[static_cast<std::size_t>(state.ship)].c_str(),
          to(Place::kAppositionEnd));
      Add(choices, 0.5, lexicon_.vessels.one, to(Place::kAppositionEnd));
      return true;
    case Place::kAppositionEnd:
      Add(choices, 1, ",", to(Place::kSubjectRest));
      return true;
    default:
      return false;
  }
}

}  // namespace trireme::data
