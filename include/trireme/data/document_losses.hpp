// The file of an evaluation's losses by document, HDF5.
#ifndef TRIREME_DATA_DOCUMENT_LOSSES_HPP_
#define TRIREME_DATA_DOCUMENT_LOSSES_HPP_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trireme::data {

// Of all documents of a split, in its order.
struct DocumentLosses {
  std::string group;                      // in the file: "/valid"
  std::vector<std::int64_t> first_token;  // offset in the split
  std::vector<std::int64_t> targets;      // counted ones
  std::vector<std::int64_t> bytes;        // of text, of these
  std::vector<double> nats;               // summed loss
};

// Writes a group per split with datasets of these names and `document`, their numbers from 0;
// texts: attributes of the file, name and value. Serial. The same bytes for the same values. By way
// of a temporary file, which takes the place of `path` when it is whole. Throws InputError if none
// can be made there, RunError for a full disk.
void WriteDocumentLosses(const std::string& path, const std::vector<DocumentLosses>& splits,
                         const std::vector<std::pair<std::string, std::string>>& texts);

}  // namespace trireme::data

#endif  // TRIREME_DATA_DOCUMENT_LOSSES_HPP_
