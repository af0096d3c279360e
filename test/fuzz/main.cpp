// Every fuzz target on its seeds, in a plain build: fuzz_seeds FOLDER, with a folder of seeds
// for each target. A finding ends the program (fuzz.hpp). The targets themselves run with libFuzzer
// under sanitizers (test/sanitizers.sh): there this file is the entry of the one that
// TRIREME_FUZZ_TARGET names.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "fuzz.hpp"

namespace {

using namespace trireme::fuzz;
const std::map<std::string, int (*)(const std::uint8_t*, std::size_t)> kTargets = {
    {"checksums", FuzzChecksums},  {"config", FuzzConfig},           {"deck", FuzzDeck},
    {"run_record", FuzzRunRecord}, {"safetensors", FuzzSafetensors}, {"token_file", FuzzTokenFile}};

}  // namespace

#ifdef TRIREME_FUZZ_TARGET
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto target = kTargets.at(TRIREME_FUZZ_TARGET);
  return target(data, size);
}
#else
int main(int count, char** words) {
  if (count != 2) return 2;
  for (const auto& [name, target] : kTargets) {
    int seeds = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(std::filesystem::path(words[1]) / name)) {
      std::fprintf(stderr, "%s\n",
                   entry.path().c_str());  // the last one is the one that ended the program
      std::ifstream file(entry.path(), std::ios::binary);
      const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
      target(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
      ++seeds;
    }
    std::printf("%s: %d seeds\n", name.c_str(), seeds);
    if (seeds == 0) return 1;
  }
  return 0;
}
#endif
