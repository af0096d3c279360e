// The algorithms of a GPU's matrix products, kept between runs: another choice rounds otherwise.
#ifndef TRIREME_SRC_TRAIN_PRODUCT_CHOICES_HPP_
#define TRIREME_SRC_TRAIN_PRODUCT_CHOICES_HPP_

#include <string>

#include "trireme/comm/communicator.hpp"
#include "trireme/kernels/libraries.hpp"

namespace trireme::train {

// run.products = auto: a file of this card and library version below XDG_CACHE_HOME, else below
// HOME/.cache; "" if neither is set. chosen: kernels::Libraries::Chosen().
std::string ChoicesFile(const std::string& chosen);

// Collective. World rank 0 reads the file and all ranks adopt its choices; no effect if the file is
// missing or of another card or library.
void TakeKeptChoices(const comm::Communicator& world, const std::string& file,
                     kernels::Libraries& libraries);
// Collective. All ranks adopt what each has chosen: for each product the choice of the lowest rank
// that has it. Ranks with the same products, as those of data replicas, send theirs once.
void AgreeOnChoices(const comm::Communicator& world, kernels::Libraries& libraries);
// World rank 0 writes the file anew, by way of a temporary one. A failure to write is a warning: a
// later run may then choose, and round, otherwise.
void KeepChoices(const comm::Communicator& world, const std::string& file,
                 const kernels::Libraries& libraries);

}  // namespace trireme::train

#endif  // TRIREME_SRC_TRAIN_PRODUCT_CHOICES_HPP_
