// The harbour corpus: its words by category, and its grammar, which is unfolded into a Markov
// chain that generates the corpus.
#include "grammar.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <compare>
#include <limits>
#include <map>
#include <stdexcept>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "trireme/base/philox.hpp"
#include "words.hpp"

namespace trireme::data {

namespace {

// Words with probabilities that sum to one and fall with the rank as in Zipf's law.
struct WordList {
  WordList() = default;
  WordList(const char* word) : words{word}, probabilities{1.0} {}  // a single word

  std::vector<std::string> words;
  std::vector<double> probabilities;
};

// The probability of rank r (from 0) is proportional to (r + kZipfShift)^-kZipfExponent.
constexpr double kZipfExponent = 1.3, kZipfShift = 2.0;

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

// Whether the word ends in y after a consonant, which changes before an ending: carries, carried.
bool EndsInConsonantY(const std::string& word) {
  return word.ends_with('y') && !IsVowel(word[word.size() - 2]);
}

// The plural of a noun, or the third person of a verb.
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

// All forms of a noun or verb have the rank, and so the probability, of its base form.
struct Noun {
  explicit Noun(std::string_view text) : one(Ranked(text)), many(Formed(one, WithS)) {}
  WordList one, many;  // ship, ships
};
struct Verb {
  explicit Verb(std::string_view text)
      : base(Ranked(text)), third(Formed(base, WithS)), past(Formed(base, WithEd)) {}
  WordList base, third, past;  // carry, carries, carried (also the past participle)
};

// The words of each category, most frequent first.
struct Lexicon {
  const Noun men = Noun(
      "captain pilot fisherman merchant carpenter boatman smuggler boy ferryman sailor watchman "
      "cook mate clerk doctor sailmaker brother son soldier painter father farmer teacher baker "
      "butcher blacksmith gunner surgeon porter rigger cooper miller judge priest lawyer mason "
      "caulker uncle nephew cousin stoker diver poet governor tailor weaver drummer admiral "
      "oarsman helmsman prisoner stranger");
  const Noun women = Noun(
      "widow woman daughter sister mother innkeeper girl aunt seamstress niece queen lady nurse "
      "laundress hostess actress duchess governess bride grandmother countess");
  const Noun vessels = Noun(
      "ship barge boat schooner brig ferry steamer cutter lugger trawler ketch yacht frigate sloop "
      "galley dinghy tender whaler collier packet raft canoe skiff clipper gunboat lifeboat");
  const Noun goods = Noun(
      "rope crate barrel sail anchor chain lantern letter net mast oar cask sack chart bale flag "
      "bell compass hatch plank ladder hammer basket bottle cannon pump engine boiler rudder keel "
      "pulley winch hook coat blanket bucket ledger book drum kettle box trunk parcel candle nail "
      "spade axe telescope map coin pistol whistle lamp table chair bench cart wagon wheel window "
      "door roof wall fence stove mirror portrait violin umbrella");
  const Noun places = Noun(
      "harbour quay pier lighthouse island village beach bay slipway channel warehouse church "
      "river shipyard market tavern town cliff rock fort mill sandbank estuary bridge castle "
      "chapel cottage canal jetty dock reef cave coast marsh meadow forest garden farm school inn "
      "tower square street orchard hospital prison");
  // uncountable: salt
  const WordList cargoes = Ranked(
      "salt timber coal wool grain wine cotton tea oil tar sugar rum tobacco flour iron copper "
      "silk coffee wheat slate marble rice leather gunpowder brandy cheese butter honey hay "
      "granite");
  // office of a named person: pilot
  const WordList roles =
      Ranked("owner master keeper purser builder steward designer agent surveyor commander");
  const WordList ship_names = Ranked("Heron Swallow Marigold Dolphin Kestrel Northumbria");
  const WordList towns = Ranked(
      "Norport Westhaven Saltby Kingsferry Marlow Eastmouth Whitcombe Anstey Dunmore Ravensby "
      "Holmsea Torrick Peverell Lanwick Oxmoor Strandby Calder Yarwick Brightsea Fernholm");
  const WordList men_names = Ranked(
      "Thomas John William Henry George Robert Edward James Samuel Arthur Peter Daniel Hugh Walter "
      "Martin Oliver Simon Gilbert Ralph Edmund Jasper Nathaniel Silas Ambrose");
  const WordList women_names = Ranked(
      "Anna Mary Ellen Margaret Alice Sarah Jane Emma Clara Ruth Agnes Harriet Martha Louisa Edith "
      "Helen Judith Rosa Sybil Winifred Beatrice Ursula Philippa Isolde");
  const WordList surnames = Ranked(
      "Hale Reed Carter Marsh Hobbs Fletcher Drake Pike Barlow Stone Webb Tanner Norris Finch Cole "
      "Lowell Hawkins Bishop Thorne Mercer Quill Ames Rudd Penrose Tregear Vane Garrick Holt "
      "Sedley Brandt Lockwood Amory Crewe");
  const WordList years = Ranked(
      "1854 1861 1848 1870 1839 1866 1857 1843 1872 1851 1846 1859 1863 1836 1868 1875 1841 1877 "
      "1832 1855 1849 1862 1845 1858 1853 1871 1867 1838 1834 1864");
  const WordList topics = Ranked(
      "Cargo Crew Voyages Repairs Trade Storms Passengers History Wreck Legacy Design Owners");
  const WordList times =
      Ranked("morning evening winter night storm summer war spring afternoon autumn flood harvest");
  const WordList adjectives_any = Ranked(
      "old small new great large strong little grey tall strange dirty clean northern southern "
      "short slender sturdy silent foreign western eastern ordinary handsome slow royal");
  const WordList adjectives_people = Ranked(
      "young poor famous rich brave proud angry loyal quiet lonely clever eager gentle idle lucky "
      "nervous patient polite sad stout tired wise faithful lame cheerful noisy pale stubborn "
      "modest severe");
  const WordList adjectives_things = Ranked(
      "heavy empty black white long broken narrow red wooden green blue deep wet dry dark rusty "
      "ancient cheap costly distant fragile rotten muddy open plain private public rare rough "
      "round rural shallow sharp thin tiny vast wide yellow elegant low");
  const WordList adverbs_before =
      Ranked("often never soon always once also rarely finally quickly later eventually secretly");
  const WordList adverbs_after = Ranked(
      "again together slowly twice quietly safely alone daily easily gladly calmly overnight");
  const WordList adverbs_front =
      Ranked("Later Often Sometimes Soon Eventually Once Afterwards Meanwhile");
  // actions of people and vessels, with an object
  const Verb acts_on = Verb(
      "carry follow watch pass reach load call visit help search guard rescue enter pull push "
      "approach save mark need want escort greet join move order answer cross circle repair clean "
      "paint count open own remember ask warn admire collect deliver describe examine fetch haul "
      "hire ignore inspect lift lower mend name notice obey observe praise receive record refuse "
      "support supply test thank touch trust unload welcome abandon accept attack avoid bless "
      "chase defend deserve discover");
  // actions of people and vessels, without an object
  const Verb acts = Verb(
      "wait arrive return work depart rest turn listen hesitate linger wander hurry advance retire "
      "retreat drift disappear gather anchor climb shudder agree starve talk cheer complain march "
      "dance");
  // actions of other things, with an object and without
  const Verb thing_acts_on = Verb(
      "block cover fill face touch cross join reach shelter guard divide overlook damage follow "
      "mark");
  const Verb thing_acts = Verb(
      "remain crack roll rust collapse burn crumble vanish float tremble age glisten sway rattle "
      "leak");
  const WordList prepositions =
      Ranked("in to from near with on behind beside past under toward across along against beyond");
  const WordList prepositions_front = Ranked("After Before During Until Since");
  const WordList subordinators = Ranked("when because while until before although after");
  const WordList conjunctions = Ranked("and but so");
  const WordList modals = Ranked("could would must might should");
  const WordList determiners_one = Ranked("this each every one another");
  const WordList determiners_many = Ranked("some many two these several three few four");
};

// The words of `list` that begin with a vowel or, if not `vowel`, the others.
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

WordList Capitalised(const WordList& list) {
  return Formed(list, [](std::string word) {
    word[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(word[0])));
    return word;
  });
}

// Kind of a sentence's subject. It decides number, pronoun, relative pronoun and verbs, even far
// from the subject.
enum class Kind { kNobody, kMan, kWoman, kVessel, kThing, kPeople, kVessels, kThings };

// What a kind decides. actor: a person or a vessel.
struct KindFacts {
  const char *pronoun, *possessive;
  bool many, person, actor;
};

const KindFacts& FactsOf(Kind kind) {
  static constexpr std::array<KindFacts, 8> kFacts = {{{"they", "their", false, false, false},
                                                       {"he", "his", false, true, true},
                                                       {"she", "her", false, true, true},
                                                       {"she", "her", false, false, true},
                                                       {"it", "its", false, false, false},
                                                       {"they", "their", true, true, true},
                                                       {"they", "their", true, false, true},
                                                       {"they", "their", true, false, false}}};
  return kFacts.at(static_cast<std::size_t>(kind));
}

// Where in the text a state is; the comments show what was read last.
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
  kBlankLine,     // the <eos> of the empty line after it
  // beginning of a sentence
  kSentence,      // "."; or a blank line after a heading
  kFront,         // "In", "After"
  kFrontArticle,  // "In the"
  kFrontEnd,      // "In the morning", "Later"
  kClause,        // "In the morning ,"
  // noun phrases (State::role: what the phrase is for)
  kNounPhrase,  // no word of the phrase
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
  kVerbPhrase,    // a complete subject: "she"
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

// What a noun phrase is for: decides its nouns and how the sentence continues.
enum class Role { kNone, kSubject, kOfSubject, kInRelative, kAgent, kObject, kPhrase };

// Nouns that an adjective allows: anything is old, people are brave, things are rusty.
enum class Scope { kAll, kPeople, kThings };

struct State {
  Place place = Place::kHeading;
  Kind kind = Kind::kNobody;  // kind of the subject
  Role role = Role::kNone;    // only inside a noun phrase
  Scope scope = Scope::kAll;  // only after an adjective
  int ship = 0;               // index of the ship that the article is about
  auto operator<=>(const State&) const = default;
};

// A transition out of a state: a list of words, drawn by their probabilities, and a weight relative
// to the state's other transitions.
struct Choice {
  double weight;
  WordList words;
  State next;
};
using Choices = std::vector<Choice>;

// Probabilities of the categories of nouns in a noun phrase of some role; they sum to one.
struct Mixture {
  double men, women, vessels, goods, places;
  double People() const { return men + women; }
};

// scope: leaves out the nouns that it excludes.
Mixture MixtureOf(Role role, Scope scope = Scope::kAll) {
  constexpr Mixture kAny = {0.34, 0.14, 0.22, 0.16, 0.14};
  constexpr Mixture kObject = {0.16, 0.06, 0.20, 0.44, 0.14};
  constexpr std::array<Mixture, 7> kMixtures = {{kAny,
                                                 kAny,
                                                 {0.20, 0.08, 0.34, 0.10, 0.28},  // "of"
                                                 kObject,
                                                 {0.60, 0.25, 0.15, 0.00, 0.00},  // agent
                                                 kObject,
                                                 {0.06, 0.03, 0.22, 0.14, 0.55}}};
  const Mixture& all = kMixtures.at(static_cast<std::size_t>(role));
  const double people = 1 / all.People(), things = 1 / (1 - all.People());
  if (scope == Scope::kPeople) return {all.men * people, all.women * people, 0, 0, 0};
  if (scope == Scope::kThings) {
    return {0, 0, all.vessels * things, all.goods * things, all.places * things};
  }
  return all;
}

constexpr double kAdjective = 0.3;  // share of noun phrases with an adjective
constexpr double kShip = 0.12;      // share of the article's ship after "the"
constexpr double kOneOfAny = 0.62;  // share of the singular where the determiner allows both
constexpr int kAnyInitial = -1, kConsonant = 0, kVowel = 1;

// Probability of each form with which a predicate may begin.
struct VerbWeights {
  double be_past, be_present, had, have, past_on, past, present_on, present, modal, adverb;
};

// Things act less than people and vessels do.
VerbWeights WeightsOf(Kind kind) {
  if (FactsOf(kind).actor) return {0.17, 0.03, 0.08, 0.05, 0.28, 0.15, 0.08, 0.04, 0.07, 0.05};
  return {0.38, 0.08, 0.02, 0.02, 0.14, 0.17, 0.05, 0.04, 0.07, 0.03};
}

// Probabilities of the words that end or continue a clause.
struct Tail {
  double stop, phrase, comma, also, subordinate, adverb;
};
constexpr Tail kVerbTail = {0.26, 0.44, 0.10, 0.05, 0.07, 0.08};
constexpr Tail kObjectTail = {0.42, 0.30, 0.11, 0.06, 0.06, 0.05};
constexpr Tail kPhraseTail = {0.58, 0.07, 0.15, 0.08, 0.08, 0.04};
constexpr Tail kAdverbTail = {0.60, 0.10, 0.16, 0.06, 0.08, 0.00};

const Lexicon& Words() {
  static const Lexicon lexicon;
  return lexicon;
}

// Finds the transitions out of one state.
class WaysOn {
 public:
  explicit WaysOn(const State& state) : state_(state) {
    FollowHeadings();
    FollowNames();
    FollowNounPhrases();
    FollowSubjects();
    FollowVerbs();
    if (choices_.empty()) throw std::logic_error("the harbour grammar has no rule for a state");
  }

