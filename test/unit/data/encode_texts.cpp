// encode_texts TOKENIZER [BYTES]: for each JSON text of a line of standard input one line, a JSON
// list with its ids, and the text that they decode to, in hexadecimal digits. BYTES: texts come in
// pieces of about so many, and are encoded up to the last place at which they may be cut.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/json.hpp"
#include "trireme/data/tokenizer.hpp"

namespace {

using trireme::data::Tokenizer;

// In pieces of `bytes` bytes, the rest of a character added.
std::vector<std::int32_t> EncodePieces(Tokenizer& tokenizer, const std::string& text,
                                       std::size_t bytes) {
  std::vector<std::int32_t> ids;
  std::string held;
  bool later = false;  // after a cut
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = std::min(at + bytes, text.size());
    while (end < text.size() && (text[end] & 0xC0) == 0x80) ++end;
    held += text.substr(at, end - at);
    at = end;
    const std::size_t cut = tokenizer.SafeCut(held);
    if (cut == 0) continue;
    const std::string_view part = std::string_view(held).substr(0, cut);
    std::exchange(later, true) ? tokenizer.EncodeRest(part, ids) : tokenizer.Encode(part, ids);
    held.erase(0, cut);
  }
  later ? tokenizer.EncodeRest(held, ids) : tokenizer.Encode(held, ids);
  return ids;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2 && argc != 3) {
    std::cerr << "encode_texts TOKENIZER [BYTES] <texts.jsonl >ids.jsonl\n";
    return 2;
  }
  using trireme::data::TokenizerKind;
  const std::string path = argv[1];
  const TokenizerKind kind =
      path.ends_with(".model") ? TokenizerKind::kSentencePiece : TokenizerKind::kBpe;
  const auto tokenizer = trireme::data::Make(trireme::data::ReadFiles(path, kind), path);
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<std::int32_t> ids;
    const auto text = nlohmann::json::parse(line).get<std::string>();
    if (argc == 3) {
      ids = EncodePieces(*tokenizer, text, std::stoul(argv[2]));
    } else {
      tokenizer->Encode(text, ids);
    }
    std::string digits;
    for (const char c : tokenizer->Decode(ids)) {
      digits += fmt::format("{:02x}", static_cast<unsigned char>(c));
    }
    std::cout << nlohmann::json{ids, digits}.dump() << '\n';
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
