// data.validation: token files beside that of training, each validated under a name.
#ifndef TRIREME_DATA_VALIDATION_SETS_HPP_
#define TRIREME_DATA_VALIDATION_SETS_HPP_

#include <string>
#include <vector>

#include "trireme/deck/deck.hpp"

namespace trireme::data {

// A token file of which the valid split is used.
struct ValidationFile {
  std::string name, path;
};

// The sets of data.validation, whose value is `text` ("books:books.h5, code:code.h5"), in the order
// of the deck. Throws InputError with the deck's line for an entry without a name or a path, a name
// of other characters than letters, digits, '_', '-' and '.', and a name that is there twice.
std::vector<ValidationFile> ReadValidation(const std::string& text, const deck::Deck& deck);

}  // namespace trireme::data

#endif  // TRIREME_DATA_VALIDATION_SETS_HPP_