  const Choices& Found() const { return choices_; }

 private:
  // The next state. The next article's title forgets the ship.
  State At(Place place, Kind kind, Role role = Role::kNone) const {
    return {place, kind, role, Scope::kAll, place == Place::kTitleArticle ? 0 : state_.ship};
  }
  State To(Place place, Role role = Role::kNone) const { return At(place, state_.kind, role); }
  State Within(Place place) const {  // stays in the noun phrase
    State next = state_;
    next.place = place;
    return next;
  }

  void Add(double weight, const WordList& words, const State& next) {
    choices_.push_back({weight, words, next});
  }

  // Adds a transition if the state is at `from`.
  template <typename Words>
  void On(Place from, double weight, const Words& words, Place to, Role role = Role::kNone) {
    if (state_.place == from) Add(weight, words, To(to, role));
  }
  // Calls `body`, which adds transitions, if the state is at `from`.
  template <typename Body>
  void On(Place from, const Body& body) {
    if (state_.place == from) body();
  }

  void FollowHeadings() {
    using enum Place;
    constexpr const char* kEnd = kEndOfSentence.data();
    On(kHeading, 0.5, "=", kSection);
    On(kHeading, 0.5, "The", kTitleArticle);
    On(kTitleArticle, [&] { AddTitle(); });
    On(kTitleName, 1, "=", kHeadingClose);
    On(kSection, 1, words_.topics, kSectionTopic);
    On(kSectionTopic, 1, "=", kSectionClose);
    On(kSectionClose, 1, "=", kHeadingClose);
    On(kHeadingClose, 1, kEnd, kHeadingLine);
    On(kHeadingLine, 1, kEnd, kSentence);
    On(kBetween, 0.4, kEnd, kBlankLine);
    On(kBetween, [&] { AddSentence(); });
    On(kBlankLine, 1, "=", kHeading);
    On(kSentence, [&] {
      if (state_.kind != Kind::kNobody) Add(0.28, kEnd, At(kBetween, Kind::kNobody));
      AddSentence();
    });
    On(kFront, 0.6, "the", kFrontArticle);
    On(kFront, 0.4, words_.years, kFrontEnd);
    On(kFrontArticle, 1, words_.times, kFrontEnd);
    On(kFrontEnd, 1, ",", kClause);
    On(kClause, [&] { AddSubjects(0.8, 0.1, false); });
  }

