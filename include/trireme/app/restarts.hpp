// The count of starts that led nowhere, so that a run whose state kills it cannot loop for ever.
#ifndef TRIREME_APP_RESTARTS_HPP_
#define TRIREME_APP_RESTARTS_HPP_

#include <cstdint>
#include <string>

namespace trireme::app {

// Notes in folder/restarts.json that a session begins at `step`, and returns how many sessions in a
// row, this one included, have begun there: 1 after progress, a step back, or on the first start.
// Serial: one rank, which holds the RunLock. A damaged file counts as none. The note is on the disk
// when the call returns. Throws RunError if it cannot be written.
int CountStart(const std::string& folder, std::int64_t step);

// Removes the note, as for a new run in a folder that held another one. Serial.
void ForgetStarts(const std::string& folder);

// Step of the last start noted in folder/restarts.json; 0 without one that can be read. Serial.
std::int64_t LastStart(const std::string& folder);

}  // namespace trireme::app

#endif  // TRIREME_APP_RESTARTS_HPP_
