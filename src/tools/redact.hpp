// Texts without what nobody may see in a ticket: what a model or a user wrote, and what lets
// somebody in.
#ifndef TRIREME_SRC_TOOLS_REDACT_HPP_
#define TRIREME_SRC_TOOLS_REDACT_HPP_

#include <string>
#include <string_view>

namespace trireme::tools {

// Whether a variable's value may let somebody in: by its name (a word such as TOKEN, KEY,
// PASSWORD), or by the look of the value (a long random word, a name and password in an address).
bool LooksSecret(std::string_view name, std::string_view value);

// Passwords in addresses (https://name:password@host), and words after "Bearer" or such, replaced.
std::string WithoutPasswords(std::string text);

// A deck without texts: generate.prompt and generate.stop, also given on a command line.
std::string DeckWithoutTexts(const std::string& deck);

// A log of the program or of a batch job without samples of what the model wrote.
std::string LogWithoutSamples(const std::string& log);

// JSON without samples, prompts and passwords, the decks in it likewise; layout and order as they
// were written by the program. Empty if it is damaged: then nothing tells its texts apart.
std::string JsonWithoutTexts(const std::string& json);

}  // namespace trireme::tools

#endif  // TRIREME_SRC_TOOLS_REDACT_HPP_
