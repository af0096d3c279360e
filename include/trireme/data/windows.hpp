// Windows of tokens in an order that is known before: from memory, or read ahead from the files.
#ifndef TRIREME_DATA_WINDOWS_HPP_
#define TRIREME_DATA_WINDOWS_HPP_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/data/corpus.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/data/window.hpp"

namespace trireme::data {

class Windows {
 public:
  // Replaces `samples` by the windows of a turn; false: there is no such turn. A pure function,
  // called by a thread of this object's.
  using Turns = std::function<bool(std::int64_t turn, std::vector<Sample>& samples)>;

  // replica: ranks that take the same windows in the same turns, of which the first one reads. It
  // and the files of `corpus`, all in memory or none, must outlive the object.
  Windows(const Corpus& corpus, Split split, const comm::Communicator& replica, Turns turns);
  ~Windows();
  Windows(const Windows&) = delete;
  Windows& operator=(const Windows&) = delete;

  // The windows of a turn, as `turns` gives them; valid until the next call. Collective over the
  // replica if the files are streamed; the turns that follow are then read on a thread, as many as
  // data.read_ahead says. Throws, on all ranks of the replica, InputError naming file, dataset and
  // offset of a bad element, and RunError for a file that has changed or cannot be read.
  std::span<const Window> Take(std::int64_t turn);
  // Drops what was read ahead, and calls `change`, after which `turns` may answer otherwise.
  void Change(const std::function<void()>& change);

 private:
  class Reader;

  const Corpus corpus_;
  const Split split_;
  const comm::Communicator& replica_;
  const Turns turns_;
  std::unique_ptr<Reader> reader_;  // on the replica's first rank, if the files are streamed
  std::vector<Sample> samples_;
  std::vector<Window> windows_;  // of the turn, but on the rank with the reader
  std::vector<std::int32_t> packed_;
};

}  // namespace trireme::data

#endif  // TRIREME_DATA_WINDOWS_HPP_