  void FollowNames() {
    using enum Place;
    On(kGivenName, 1, words_.surnames, kName);
    On(kName, 0.2, ",", kApposition);
    On(kName, [&] {
      Add(0.15, "and", At(kNameAnd, Kind::kPeople));
      AddVerbs(0.65);
    });
    On(kNameAnd, 0.5, words_.men_names, kSecondName);
    On(kNameAnd, 0.5, words_.women_names, kSecondName);
    On(kSecondName, 1, words_.surnames, kSubjectRest);
    On(kApposition, 1, "the", kRoleArticle);
    On(kRoleArticle, 1, words_.roles, kRole);
    On(kRole, 1, "of", kRoleOf);
    On(kRoleOf, 1, "the", kRoleOfThe);
    On(kRoleOfThe, 0.5, Ship(), kAppositionEnd);
    On(kRoleOfThe, 0.5, words_.vessels.one, kAppositionEnd);
    On(kAppositionEnd, 1, ",", kSubjectRest);
  }

  const char* Ship() const {
    return words_.ship_names.words[static_cast<std::size_t>(state_.ship)].c_str();
  }

  // After "= The": the article is about the ship that is named here.
  void AddTitle() {
    const WordList& names = words_.ship_names;
    for (std::size_t i = 0; i < names.words.size(); ++i) {
      State next = Within(Place::kTitleName);
      next.ship = static_cast<int>(i);
      Add(names.probabilities[i], names.words[i].c_str(), next);
    }
  }

