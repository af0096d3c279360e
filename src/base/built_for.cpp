// Compiled with the flags of the whole program, whose predefined macros tell what the compiler may
// use.
#include "built_for.hpp"

namespace {

// TEXT_OF(__AVX2__) is "1" where the compiler defines the macro, else its own name.
#define TEXT_OF_TOKENS(tokens) #tokens
#define TEXT_OF(macro) TEXT_OF_TOKENS(macro)
constexpr unsigned Bit(int place, const char* text) { return text[0] == '_' ? 0U : 1U << place; }

}  // namespace

namespace trireme {

constinit const unsigned kBuiltFor =
    Bit(0, TEXT_OF(__SSE4_2__)) | Bit(1, TEXT_OF(__POPCNT__)) | Bit(2, TEXT_OF(__AVX__)) |
    Bit(3, TEXT_OF(__AVX2__)) | Bit(4, TEXT_OF(__FMA__)) | Bit(5, TEXT_OF(__BMI2__)) |
    Bit(6, TEXT_OF(__AVX512F__)) | Bit(7, TEXT_OF(__AVX512BW__)) | Bit(8, TEXT_OF(__AVX512DQ__)) |
    Bit(9, TEXT_OF(__AVX512VL__)) | Bit(10, TEXT_OF(__AVX512VNNI__)) |
    Bit(11, TEXT_OF(__AVX512BF16__));

}  // namespace trireme
