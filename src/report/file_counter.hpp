// A counter in a file of a few characters, as the kernel shows them.
#ifndef TRIREME_SRC_REPORT_FILE_COUNTER_HPP_
#define TRIREME_SRC_REPORT_FILE_COUNTER_HPP_

#include <optional>
#include <string>

#include "counter.hpp"

namespace trireme::report {

// The first line of a small file; nothing, with errno set, if it cannot be read.
std::optional<std::string> FirstLine(const std::string& path);
// A number that is not negative at the start of a text, with nothing or a blank after it.
std::optional<double> NumberIn(const std::string& text);

class FileCounter : public Counter {
 public:
  // joules: of a unit in the file. range: joules, as Range().
  FileCounter(std::string path, double joules, double range = 0)
      : path_(std::move(path)), joules_(joules), range_(range) {}

  std::optional<double> Read() override;
  double Range() const override { return range_; }
  const std::string& Path() const { return path_; }

 private:
  std::string path_;
  double joules_, range_;
};

}  // namespace trireme::report

#endif  // TRIREME_SRC_REPORT_FILE_COUNTER_HPP_
