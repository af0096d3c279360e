// Files of a local checkpoint that a rank reads for all.
#ifndef TRIREME_SRC_CHECKPOINT_LOCAL_FIND_HPP_
#define TRIREME_SRC_CHECKPOINT_LOCAL_FIND_HPP_

#include <string>
#include <vector>

#include "local_file.hpp"
#include "trireme/checkpoint/local.hpp"

namespace trireme::checkpoint {

struct LocalFile {
  std::string path;
  LocalHeader header;
  bool good = false;  // hashes are right
};

struct LocalCheckpoint::Files {
  std::vector<LocalFile> list;
};

}  // namespace trireme::checkpoint

#endif  // TRIREME_SRC_CHECKPOINT_LOCAL_FIND_HPP_
