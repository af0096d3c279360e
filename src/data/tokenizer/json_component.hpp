// Parts of a tokenizer.json, each with its path for messages.
#ifndef TRIREME_SRC_DATA_TOKENIZER_JSON_COMPONENT_HPP_
#define TRIREME_SRC_DATA_TOKENIZER_JSON_COMPONENT_HPP_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"

namespace trireme::data {

// A view: the JSON must outlive it. Wrong types and missing members are errors of input (exit code
// 2) that name the path.
class Component {
 public:
  // where: file, for messages. path: from its root, "" there.
  Component(const nlohmann::json& json, std::string where, std::string path)
      : json_(json), where_(std::move(where)), path_(std::move(path)) {}

  // "tokenizer.json: pre_tokenizer.pretokenizers[1]".
  std::string Where() const { return path_.empty() ? where_ : where_ + ": " + path_; }
  Error Complain(const std::string& what) const { return InputError(Where() + ": " + what); }

  // True for a member that is not null.
  bool Has(const std::string& name) const;
  Component At(const std::string& name) const;
  std::vector<Component> Elements() const;
  std::vector<std::pair<std::string, Component>> Members() const;
  bool IsText() const { return json_.is_string(); }
  std::string Text() const;
  std::int64_t Integer() const;
  double Number() const;
  // A member, or `otherwise` if there is none.
  bool Flag(const std::string& name, bool otherwise) const;
  // Refuses other values of a member.
  void RequireText(const std::string& name, const std::vector<std::string>& supported) const;
  // Refuses a member that is true.
  void RequireNo(const std::string& name) const;

 private:
  const nlohmann::json& json_;
  std::string where_, path_;
};

}  // namespace trireme::data

#endif  // TRIREME_SRC_DATA_TOKENIZER_JSON_COMPONENT_HPP_
