// The harbour grammar: from the end of a subject to the end of the sentence.
#include "rules.hpp"

namespace trireme::data {

namespace {

// Probability that each form begins a predicate.
struct VerbWeights {
  double be_past, be_present, had, have, past_on, past, present_on, present, modal, adverb;
};

// Things do little of their own.
VerbWeights WeightsOf(Kind kind) {
  if (IsActor(kind)) return {0.17, 0.03, 0.08, 0.05, 0.28, 0.15, 0.08, 0.04, 0.07, 0.05};
  return {0.38, 0.08, 0.02, 0.02, 0.14, 0.17, 0.05, 0.04, 0.07, 0.03};
}

}  // namespace

const Verb& HarbourRules::ActsOn(Kind kind) const {
  return IsActor(kind) ? lexicon_.acts_on : lexicon_.thing_acts_on;
}

const Verb& HarbourRules::Acts(Kind kind) const {
  return IsActor(kind) ? lexicon_.acts : lexicon_.thing_acts;
}

// The verb agrees with the subject, whatever noun stands directly before it.
void HarbourRules::AddVerbs(const State& state, double weight, Choices& choices) const {
  const auto to = [&](Place place, Role role = Role::kNone) {
    return State{place, state.kind, role, Scope::kAll, state.ship};
  };
  const bool many = IsMany(state.kind);
  const VerbWeights weights = WeightsOf(state.kind);
  const Verb &acts_on = ActsOn(state.kind), &acts = Acts(state.kind);
  const State object = to(Place::kNounPhrase, Role::kObject);
  const State verb = to(Place::kAfterVerb);
  Add(choices, weight * weights.be_past, many ? "were" : "was", to(Place::kBe));
  Add(choices, weight * weights.be_present, many ? "are" : "is", to(Place::kBe));
  Add(choices, weight * weights.had, "had", to(Place::kHave));
  Add(choices, weight * weights.have, many ? "have" : "has", to(Place::kHave));
  Add(choices, weight * weights.past_on, acts_on.past, object);
  Add(choices, weight * weights.past, acts.past, verb);
  Add(choices, weight * weights.present_on, many ? acts_on.base : acts_on.third, object);
  Add(choices, weight * weights.present, many ? acts.base : acts.third, verb);
  Add(choices, weight * weights.modal, lexicon_.modals, to(Place::kModal));
  Add(choices, weight * weights.adverb, lexicon_.adverbs_before, to(Place::kBeforePast));
}

// "was old": what the subject can be.
void HarbourRules::AddQualities(const State& state, double weight, Choices& choices) const {
  const State next = {Place::kAfterPhrase, state.kind, Role::kNone, Scope::kAll, state.ship};
  Add(choices, weight * 0.5, lexicon_.adjectives_any, next);
  Add(choices, weight * 0.5,
      IsPerson(state.kind) ? lexicon_.adjectives_people : lexicon_.adjectives_things, next);
}

bool HarbourRules::AddAfterSubject(const State& state, Choices& choices) const {
  const auto to = [&](Place place, Role role = Role::kNone) {
    return State{place, state.kind, role, Scope::kAll, state.ship};
  };
  const Verb& acts_on = ActsOn(state.kind);
  const State object = to(Place::kNounPhrase, Role::kInRelative);
  switch (state.place) {
    case Place::kSubject:
      AddVerbs(state, 0.64, choices);
      Add(choices, 0.14, "of", to(Place::kNounPhrase, Role::kOfSubject));
      Add(choices, 0.10, lexicon_.prepositions, to(Place::kNounPhrase, Role::kOfSubject));
      Add(choices, 0.12, IsPerson(state.kind) ? "who" : "that", to(Place::kRelative));
      return true;
    case Place::kSubjectRest:
      AddVerbs(state, 0.92, choices);
      Add(choices, 0.08, lexicon_.prepositions, to(Place::kNounPhrase, Role::kOfSubject));
      return true;
    case Place::kRelative:
      Add(choices, 0.45, acts_on.past, object);
      Add(choices, 0.15, IsMany(state.kind) ? acts_on.base : acts_on.third, object);
      Add(choices, 0.15, "had", to(Place::kRelativeHad));
      Add(choices, 0.25, "the", to(Place::kAnyNoun, Role::kAgent));
      return true;
    case Place::kRelativeHad:
      Add(choices, 1, acts_on.past, object);
      return true;
    case Place::kRelativeVerb:
      Add(choices, 1, lexicon_.acts_on.past, to(Place::kSubjectRest));
      return true;
    default:
      return false;
  }
}

void HarbourRules::AddTail(const State& state, double weight, const Tail& tail,
                           Choices& choices) const {
  const auto to = [&](Place place, Role role = Role::kNone) {
    return State{place, state.kind, role, Scope::kAll, state.ship};
  };
  Add(choices, weight * tail.stop, ".", to(Place::kSentence));
  Add(choices, weight * tail.phrase, lexicon_.prepositions, to(Place::kNounPhrase, Role::kPhrase));
  Add(choices, weight * tail.comma, ",", to(Place::kConjunction));
  Add(choices, weight * tail.also, "and", to(Place::kVerbPhrase));
  Add(choices, weight * tail.subordinate, lexicon_.subordinators, to(Place::kSecondClause));
  if (tail.adverb > 0) {
    Add(choices, weight * tail.adverb, lexicon_.adverbs_after, to(Place::kAfterAdverb));
  }
}

bool HarbourRules::AddPredicate(const State& state, Choices& choices) const {
  const auto to = [&](Place place, Role role = Role::kNone) {
    return State{place, state.kind, role, Scope::kAll, state.ship};
  };
  const Verb &acts_on = ActsOn(state.kind), &acts = Acts(state.kind);
  const State object = to(Place::kNounPhrase, Role::kObject);
  switch (state.place) {
    case Place::kVerbPhrase:
      AddVerbs(state, 1, choices);
      return true;
    case Place::kBeforePast:
      Add(choices, 0.6, acts_on.past, object);
      Add(choices, 0.4, acts.past, to(Place::kAfterVerb));
      return true;
    case Place::kBe:
      Add(choices, 0.10, "not", to(Place::kBeMore));
      Add(choices, 0.20, lexicon_.prepositions, to(Place::kNounPhrase, Role::kPhrase));
      AddQualities(state, 0.32, choices);
      Add(choices, 0.38, lexicon_.acts_on.past, to(Place::kPassive));
      return true;
    case Place::kBeMore:
      AddQualities(state, 0.5, choices);
      Add(choices, 0.5, lexicon_.acts_on.past, to(Place::kPassive));
      return true;
    case Place::kPassive:
      Add(choices, 0.3, "by", object);
      AddTail(state, 0.7, kAfterVerb, choices);
      return true;
    case Place::kHave:
      Add(choices, 0.25, "been", to(Place::kBeMore));
      Add(choices, 0.75, acts_on.past, object);
      return true;
    case Place::kModal:
      Add(choices, 0.25, "be", to(Place::kBeMore));
      Add(choices, 0.5, acts_on.base, object);
      Add(choices, 0.25, acts.base, to(Place::kAfterVerb));
      return true;
    default:
      return AddEnding(state, choices);
  }
}

bool HarbourRules::AddEnding(const State& state, Choices& choices) const {
  const auto to = [&](Place place) {
    return State{place, state.kind, Role::kNone, Scope::kAll, state.ship};
  };
  switch (state.place) {
    case Place::kAfterVerb:
      AddTail(state, 1, kAfterVerb, choices);
      return true;
    case Place::kAfterObject:
      AddTail(state, 1, kAfterObject, choices);
      return true;
    case Place::kAfterPhrase:
      AddTail(state, 1, kAfterPhrase, choices);
      return true;
    case Place::kAfterAdverb:
      AddTail(state, 1, kAfterAdverb, choices);
      return true;
    case Place::kConjunction:
      Add(choices, 1, lexicon_.conjunctions, to(Place::kSecondClause));
      return true;
    case Place::kSecondClause:
      Add(choices, 0.7, PronounOf(state.kind), to(Place::kVerbPhrase));
      AddDeterminers(
          State{Place::kNounPhrase, Kind::kNobody, Role::kSubject, Scope::kAll, state.ship}, 0.3,
          false, choices);
      return true;
    default:
      return false;
  }
}

}  // namespace trireme::data
