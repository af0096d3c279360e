// encode_texts TOKENIZER: for each JSON text of a line of standard input one line, a JSON list with
// its ids, and the text that they decode to, in hexadecimal digits.
#include <fmt/format.h>

#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "trireme/tokenizer/tokenizer.hpp"

int main(int argc, char** argv) try {
  if (argc != 2) {
    std::cerr << "encode_texts TOKENIZER <texts.jsonl >ids.jsonl\n";
    return 2;
  }
  using trireme::tokenizer::Kind;
  const std::string path = argv[1];
  const Kind kind = path.ends_with(".model") ? Kind::kSentencePiece : Kind::kBpe;
  const auto tokenizer = trireme::tokenizer::Make(trireme::tokenizer::ReadFiles(path, kind), path);
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<std::int32_t> ids;
    tokenizer->Encode(nlohmann::json::parse(line).get<std::string>(), ids);
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
