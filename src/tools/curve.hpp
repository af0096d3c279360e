// A quantity over the steps of a run in bounded memory, for a line of small bars.
#ifndef TRIREME_SRC_TOOLS_CURVE_HPP_
#define TRIREME_SRC_TOOLS_CURVE_HPP_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::tools {

class Curve {
 public:
  // Steps come in ascending order; one that comes again takes back all from there on. A value that
  // is not finite is remembered as such.
  void Add(std::int64_t step, double value);
  void Clear() { *this = {}; }
  bool Empty() const { return buckets_.empty(); }

  // At most `columns` bars from the first step to the last, each of equally many records: means of
  // the values on a scale from the least to the most of them; '!' where a value was not finite.
  // blocks: of Unicode's block elements, else of ASCII.
  std::string Bars(int columns, bool blocks) const;

 private:
  struct Bucket {
    std::int64_t number = 0;  // of the bucket: step / width_
    double sum = 0;
    std::int64_t count = 0;  // of finite values
    bool bad = false;

    double Mean() const { return sum / static_cast<double>(count); }
    Bucket& operator+=(const Bucket& other) {
      sum += other.sum;
      count += other.count;
      bad = bad || other.bad;
      return *this;
    }
  };
  static constexpr std::size_t kMostBuckets = 4096;
  void Halve();

  std::vector<Bucket> buckets_;  // in the order of steps
  std::int64_t width_ = 1;       // steps of a bucket
  std::int64_t last_ = 0;        // step
};

}  // namespace trireme::tools

#endif  // TRIREME_SRC_TOOLS_CURVE_HPP_
