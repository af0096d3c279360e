// The one check of what a task writes under names of the deck.
#ifndef TRIREME_SRC_TASKS_OUTPUTS_HPP_
#define TRIREME_SRC_TASKS_OUTPUTS_HPP_

#include "trireme/app/job.hpp"

namespace trireme::tasks {

// Serial. Throws InputError if the job's task writes a file that the job reads, a deck among them,
// whatever their names are: files are compared by device and inode. Texts that a glob names are
// compared where it is resolved (data::IsReplaced), run folders by report::CheckRunFolder.
void CheckOutputs(const app::Job& job);

}  // namespace trireme::tasks

#endif  // TRIREME_SRC_TASKS_OUTPUTS_HPP_