  // Begins a subject of another kind than the last. names: weight of the names of men, and of
  // women.
  void AddSubjects(double determiners, double names, bool capital) {
    AddDeterminers(At(Place::kNounPhrase, Kind::kNobody, Role::kSubject), determiners, capital);
    Add(names, words_.men_names, At(Place::kGivenName, Kind::kMan));
    Add(names, words_.women_names, At(Place::kGivenName, Kind::kWoman));
  }

  // Begins a sentence. The weights sum to 1 if the last subject is known, otherwise to 0.8.
  void AddSentence() {
    AddSubjects(0.5, 0.06, true);
    Add(0.09, "In", At(Place::kFront, Kind::kNobody));
    Add(0.05, words_.prepositions_front, At(Place::kFront, Kind::kNobody));
    Add(0.04, words_.adverbs_front, At(Place::kFrontEnd, Kind::kNobody));
    if (state_.kind == Kind::kNobody) return;
    Add(0.2, Capitalised(FactsOf(state_.kind).pronoun), To(Place::kVerbPhrase));
  }

  // The state after a noun phrase. noun: kind of its noun.
  State Close(Kind noun) const {
    const Role role = state_.role;
    if (role == Role::kAgent) return To(Place::kRelativeVerb);
    if (role == Role::kObject) return To(Place::kAfterObject);
    if (role == Role::kPhrase) return To(Place::kAfterPhrase);
    const bool of_subject = role == Role::kOfSubject || role == Role::kInRelative;
    return of_subject ? To(Place::kSubjectRest) : At(Place::kSubject, noun);
  }

