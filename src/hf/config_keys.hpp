// ConfigKeys: the members of a config.json, read by name; what was asked for is known in the end.
#ifndef TRIREME_SRC_HF_CONFIG_KEYS_HPP_
#define TRIREME_SRC_HF_CONFIG_KEYS_HPP_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/json.hpp"
#include "trireme/deck/json_text.hpp"

namespace trireme::hf {

class ConfigKeys {
 public:
  // where: "model/config.json", or a place in it. Both must outlive this.
  ConfigKeys(const nlohmann::json& json, const std::string& where);

  // A member that is there and not null.
  bool Has(const std::string& name);
  bool IsNull(const std::string& name) const {  // there, and null
    return json_.contains(name) && json_.at(name).is_null();
  }
  const nlohmann::json& At(const std::string& name) const { return json_.at(name); }
  std::int64_t Integer(const std::string& name);
  std::int64_t IntegerOr(const std::string& name, std::int64_t fallback);
  double RealOr(const std::string& name, double fallback);
  bool TruthOr(const std::string& name, bool fallback);
  std::string TextOr(const std::string& name, const std::string& fallback);
  // Throws unless the member is absent or one of these values. An absent one counts as `fallback`.
  void Demand(const std::string& name, const nlohmann::json& fallback,
              const std::vector<nlohmann::json>& computed);

  // The InputError "where: name = value: reason".
  Error Complain(const std::string& name, const std::string& reason,
                 const std::string& hint = {}) const;
  // Members that nothing above was asked for.
  std::vector<std::string> Unread() const;

 private:
  const nlohmann::json& json_;
  const std::string& where_;
  deck::JsonObject object_;
  std::set<std::string> read_;
};

// The keys of rotary positions: theta, scaling and its numbers. Throws InputError for a kind of
// scaling that the model does not have.
void ReadRope(ConfigKeys& config, const std::string& where, nlohmann::json& model);

// Refuses what changes the function in a way that no family here has; returns the keys that are in
// no list.
std::vector<std::string> CheckOtherKeys(const ConfigKeys& config);

}  // namespace trireme::hf

#endif  // TRIREME_SRC_HF_CONFIG_KEYS_HPP_
