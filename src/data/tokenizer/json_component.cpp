// Parts of a tokenizer.json.
#include "json_component.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace trireme::data {

bool Component::Has(const std::string& name) const {
  if (!json_.is_object()) throw Complain("no object");
  const auto member = json_.find(name);
  return member != json_.end() && !member->is_null();
}

Component Component::At(const std::string& name) const {
  const std::string path = path_.empty() ? name : path_ + "." + name;
  if (!Has(name)) throw InputError(fmt::format("{}: {} is missing", where_, path));
  return {json_.at(name), where_, path};
}

std::vector<Component> Component::Elements() const {
  if (!json_.is_array()) throw Complain("no list");
  std::vector<Component> elements;
  elements.reserve(json_.size());
  for (std::size_t i = 0; i < json_.size(); ++i) {
    elements.emplace_back(json_[i], where_, fmt::format("{}[{}]", path_, i));
  }
  return elements;
}

std::vector<std::pair<std::string, Component>> Component::Members() const {
  if (!json_.is_object()) throw Complain("no object");
  std::vector<std::pair<std::string, Component>> members;
  members.reserve(json_.size());
  for (const auto& [name, value] : json_.items()) {
    members.emplace_back(name, Component(value, where_, fmt::format("{}['{}']", path_, name)));
  }
  return members;
}

std::string Component::Text() const {
  if (!json_.is_string()) throw Complain("no text");
  return json_.get<std::string>();
}

std::int64_t Component::Integer() const {
  if (!json_.is_number_integer()) throw Complain("no integer");
  return json_.get<std::int64_t>();
}

double Component::Number() const {
  if (!json_.is_number()) throw Complain("no number");
  return json_.get<double>();
}

bool Component::Flag(const std::string& name, bool otherwise) const {
  if (!Has(name)) return otherwise;
  const nlohmann::json& value = json_.at(name);
  if (!value.is_boolean()) throw At(name).Complain("neither true nor false");
  return value.get<bool>();
}

void Component::RequireText(const std::string& name,
                            const std::vector<std::string>& supported) const {
  const Component member = At(name);
  const std::string text = member.Text();
  if (std::find(supported.begin(), supported.end(), text) != supported.end()) return;
  throw member.Complain(
      fmt::format("'{}' is not supported, only '{}'", text, fmt::join(supported, "', '")));
}

void Component::RequireNo(const std::string& name) const {
  if (Flag(name, false)) throw At(name).Complain("it is not supported");
}

}  // namespace trireme::data