  // nouns: the place after the adjective. initial: the letter with which it must begin.
  void AddAdjectives(Place nouns, int initial) {
    constexpr double kFitsAll = 0.45;
    const double people = MixtureOf(state_.role).People();
    const auto add = [&](double share, const WordList& all, Scope scope) {
      State next = Within(nouns);
      next.scope = scope;
      Add(kAdjective * share, initial == kAnyInitial ? all : Initial(all, initial == kVowel), next);
    };
    add(kFitsAll, words_.adjectives_any, Scope::kAll);
    add((1 - kFitsAll) * people, words_.adjectives_people, Scope::kPeople);
    add((1 - kFitsAll) * (1 - people), words_.adjectives_things, Scope::kThings);
  }

  // nouns: kAnyNoun, kOneNoun or kManyNouns. initial: the letter with which the noun must begin.
  void AddNouns(Place nouns, double weight, int initial = kAnyInitial) {
    const Mixture mixture = MixtureOf(state_.role, state_.scope);
    const bool one = nouns != Place::kManyNouns, many = nouns != Place::kOneNoun;
    const double ones = one && many ? kOneOfAny : 1.0;
    const auto add = [&](double share, const Noun& noun, Kind kind_one, Kind kind_many) {
      if (share <= 0) return;
      if (one && initial == kAnyInitial) {
        Add(weight * ones * share, noun.one, Close(kind_one));
      } else if (one) {
        const double vowels = VowelShare(noun.one);
        const double kept = initial == kVowel ? vowels : 1 - vowels;
        Add(weight * ones * share * kept, Initial(noun.one, initial == kVowel), Close(kind_one));
      }
      if (many) Add(weight * (one ? 1 - ones : 1) * share, noun.many, Close(kind_many));
    };
    add(mixture.men, words_.men, Kind::kMan, Kind::kPeople);
    add(mixture.women, words_.women, Kind::kWoman, Kind::kPeople);
    add(mixture.vessels, words_.vessels, Kind::kVessel, Kind::kVessels);
    add(mixture.goods, words_.goods, Kind::kThing, Kind::kThings);
    add(mixture.places, words_.places, Kind::kThing, Kind::kThings);
  }

  // Adds what follows a determiner. before: weight of the transitions that were added before.
  void AddAfterDeterminer(Place nouns, int initial = kAnyInitial, double before = 0) {
    AddAdjectives(nouns, initial);
    AddNouns(nouns, 1 - kAdjective - before, initial);
  }

  void AddDeterminers(State next, double weight, bool capital) {
    const auto add = [&](double share, const WordList& words, Place place) {
      next.place = place;
      Add(weight * share, capital ? Capitalised(words) : words, next);
    };
    add(0.60, "the", Place::kAfterThe);
    add(0.14, "a", Place::kAfterA);
    add(0.04, "an", Place::kAfterAn);
    add(0.08, words_.determiners_one, Place::kAfterOne);
    add(0.14, words_.determiners_many, Place::kAfterMany);
  }

