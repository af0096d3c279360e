// The words of the harbour corpus by category, each category with one fixed distribution.
#ifndef TRIREME_SRC_DATA_HARBOUR_LEXICON_HPP_
#define TRIREME_SRC_DATA_HARBOUR_LEXICON_HPP_

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

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_HARBOUR_LEXICON_HPP_
