// Words of the harbour corpus by category, in order of frequency; regular forms of nouns and verbs.
#include "grammar.hpp"

#include <cctype>
#include <cmath>
#include <stdexcept>

#include "words.hpp"

namespace trireme::data {

namespace {

// Probability of rank r (from 0) is proportional to (r + kZipfShift)^-kZipfExponent.
constexpr double kZipfExponent = 1.3, kZipfShift = 2.0;

constexpr std::string_view kMen =
    "captain pilot fisherman merchant carpenter boatman smuggler boy ferryman sailor watchman cook "
    "mate clerk doctor sailmaker brother son soldier painter father farmer teacher baker butcher "
    "blacksmith gunner surgeon porter rigger cooper miller judge priest lawyer mason caulker uncle "
    "nephew cousin stoker diver poet governor tailor weaver drummer admiral oarsman helmsman "
    "prisoner "
    "stranger";
constexpr std::string_view kWomen =
    "widow woman daughter sister mother innkeeper girl aunt seamstress niece queen lady nurse "
    "laundress hostess actress duchess governess bride grandmother countess";
constexpr std::string_view kVessels =
    "ship barge boat schooner brig ferry steamer cutter lugger trawler ketch yacht frigate sloop "
    "galley dinghy tender whaler collier packet raft canoe skiff clipper gunboat lifeboat";
constexpr std::string_view kGoods =
    "rope crate barrel sail anchor chain lantern letter net mast oar cask sack chart bale flag "
    "bell "
    "compass hatch plank ladder hammer basket bottle cannon pump engine boiler rudder keel pulley "
    "winch hook coat blanket bucket ledger book drum kettle box trunk parcel candle nail spade axe "
    "telescope map coin pistol whistle lamp table chair bench cart wagon wheel window door roof "
    "wall "
    "fence stove mirror portrait violin umbrella";
constexpr std::string_view kPlaces =
    "harbour quay pier lighthouse island village beach bay slipway channel warehouse church river "
    "shipyard market tavern town cliff rock fort mill sandbank estuary bridge castle chapel "
    "cottage "
    "canal jetty dock reef cave coast marsh meadow forest garden farm school inn tower square "
    "street "
    "orchard hospital prison";
constexpr std::string_view kCargoes =
    "salt timber coal wool grain wine cotton tea oil tar sugar rum tobacco flour iron copper silk "
    "coffee wheat slate marble rice leather gunpowder brandy cheese butter honey hay granite";
constexpr std::string_view kRoles =
    "owner master keeper purser builder steward designer agent surveyor commander";
constexpr std::string_view kShipNames = "Heron Swallow Marigold Dolphin Kestrel Northumbria";
constexpr std::string_view kTowns =
    "Norport Westhaven Saltby Kingsferry Marlow Eastmouth Whitcombe Anstey Dunmore Ravensby "
    "Holmsea Torrick Peverell Lanwick Oxmoor Strandby Calder Yarwick Brightsea Fernholm";
constexpr std::string_view kMenNames =
    "Thomas John William Henry George Robert Edward James Samuel Arthur Peter Daniel Hugh Walter "
    "Martin Oliver Simon Gilbert Ralph Edmund Jasper Nathaniel Silas Ambrose";
constexpr std::string_view kWomenNames =
    "Anna Mary Ellen Margaret Alice Sarah Jane Emma Clara Ruth Agnes Harriet Martha Louisa Edith "
    "Helen Judith Rosa Sybil Winifred Beatrice Ursula Philippa Isolde";
constexpr std::string_view kSurnames =
    "Hale Reed Carter Marsh Hobbs Fletcher Drake Pike Barlow Stone Webb Tanner Norris Finch Cole "
    "Lowell Hawkins Bishop Thorne Mercer Quill Ames Rudd Penrose Tregear Vane Garrick Holt Sedley "
    "Brandt Lockwood Amory Crewe";
constexpr std::string_view kYears =
    "1854 1861 1848 1870 1839 1866 1857 1843 1872 1851 1846 1859 1863 1836 1868 1875 1841 1877 "
    "1832 "
    "1855 1849 1862 1845 1858 1853 1871 1867 1838 1834 1864";
constexpr std::string_view kTopics =
    "Cargo Crew Voyages Repairs Trade Storms Passengers History Wreck Legacy Design Owners";
constexpr std::string_view kTimes =
    "morning evening winter night storm summer war spring afternoon autumn flood harvest";
constexpr std::string_view kAdjectivesAny =
    "old small new great large strong little grey tall strange dirty clean northern southern short "
    "slender sturdy silent foreign western eastern ordinary handsome slow royal";
constexpr std::string_view kAdjectivesPeople =
    "young poor famous rich brave proud angry loyal quiet lonely clever eager gentle idle lucky "
    "nervous patient polite sad stout tired wise faithful lame cheerful noisy pale stubborn modest "
    "severe";
constexpr std::string_view kAdjectivesThings =
    "heavy empty black white long broken narrow red wooden green blue deep wet dry dark rusty "
    "ancient "
    "cheap costly distant fragile rotten muddy open plain private public rare rough round rural "
    "shallow sharp thin tiny vast wide yellow elegant low";
constexpr std::string_view kAdverbsBefore =
    "often never soon always once also rarely finally quickly later eventually secretly";
constexpr std::string_view kAdverbsAfter =
    "again together slowly twice quietly safely alone daily easily gladly calmly overnight";
constexpr std::string_view kAdverbsFront =
    "Later Often Sometimes Soon Eventually Once Afterwards Meanwhile";
constexpr std::string_view kActsOn =
    "carry follow watch pass reach load call visit help search guard rescue enter pull push "
    "approach save mark need want escort greet join move order answer cross circle "
    "repair clean paint count open own remember ask warn admire collect deliver describe examine "
    "fetch haul hire ignore inspect lift lower mend name notice obey observe praise receive record "
    "refuse support supply test thank touch trust unload welcome abandon accept attack avoid "
    "bless chase defend deserve discover";
constexpr std::string_view kActs =
    "wait arrive return work depart rest turn listen hesitate linger wander hurry advance retire "
    "retreat drift disappear gather anchor climb shudder agree starve talk cheer complain march "
    "dance";
constexpr std::string_view kThingActsOn =
    "block cover fill face touch cross join reach shelter guard divide overlook damage follow mark";
constexpr std::string_view kThingActs =
    "remain crack roll rust collapse burn crumble vanish float tremble age glisten sway "
    "rattle leak";
constexpr std::string_view kPrepositions =
    "in to from near with on behind beside past under toward across along against beyond";
constexpr std::string_view kPrepositionsFront = "After Before During Until Since";
constexpr std::string_view kSubordinators = "when because while until before although after";
constexpr std::string_view kConjunctions = "and but so";
constexpr std::string_view kModals = "could would must might should";
constexpr std::string_view kDeterminersOne = "this each every one another";
constexpr std::string_view kDeterminersMany = "some many two these several three few four";

bool IsVowel(char c) { return std::string_view("aeiouAEIOU").find(c) != std::string_view::npos; }

void Normalise(WordList& list) {
  double sum = 0;
  for (const double p : list.probabilities) sum += p;
  for (double& p : list.probabilities) p /= sum;
}

WordList Ranked(std::string_view text) {
  WordList list;
  ForEachWord(text, [&](std::string_view word) {
    const auto rank = static_cast<double>(list.words.size());
    list.words.emplace_back(word);
    list.probabilities.push_back(std::pow(rank + kZipfShift, -kZipfExponent));
  });
  Normalise(list);
  return list;
}

template <typename Form>
WordList Formed(const WordList& list, Form&& form) {
  WordList result = list;
  for (std::string& word : result.words) word = form(word);
  return result;
}

// carry: a y after a consonant changes before an ending.
bool EndsInConsonantY(const std::string& word) {
  return word.ends_with('y') && !IsVowel(word[word.size() - 2]);
}

// The plural of a noun and the third person of a verb follow one rule.
std::string WithS(const std::string& word) {
  if (word.ends_with("man")) return word.substr(0, word.size() - 3) + "men";
  if (EndsInConsonantY(word)) return word.substr(0, word.size() - 1) + "ies";
  for (const char* hiss : {"s", "x", "ch", "sh"}) {
    if (word.ends_with(hiss)) return word + "es";
  }
  return word + "s";
}

std::string WithEd(const std::string& word) {
  if (EndsInConsonantY(word)) return word.substr(0, word.size() - 1) + "ied";
  return word + (word.ends_with('e') ? "d" : "ed");
}

Noun MakeNoun(std::string_view text) {
  const WordList one = Ranked(text);
  return {one, Formed(one, WithS)};
}

Verb MakeVerb(std::string_view text) {
  const WordList base = Ranked(text);
  return {base, Formed(base, WithS), Formed(base, WithEd)};
}

}  // namespace

Lexicon::Lexicon()
    : men(MakeNoun(kMen)),
      women(MakeNoun(kWomen)),
      vessels(MakeNoun(kVessels)),
      goods(MakeNoun(kGoods)),
      places(MakeNoun(kPlaces)),
      cargoes(Ranked(kCargoes)),
      roles(Ranked(kRoles)),
      ship_names(Ranked(kShipNames)),
      towns(Ranked(kTowns)),
      men_names(Ranked(kMenNames)),
      women_names(Ranked(kWomenNames)),
      surnames(Ranked(kSurnames)),
      years(Ranked(kYears)),
      topics(Ranked(kTopics)),
      times(Ranked(kTimes)),
      adjectives_any(Ranked(kAdjectivesAny)),
      adjectives_people(Ranked(kAdjectivesPeople)),
      adjectives_things(Ranked(kAdjectivesThings)),
      adverbs_before(Ranked(kAdverbsBefore)),
      adverbs_after(Ranked(kAdverbsAfter)),
      adverbs_front(Ranked(kAdverbsFront)),
      acts_on(MakeVerb(kActsOn)),
      acts(MakeVerb(kActs)),
      thing_acts_on(MakeVerb(kThingActsOn)),
      thing_acts(MakeVerb(kThingActs)),
      prepositions(Ranked(kPrepositions)),
      prepositions_front(Ranked(kPrepositionsFront)),
      subordinators(Ranked(kSubordinators)),
      conjunctions(Ranked(kConjunctions)),
      modals(Ranked(kModals)),
      determiners_one(Ranked(kDeterminersOne)),
      determiners_many(Ranked(kDeterminersMany)) {}

WordList Initial(const WordList& list, bool vowel) {
  WordList result;
  for (std::size_t i = 0; i < list.words.size(); ++i) {
    if (IsVowel(list.words[i].front()) != vowel) continue;
    result.words.push_back(list.words[i]);
    result.probabilities.push_back(list.probabilities[i]);
  }
  Normalise(result);
  return result;
}

double VowelShare(const WordList& list) {
  double share = 0;
  for (std::size_t i = 0; i < list.words.size(); ++i) {
    if (IsVowel(list.words[i].front())) share += list.probabilities[i];
  }
  return share;
}

WordList Single(std::string_view word) { return {{std::string(word)}, {1.0}}; }

WordList Capitalised(const WordList& list) {
  return Formed(list, [](std::string word) {
    word[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(word[0])));
    return word;
  });
}

// The harbour grammar: headings, lines and the beginnings of sentences.

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

// The harbour grammar: noun phrases and names of people.

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

// The harbour grammar: from the end of a subject to the end of the sentence.

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