  void FollowNounPhrases() {
    using enum Place;
    On(kNounPhrase, [&] {  // after a verb or a preposition
      const bool town = state_.role == Role::kPhrase || state_.role == Role::kOfSubject;
      AddDeterminers(state_, 0.78, false);
      Add(0.10, FactsOf(state_.kind).possessive, Within(kAfterOwn));
      Add(0.12, town ? words_.towns : words_.cargoes, Close(Kind::kThing));
    });
    On(kAfterThe, [&] {
      Add(kShip, Ship(), Close(Kind::kVessel));
      AddAfterDeterminer(kAnyNoun, kAnyInitial, kShip);
    });
    On(kAfterOwn, [&] { AddAfterDeterminer(kAnyNoun); });
    On(kAfterA, [&] { AddAfterDeterminer(kOneNoun, kConsonant); });
    On(kAfterAn, [&] { AddAfterDeterminer(kOneNoun, kVowel); });
    On(kAfterOne, [&] { AddAfterDeterminer(kOneNoun); });
    On(kAfterMany, [&] { AddAfterDeterminer(kManyNouns); });
    for (const Place nouns : {kAnyNoun, kOneNoun, kManyNouns}) {
      On(nouns, [&] { AddNouns(nouns, 1); });
    }
  }

  // The verb agrees with the subject, whatever noun stands directly before it.
  void AddVerbs(double weight) {
    const VerbWeights weights = WeightsOf(state_.kind);
    const State object = To(Place::kNounPhrase, Role::kObject), verb = To(Place::kAfterVerb);
    Add(weight * weights.be_past, many_ ? "were" : "was", To(Place::kBe));
    Add(weight * weights.be_present, many_ ? "are" : "is", To(Place::kBe));
    Add(weight * weights.had, "had", To(Place::kHave));
    Add(weight * weights.have, many_ ? "have" : "has", To(Place::kHave));
    Add(weight * weights.past_on, acts_on_.past, object);
    Add(weight * weights.past, acts_.past, verb);
    Add(weight * weights.present_on, many_ ? acts_on_.base : acts_on_.third, object);
    Add(weight * weights.present, many_ ? acts_.base : acts_.third, verb);
    Add(weight * weights.modal, words_.modals, To(Place::kModal));
    Add(weight * weights.adverb, words_.adverbs_before, To(Place::kBeforePast));
  }

  // After "was": adjectives that fit the subject.
  void AddQualities(double weight) {
    const bool person = FactsOf(state_.kind).person;
    Add(weight * 0.5, words_.adjectives_any, To(Place::kAfterPhrase));
    Add(weight * 0.5, person ? words_.adjectives_people : words_.adjectives_things,
        To(Place::kAfterPhrase));
  }

  void FollowSubjects() {
    using enum Place;
    On(kSubject, [&] { AddVerbs(0.64); });
    On(kSubject, 0.14, "of", kNounPhrase, Role::kOfSubject);
    On(kSubject, 0.10, words_.prepositions, kNounPhrase, Role::kOfSubject);
    On(kSubject, 0.12, FactsOf(state_.kind).person ? "who" : "that", kRelative);
    On(kSubjectRest, [&] { AddVerbs(0.92); });
    On(kSubjectRest, 0.08, words_.prepositions, kNounPhrase, Role::kOfSubject);
    On(kRelative, 0.45, acts_on_.past, kNounPhrase, Role::kInRelative);
    On(kRelative, 0.15, many_ ? acts_on_.base : acts_on_.third, kNounPhrase, Role::kInRelative);
    On(kRelative, 0.15, "had", kRelativeHad);
    On(kRelative, 0.25, "the", kAnyNoun, Role::kAgent);
    On(kRelativeHad, 1, acts_on_.past, kNounPhrase, Role::kInRelative);
    On(kRelativeVerb, 1, words_.acts_on.past, kSubjectRest);
  }

  void AddTail(double weight, const Tail& tail) {
    Add(weight * tail.stop, ".", To(Place::kSentence));
    Add(weight * tail.phrase, words_.prepositions, To(Place::kNounPhrase, Role::kPhrase));
    Add(weight * tail.comma, ",", To(Place::kConjunction));
    Add(weight * tail.also, "and", To(Place::kVerbPhrase));
    Add(weight * tail.subordinate, words_.subordinators, To(Place::kSecondClause));
    if (tail.adverb > 0) Add(weight * tail.adverb, words_.adverbs_after, To(Place::kAfterAdverb));
  }

