#include <csignal>
#include <string>
#include <vector>

#include "program.h"

int main(int argc, char** argv) {
  // A closed pipe must not end a run: writing to it then fails with EPIPE, which is looked at or ignored.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // nor a file at its limit (ulimit -f): EFBIG
  return lora_train::app::run_program(std::vector<std::string>(argv + 1, argv + argc));
}
