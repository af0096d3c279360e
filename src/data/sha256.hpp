// SHA-256 of texts, to tell which source a token file came from.
#ifndef TRIREME_SRC_DATA_SHA256_HPP_
#define TRIREME_SRC_DATA_SHA256_HPP_

#include <span>
#include <string>
#include <string_view>

namespace trireme::data {

// SHA-256 of the texts one after the other, 64 hex digits.
std::string Sha256(std::span<const std::string_view> texts);

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_SHA256_HPP_