  void FollowVerbs() {
    using enum Place;
    On(kVerbPhrase, [&] { AddVerbs(1); });
    On(kBeforePast, 0.6, acts_on_.past, kNounPhrase, Role::kObject);
    On(kBeforePast, 0.4, acts_.past, kAfterVerb);
    On(kBe, 0.10, "not", kBeMore);
    On(kBe, 0.20, words_.prepositions, kNounPhrase, Role::kPhrase);
    On(kBe, [&] { AddQualities(0.32); });
    On(kBe, 0.38, words_.acts_on.past, kPassive);
    On(kBeMore, [&] { AddQualities(0.5); });
    On(kBeMore, 0.5, words_.acts_on.past, kPassive);
    On(kPassive, 0.3, "by", kNounPhrase, Role::kObject);
    On(kPassive, [&] { AddTail(0.7, kVerbTail); });
    On(kHave, 0.25, "been", kBeMore);
    On(kHave, 0.75, acts_on_.past, kNounPhrase, Role::kObject);
    On(kModal, 0.25, "be", kBeMore);
    On(kModal, 0.5, acts_on_.base, kNounPhrase, Role::kObject);
    On(kModal, 0.25, acts_.base, kAfterVerb);
    On(kAfterVerb, [&] { AddTail(1, kVerbTail); });
    On(kAfterObject, [&] { AddTail(1, kObjectTail); });
    On(kAfterPhrase, [&] { AddTail(1, kPhraseTail); });
    On(kAfterAdverb, [&] { AddTail(1, kAdverbTail); });
    On(kConjunction, 1, words_.conjunctions, kSecondClause);
    On(kSecondClause, 0.7, FactsOf(state_.kind).pronoun, kVerbPhrase);
    On(kSecondClause,
       [&] { AddDeterminers(At(kNounPhrase, Kind::kNobody, Role::kSubject), 0.3, false); });
  }

  const Lexicon& words_ = Words();
  const State state_;
  const bool many_ = FactsOf(state_.kind).many;
  // Verbs that fit the subject, with an object and without.
  const Verb& acts_on_ = FactsOf(state_.kind).actor ? words_.acts_on : words_.thing_acts_on;
  const Verb& acts_ = FactsOf(state_.kind).actor ? words_.acts : words_.thing_acts;
  Choices choices_;
};

// Sweeps end when no state's number of visits changes by more than this, relatively.
constexpr double kConverged = 4 * std::numeric_limits<double>::epsilon();
constexpr int kMaximumSweeps = 100'000;

// Numbers keys by first appearance; returns the number and whether the key is new.
template <typename Map, typename Key>
std::pair<std::int32_t, bool> Number(Map& numbers, const Key& key) {
  const auto [place, added] = numbers.emplace(key, static_cast<std::int32_t>(numbers.size()));
  return {place->second, added};
}

// Sorts a state's arcs by word and makes their probabilities sum to one.
void Finish(std::span<Arc> arcs, const std::vector<std::string>& words) {
  std::sort(arcs.begin(), arcs.end(), [](const Arc& a, const Arc& b) { return a.word < b.word; });
  const auto same = [](const Arc& a, const Arc& b) { return a.word == b.word; };
  const auto twice = std::adjacent_find(arcs.begin(), arcs.end(), same);
  if (twice != arcs.end()) {
    throw std::logic_error(fmt::format("the harbour grammar has two ways on with the word '{}'",
                                       words.at(static_cast<std::size_t>(twice->word))));
  }
  double sum = 0;
  for (const Arc& arc : arcs) sum += arc.probability;
  double cumulative = 0;
  for (Arc& arc : arcs) {
    arc.probability /= sum;
    cumulative += arc.probability;
    arc.cumulative = cumulative;
  }
  arcs.back().cumulative = 1;
}

constexpr std::uint32_t kTokens = 0, kFirstState = 1;  // purposes: the counter's last word

// Uniform in [0, 1) with 53 bits, so that rare words keep their exact probability.
// counter = (token low, token high, split, purpose)
double Uniform(std::uint32_t seed, Split split, std::int64_t token, std::uint32_t purpose) {
  const auto index = static_cast<std::uint64_t>(token);
  const PhiloxCounter counter = {static_cast<std::uint32_t>(index),
                                 static_cast<std::uint32_t>(index >> 32),
                                 static_cast<std::uint32_t>(split), purpose};
  const PhiloxCounter bits = Philox(counter, MakeKey(seed, Purpose::kHarbour));
  const std::uint64_t joined = static_cast<std::uint64_t>(bits[0]) << 32 | bits[1];
  return static_cast<double>(joined >> 11) * 0x1p-53;
}

}  // namespace

