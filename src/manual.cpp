// Writes the manual page, trireme(1), when Trireme is built: trireme_manual FILE DATE.
#include <cstdio>
#include <exception>
#include <fstream>

#include "trireme/app/sources.hpp"
#include "trireme/base/program.hpp"
#include "trireme/deck/schema.hpp"
#include "trireme/tasks/tasks.hpp"

int main(int argc, char** argv) {
  using namespace trireme;
  if (argc != 3) {
    std::fputs("usage: trireme_manual FILE DATE\n", stderr);
    return 2;
  }
  try {
    const std::string page = deck::ManualPage(
        tasks::DeclareAll(), {.version = Version(), .date = argv[2], .help = app::HelpText()});
    std::ofstream file(argv[1], std::ios::binary);
    file << page;
    file.close();
    if (file) return 0;
    std::fprintf(stderr, "trireme_manual: %s cannot be written\n", argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "trireme_manual: %s\n", error.what());
  }
  return 1;
}
