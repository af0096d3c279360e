// Words of the harbour corpus by category, in order of frequency; regular forms of nouns and verbs.
#include "lexicon.hpp"

#include <cctype>
#include <cmath>

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

}  // namespace trireme::data
