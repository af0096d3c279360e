// UTF-8: validation and lower case.
#ifndef TRIREME_SRC_DATA_UTF8_HPP_
#define TRIREME_SRC_DATA_UTF8_HPP_

#include <string>
#include <string_view>

namespace trireme::data {

// Offset of the first byte that is not valid UTF-8 (RFC 3629), or npos.
std::size_t FirstInvalidUtf8(std::string_view text);

// Each code point's simple lower case, as the C.UTF-8 locale has it. `text` must be valid.
class LowerCase {
 public:
  LowerCase();  // throws RunError on a system without the C.UTF-8 locale
  ~LowerCase();
  LowerCase(const LowerCase&) = delete;
  LowerCase& operator=(const LowerCase&) = delete;

  std::string operator()(std::string_view text) const;

 private:
  void* locale_ = nullptr;  // a locale_t
};

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_UTF8_HPP_
