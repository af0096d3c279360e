// The template instances that base/json.hpp declares.
#include "trireme/base/json.hpp"

template class nlohmann::detail::lexer<nlohmann::json, trireme::JsonTextInput>;
template class nlohmann::detail::parser<nlohmann::json, trireme::JsonTextInput>;
template class nlohmann::detail::lexer<nlohmann::ordered_json, trireme::JsonTextInput>;
template class nlohmann::detail::parser<nlohmann::ordered_json, trireme::JsonTextInput>;
template class nlohmann::detail::serializer<nlohmann::json>;
template class nlohmann::detail::serializer<nlohmann::ordered_json>;
template nlohmann::basic_json<>::basic_json(const nlohmann::json&);
template nlohmann::basic_json<>::basic_json(initializer_list_t, bool, value_t);
template void nlohmann::basic_json<>::json_value::destroy(value_t);
template std::string nlohmann::basic_json<>::dump(int, char, bool, error_handler_t) const;
template nlohmann::basic_json<nlohmann::ordered_map>::basic_json(const nlohmann::ordered_json&);
template nlohmann::basic_json<nlohmann::ordered_map>::basic_json(initializer_list_t, bool, value_t);
template void nlohmann::basic_json<nlohmann::ordered_map>::json_value::destroy(value_t);
template std::string nlohmann::basic_json<nlohmann::ordered_map>::dump(int, char, bool,
                                                                       error_handler_t) const;
