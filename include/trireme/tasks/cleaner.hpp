// Cleaner: a process of its own that removes a folder when this process has ended, however it
// ended.
#ifndef TRIREME_TASKS_CLEANER_HPP_
#define TRIREME_TASKS_CLEANER_HPP_

#include <sys/types.h>

#include <string>

namespace trireme::tasks {

class Cleaner {
 public:
  // Starts the process, in a session of its own, which no signal to this one's group reaches.
  // Before MPI: a fork later is unsafe. Without a process to spare there is none, and Folder's
  // folder goes with the destructor alone.
  Cleaner();
  ~Cleaner();  // removes the folder and waits for the process
  Cleaner(const Cleaner&) = delete;
  Cleaner& operator=(const Cleaner&) = delete;

  void Folder(const std::string& path);  // absolute, at most once

 private:
  int to_child_ = -1;  // end of a pipe
  pid_t child_ = -1;
  std::string path_;
};

}  // namespace trireme::tasks

#endif  // TRIREME_TASKS_CLEANER_HPP_