HarbourGrammar::HarbourGrammar() {
  Unfold();
  Solve();
  const auto begin = words_.words.begin();
  words_.eos = std::find(begin, words_.words.end(), kEndOfSentence) - begin;
}

void HarbourGrammar::Unfold() {
  std::unordered_map<std::string, std::int32_t> word_ids;
  std::map<State, std::int32_t> state_ids;
  // State 0, "= The": each article passes through it, and it remembers nothing.
  std::vector<State> states = {{Place::kTitleArticle}};
  state_ids.emplace(states.front(), 0);
  for (std::size_t s = 0; s < states.size(); ++s) {
    first_arc_.push_back(arcs_.size());
    for (const WaysOn ways(states[s]); const Choice& choice : ways.Found()) {
      const auto [next, new_state] = Number(state_ids, choice.next);
      if (new_state) states.push_back(choice.next);
      for (std::size_t i = 0; i < choice.words.words.size(); ++i) {
        const auto [word, new_word] = Number(word_ids, choice.words.words[i]);
        if (new_word) words_.words.push_back(choice.words.words[i]);
        arcs_.push_back({word, next, choice.weight * choice.words.probabilities[i], 0});
      }
    }
    Finish(std::span(arcs_).subspan(first_arc_.back()), words_.words);
  }
  first_arc_.push_back(arcs_.size());
}

// v(s), the mean number of visits to state s between two visits of the renewal state 0 (one per
// article), is the sum of v(s') p over the arcs s' -> s, with v(0) = 1. Gauss-Seidel sweeps in the
// order of discovery carry a whole sentence at once; all terms are positive, so nothing cancels.
void HarbourGrammar::Solve() {
  const auto states = static_cast<std::size_t>(States());
  std::vector<std::vector<std::pair<std::size_t, double>>> sources(states);
  for (std::size_t s = 0; s < states; ++s) {
    std::map<std::size_t, double> steps;
    for (const Arc& arc : Arcs(static_cast<std::int32_t>(s))) {
      steps[static_cast<std::size_t>(arc.next)] += arc.probability;
    }
    for (const auto& [next, probability] : steps) sources[next].emplace_back(s, probability);
  }
  std::vector<double> visits(states, 0);
  visits[0] = 1;
  double change = 1;
  for (int sweep = 0; change > kConverged; ++sweep) {
    if (sweep == kMaximumSweeps) throw std::logic_error("the harbour chain does not converge");
    change = 0;
    for (std::size_t s = 1; s < states; ++s) {
      double value = 0;
      for (const auto& [source, probability] : sources[s]) value += visits[source] * probability;
      change = std::max(change, std::abs(value - visits[s]) / std::max(value, 1e-300));
      visits[s] = value;
    }
  }
  double sum = 0;
  for (const double value : visits) sum += value;
  stationary_ = std::move(visits);
  for (double& value : stationary_) value /= sum;
}

std::span<const Arc> HarbourGrammar::Arcs(std::int32_t state) const {
  const auto s = static_cast<std::size_t>(state);
  return std::span(arcs_).subspan(first_arc_[s], first_arc_[s + 1] - first_arc_[s]);
}

double HarbourGrammar::EntropyRate() const {
  double rate = 0;
  for (std::int32_t s = 0; s < States(); ++s) {
    double entropy = 0;
    for (const Arc& arc : Arcs(s)) entropy -= arc.probability * std::log(arc.probability);
    rate += stationary_[static_cast<std::size_t>(s)] * entropy;
  }
  return rate;
}

std::vector<std::int32_t> HarbourGrammar::Generate(std::uint32_t seed, Split split,
                                                   std::int64_t count) const {
  double left = Uniform(seed, split, 0, kFirstState);
  std::int32_t state = 0;
  while (state + 1 < States()) {
    left -= stationary_[static_cast<std::size_t>(state)];
    if (left < 0) break;
    ++state;
  }
  std::vector<std::int32_t> tokens;
  tokens.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::span<const Arc> arcs = Arcs(state);
    const double u = Uniform(seed, split, i, kTokens);
    const auto arc = std::upper_bound(arcs.begin(), arcs.end(), u, [](double value, const Arc& a) {
      return value < a.cumulative;
    });
    tokens.push_back(arc->word);
    state = arc->next;
  }
  return tokens;
}

}  // namespace trireme::data
