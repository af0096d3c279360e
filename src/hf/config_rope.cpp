// Rotary positions in a config.json: rope_theta with rope_scaling, or rope_parameters of newer
// versions.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "config_keys.hpp"

namespace trireme::hf {

namespace {

constexpr const char* kOld = "rope_scaling";
constexpr const char* kNew = "rope_parameters";

double Positive(ConfigKeys& keys, const std::string& name) {
  if (!keys.Has(name)) throw keys.Complain(name, "a number expected");
  return keys.RealOr(name, 0);
}

void ReadYarn(ConfigKeys& keys, std::int64_t positions, nlohmann::json& model) {
  const std::int64_t original = keys.IntegerOr("original_max_position_embeddings", positions);
  const double ratio = static_cast<double>(positions) / static_cast<double>(original);
  model["rope_factor"] = keys.RealOr("factor", ratio);
  model["rope_original_positions"] = original;
  model["rope_beta_fast"] = keys.RealOr("beta_fast", 32);
  model["rope_beta_slow"] = keys.RealOr("beta_slow", 1);
  model["rope_attention_factor"] = keys.RealOr("attention_factor", 0);
  keys.Demand("truncate", true, {true, nullptr});
  keys.Demand("mscale", nullptr, {nullptr});
  keys.Demand("mscale_all_dim", nullptr, {nullptr});
}

// where: "config.json: rope_scaling". positions: max_position_embeddings.
void ReadScaling(const nlohmann::json& json, const std::string& where, std::int64_t positions,
                 nlohmann::json& model) {
  ConfigKeys keys(json, where);
  for (const auto& [name, value] : json.items()) {
    if (!value.is_object()) continue;
    throw keys.Complain(name,
                        "angles per type of layer are not computed: all layers have the same");
  }
  const std::string older = keys.TextOr("type", "default");
  const std::string type = keys.TextOr("rope_type", older);
  if (keys.Has("type") && older != type) {
    throw keys.Complain("type", fmt::format("rope_type says \"{}\"", type));
  }
  model["rope_theta"] = keys.RealOr("rope_theta", model.at("rope_theta").get<double>());
  keys.Demand("partial_rotary_factor", 1, {1, nullptr});
  const std::string name = type == "default" ? "none" : type;
  model["rope_scaling"] = name;
  if (name == "linear") {
    model["rope_factor"] = Positive(keys, "factor");
  } else if (name == "llama3") {
    model["rope_factor"] = Positive(keys, "factor");
    model["rope_low_frequency_factor"] = Positive(keys, "low_freq_factor");
    model["rope_high_frequency_factor"] = Positive(keys, "high_freq_factor");
    model["rope_original_positions"] = keys.Integer("original_max_position_embeddings");
  } else if (name == "yarn") {
    ReadYarn(keys, positions, model);
  } else if (name != "none") {
    throw keys.Complain(keys.Has("rope_type") ? "rope_type" : "type",
                        "only default, linear, llama3 and yarn are computed");
  }
  const std::vector<std::string> others = keys.Unread();
  if (others.empty()) return;
  throw keys.Complain(others.front(), fmt::format("not known for the type \"{}\"", type),
                      "Take it out if it does not change the angles.");
}

}  // namespace

void ReadRope(ConfigKeys& config, const std::string& where, nlohmann::json& model) {
  constexpr double kTheta = 10000;
  const std::int64_t positions = config.Integer("max_position_embeddings");
  model["rope_theta"] = config.RealOr("rope_theta", kTheta);
  model["rope_scaling"] = "none";
  config.Demand("partial_rotary_factor", 1, {1, nullptr});
  const bool older = config.Has(kOld), newer = config.Has(kNew);
  nlohmann::json other = model;
  if (newer) ReadScaling(config.At(kNew), where + ": " + kNew, positions, model);
  if (!older) return;
  if (!newer) return ReadScaling(config.At(kOld), where + ": " + kOld, positions, model);
  other["rope_theta"] = model["rope_theta"];
  ReadScaling(config.At(kOld), where + ": " + kOld, positions, other);
  if (other == model) return;
  throw config.Complain(kNew, fmt::format("{} says something else", kOld), "Leave one of them.");
}

}  // namespace trireme::hf
