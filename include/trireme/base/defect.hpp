// Deliberate mistakes that verification must find. For tests alone: no deck can ask for one.
#ifndef TRIREME_BASE_DEFECT_HPP_
#define TRIREME_BASE_DEFECT_HPP_

namespace trireme {

enum class Defect {
  kNone,
  kNormGradientNotSummed,  // sequence parallelism without the sum of the norms' gradients
  kAverageOfAverages,      // gradients divided on each rank before they are summed
  kDataSumSpoiled,         // data rank 1 reads one sum wrongly, as from a broken network
  kTiedGradientNotSummed,  // first and last stage keep their own gradient of the embedding
  kRingOffsetWrong,        // wrong causal offset in ring attention
  kUsedBeforeGather,       // a parameter is used before its gather is complete
  kTreeOfRanks,            // a canonical sum whose tree depends on the number of ranks
};

}  // namespace trireme

#endif  // TRIREME_BASE_DEFECT_HPP_
