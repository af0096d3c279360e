// trireme_tokenizer_benchmark FILE [library]: seconds to encode texts, pass by pass. FILE: a
// tokenizer.json, its folder, or a SentencePiece model; `library`: by SentencePiece itself. See
// tokenizer.py.
#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "trireme/base/clock.hpp"
#include "trireme/base/json.hpp"
#include "trireme/data/tokenizer.hpp"

namespace {

using Encode = std::function<std::size_t(const std::string&)>;  // number of ids

Encode EncodeOf(const std::string& path, bool library) {
  if (library) {
    auto processor = std::make_shared<sentencepiece::SentencePieceProcessor>();
    if (!processor->Load(path).ok()) throw std::runtime_error(path + ": no model");
    return [processor, ids = std::vector<int>()](const std::string& text) mutable {
      processor->Encode(text, &ids).IgnoreError();
      return ids.size();
    };
  }
  using trireme::data::TokenizerKind;
  const TokenizerKind kind =
      path.ends_with(".model") ? TokenizerKind::kSentencePiece : TokenizerKind::kBpe;
  std::shared_ptr<trireme::data::Tokenizer> tokenizer =
      trireme::data::Make(trireme::data::ReadFiles(path, kind), path);
  return [tokenizer, ids = std::vector<std::int32_t>()](const std::string& text) mutable {
    ids.clear();
    tokenizer->Encode(text, ids);
    return ids.size();
  };
}

}  // namespace

// Reads one line with a JSON list of texts; then, for each further line, encodes them all once and
// answers with seconds and the number of ids: the caller alternates between programs.
int main(int argc, char** argv) try {
  if (argc < 2) {
    std::cerr << "trireme_tokenizer_benchmark FILE [library]\n";
    return 2;
  }
  const Encode encode = EncodeOf(argv[1], argc > 2);
  std::string line;
  std::getline(std::cin, line);
  const auto texts = nlohmann::json::parse(line).get<std::vector<std::string>>();
  while (std::getline(std::cin, line)) {
    const double start = trireme::Seconds();
    std::size_t ids = 0;
    for (const std::string& text : texts) ids += encode(text);
    std::cout << fmt::format("{} {}\n", trireme::Seconds() - start, ids) << std::flush;
  }
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
