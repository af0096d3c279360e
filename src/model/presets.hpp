// Known models: values for keys of [model] that a deck leaves out.
#ifndef TRIREME_SRC_MODEL_PRESETS_HPP_
#define TRIREME_SRC_MODEL_PRESETS_HPP_

#include <string>
#include <utility>
#include <vector>

namespace trireme::model {

using PresetValues = std::vector<std::pair<std::string, std::string>>;  // key, value

const std::vector<std::pair<std::string, PresetValues>>& Presets();  // by name, as in help

}  // namespace trireme::model

#endif  // TRIREME_SRC_MODEL_PRESETS_HPP_
