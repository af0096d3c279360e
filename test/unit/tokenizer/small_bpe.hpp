// A byte-level BPE of nine tokens, to be changed by tests.
#ifndef TRIREME_TEST_UNIT_TOKENIZER_SMALL_BPE_HPP_
#define TRIREME_TEST_UNIT_TOKENIZER_SMALL_BPE_HPP_

#include <memory>
#include <string>

#include "bpe.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"
#include "trireme/data/tokenizer.hpp"

namespace trireme::data {

struct SmallBpe {
  // another: an entry more, of id 9.
  std::unique_ptr<Tokenizer> Make(const std::string& another) const {
    SmallBpe larger = *this;
    larger.json["model"]["vocab"][another] = 9;
    return larger.Make();
  }
  std::unique_ptr<Tokenizer> Make() const {
    return data::Make({{"tokenizer.json", json.dump()}}, "small.json");
  }
  void Add(int id, const std::string& content) {
    json["added_tokens"].push_back({{"id", id}, {"content", content}, {"special", true}});
  }

  nlohmann::json json = nlohmann::json::parse(R"({
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE",
      "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4, "ab": 5, "bc": 6, "abc": 7, "de": 8},
      "merges": [["b", "c"], ["a", "b"], ["ab", "c"], ["d", "e"]]}})");
};

}  // namespace trireme::data

#endif  // TRIREME_TEST_UNIT_TOKENIZER_SMALL_BPE_HPP_
