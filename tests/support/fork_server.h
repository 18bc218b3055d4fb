// A main() that runs many times, each time in a process forked from one that has loaded its libraries: LibTorch takes longer to
// load than most requests take to compute (tests/parity/engine.py).
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

namespace lora_train::testing_support {

/// For each line of stdin, STDOUT_FILE \x1f STDERR_FILE \x1f ARGUMENT \x1f ...: a child runs `main` and its output goes to these
/// files. The answer is a line with its exit code, or minus the signal that it died of. Ends with stdin. Nothing may have
/// started a thread before.
inline int serve(int (*main)(int, char**), char* program) {
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<char*> fields{line.data()};
    for (char& c : line) {
      if (c == '\x1f') {
        c = '\0';
        fields.push_back(&c + 1);
      }
    }
    const pid_t child = ::fork();
    if (child == 0) {
      if (fields.size() < 2 || std::freopen(fields[0], "w", stdout) == nullptr ||
          std::freopen(fields[1], "w", stderr) == nullptr)
        std::_Exit(127);
      fields[1] = program;
      const int count = static_cast<int>(fields.size()) - 1;
      fields.push_back(nullptr);
      std::exit(main(count, fields.data() + 1));
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    std::printf("%d\n", WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace lora_train::testing_support
