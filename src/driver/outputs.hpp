// The one check of what a task writes under names of the deck.
#ifndef TRIREME_SRC_DRIVER_OUTPUTS_HPP_
#define TRIREME_SRC_DRIVER_OUTPUTS_HPP_

#include "trireme/job/job.hpp"

namespace trireme::driver {

// Serial. Throws InputError if the job's task writes a file that the job reads, a deck among them,
// whatever their names are: files are compared by device and inode. Texts that a glob names are
// compared where it is resolved (data::IsReplaced), run folders by monitor::CheckRunFolder.
void CheckOutputs(const job::Job& job);

}  // namespace trireme::driver

#endif  // TRIREME_SRC_DRIVER_OUTPUTS_HPP_
