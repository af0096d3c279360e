// JSON is nlohmann's library. Template code that depends only on the kind of value is compiled
// once, in src/base/json.cpp, instead of in every file that reads or writes JSON, where it would
// take a fifth of the compile time.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace trireme {

// Input type of nlohmann::json::parse() for a std::string.
using JsonTextInput = nlohmann::detail::iterator_input_adapter<std::string::const_iterator>;

}  // namespace trireme

extern template class nlohmann::detail::lexer<nlohmann::json, trireme::JsonTextInput>;
extern template class nlohmann::detail::parser<nlohmann::json, trireme::JsonTextInput>;
extern template class nlohmann::detail::lexer<nlohmann::ordered_json, trireme::JsonTextInput>;
extern template class nlohmann::detail::parser<nlohmann::ordered_json, trireme::JsonTextInput>;
extern template class nlohmann::detail::serializer<nlohmann::json>;
extern template class nlohmann::detail::serializer<nlohmann::ordered_json>;
extern template nlohmann::basic_json<>::basic_json(const nlohmann::json&);
extern template nlohmann::basic_json<>::basic_json(initializer_list_t, bool, value_t);
extern template void nlohmann::basic_json<>::json_value::destroy(value_t);
extern template std::string nlohmann::basic_json<>::dump(int, char, bool, error_handler_t) const;
extern template nlohmann::basic_json<nlohmann::ordered_map>::basic_json(
    const nlohmann::ordered_json&);
extern template nlohmann::basic_json<nlohmann::ordered_map>::basic_json(initializer_list_t, bool,
                                                                        value_t);
extern template void nlohmann::basic_json<nlohmann::ordered_map>::json_value::destroy(value_t);
extern template std::string nlohmann::basic_json<nlohmann::ordered_map>::dump(
    int, char, bool, error_handler_t) const;
