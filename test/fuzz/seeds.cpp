// Every fuzz target on its seeds, in a plain build: seeds.cpp CORPUS, the folder with one folder
// for each target. A finding ends the program (fuzz.hpp). The targets themselves run with libFuzzer
// under sanitizers (test/sanitizers.sh).
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#define TARGET(name) int Fuzz_##name(const std::uint8_t* data, std::size_t size)
extern "C" {
TARGET(checksums);
TARGET(config);
TARGET(deck);
TARGET(run_record);
TARGET(safetensors);
TARGET(token_file);
}

int main(int count, char** words) {
  const std::map<std::string, int (*)(const std::uint8_t*, std::size_t)> targets = {
      {"checksums", Fuzz_checksums},
      {"config", Fuzz_config},
      {"deck", Fuzz_deck},
      {"run_record", Fuzz_run_record},
      {"safetensors", Fuzz_safetensors},
      {"token_file", Fuzz_token_file}};
  if (count != 2) return 2;
  for (const auto& [name, target] : targets) {
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
