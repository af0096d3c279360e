// Functions that the parsers' files mention and no fuzz target reaches (broadcasts, an opened token
// file): the fuzz programs need no MPI and only a few files of Trireme.
#include "fuzz.hpp"
#include "trireme/comm/communicator.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/data/token_file.hpp"
#include "trireme/hf/weights.hpp"

namespace {

[[noreturn]] void Unreached() {
  trireme::fuzz::Require(false, "a fuzz target has reached a function that it is built without");
  std::abort();
}

}  // namespace

namespace trireme::comm {

std::string Communicator::Broadcast(const std::string&, int) const { Unreached(); }
void Communicator::Broadcast(void*, std::int64_t, int) const { Unreached(); }

}  // namespace trireme::comm

namespace trireme::data {

const Vocabulary& TokenFile::Words() const { Unreached(); }
const std::string& TokenFile::Tokenizer() const { Unreached(); }
const std::string& TokenFile::Path() const { Unreached(); }
std::string TokenFile::VocabularySha256() const { Unreached(); }
std::string TokenFile::TokenizerSha256() const { Unreached(); }
const std::string& TokenFile::SourceSha256() const { Unreached(); }
std::int64_t TokenFile::Size(Split) const { Unreached(); }
std::vector<SourcePlace> Sampler::Places(std::int64_t) const { Unreached(); }
std::int64_t Sampler::WindowsOf(std::int64_t) const { Unreached(); }

}  // namespace trireme::data

namespace trireme::hf {

Error NotAModel(const std::string&, const std::string&) { Unreached(); }

}  // namespace trireme::hf
