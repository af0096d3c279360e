// score_texts HYPOTHESES REFERENCES: BLEU, chrF and exact match of two files of lines, all digits,
// a line each. For the comparison with sacrebleu.
#include <cstdio>
#include <fstream>
#include <string>

#include "trireme/tasks/evaluate.hpp"

int main(int count, char** arguments) {
  if (count != 3) return 2;
  std::ifstream hypotheses(arguments[1], std::ios::binary),
      references(arguments[2], std::ios::binary);
  trireme::tasks::ScoreCounts all;
  std::string hypothesis, reference;
  while (std::getline(hypotheses, hypothesis) && std::getline(references, reference)) {
    all += trireme::tasks::CountMatches(hypothesis, reference);
  }
  std::printf("%.17g\n%.17g\n%.17g\n", Bleu(all), ChrF(all), ExactMatch(all));
  return 0;
}
