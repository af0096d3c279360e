// Whether a split has a target that counts, so that its loss is a number.
#ifndef TRIREME_DATA_HAS_TARGET_HPP_
#define TRIREME_DATA_HAS_TARGET_HPP_

#include "trireme/data/token_file.hpp"

namespace trireme::data {

// Serial, on a rank that has the split in memory or reads its stream. Looks at the split's mask
// and, with document_mask, at its documents, up to the first target that counts. Throws RunError
// for a stream's bad element, and for a file that has changed.
bool HasTarget(const TokenFile& file, Split split, bool document_mask);

}  // namespace trireme::data

#endif  // TRIREME_DATA_HAS_TARGET_HPP_
