// Names of kernels from their symbols.
#include <cxxabi.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <memory>

#include "trireme/device/kernel.hpp"

namespace trireme::device {

namespace {

constexpr std::size_t kLongest = 80;  // bytes
constexpr const char* kCut = "...";

std::string Demangled(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 && text ? text.get() : symbol;
}

void EraseAll(std::string& text, const std::string& part) {
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at)) {
    text.erase(at, part.size());
  }
}

// The arguments, the outermost brackets at the end, and what follows them.
void EraseArguments(std::string& text) {
  int depth = 0;
  for (std::size_t at = text.rfind(')'); at != std::string::npos && at > 0; --at) {
    if (text[at] == ')') ++depth;
    if (text[at] == '(' && --depth == 0) {
      text.erase(at);
      return;
    }
  }
}

// The result, up to the last space outside all brackets.
void EraseResult(std::string& text) {
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '<' || text[at] == '(') ++depth;
    if (text[at] == '>' || text[at] == ')') --depth;
    if (text[at] == ' ' && depth == 0) begin = at + 1;
  }
  text.erase(0, begin);
}

// SliceName spaces and classes, within template arguments too.
void EraseScopes(std::string& text) {
  const auto in_name = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  };
  for (std::size_t at = text.find("::"); at != std::string::npos; at = text.find("::", at)) {
    std::size_t begin = at;
    while (begin > 0 && in_name(text[begin - 1])) --begin;
    text.erase(begin, at + 2 - begin);
    at = begin;
  }
}

}  // namespace

std::string ShortName(const std::string& symbol) {
  std::string text = Demangled(symbol);
  if (text != symbol) {
    EraseAll(text, "(anonymous namespace)::");
    EraseArguments(text);
    EraseResult(text);
    EraseScopes(text);
  }
  if (text.empty()) text = symbol;
  if (text.size() > kLongest) text = text.substr(0, kLongest - std::string(kCut).size()) + kCut;
  return text;
}

}  // namespace trireme::device
