#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "lora_train/base/error.h"
#include "program.h"

namespace {

/// Takes the descriptors 0 to 2 where they are closed: otherwise the next file that is opened gets their numbers, and what is
/// printed goes into it. Reading and writing them still fails.
void occupy_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) == -1) (void)::open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
  }
}

/// A mapped file that became shorter, or whose disk failed, ends the program as other failed reads do. Nothing here allocates.
void end_at_failed_read(int) {
  constexpr char kText[] =
      "error: a file that was being read became shorter, or its disk failed. Nothing more was written; run the same "
      "command "
      "again when the file is whole\n";
  (void)!::write(STDERR_FILENO, kText, sizeof kText - 1);
  ::_exit(static_cast<int>(lora_train::ExitCode::kIo));
}

/// The handler of the run-time library, which names the exception and aborts.
std::terminate_handler abort_with_name;

/// No memory where nothing can catch it (in a thread, in an initialiser of LibTorch) ends as elsewhere. Nothing here allocates.
void end_at_uncaught() {
  constexpr char kText[] =
      "error: out of memory on the host. Free some, or raise ulimit -v; in training, lower micro_batch_size or "
      "max_seq_len\n";
  try {
    if (std::current_exception() != nullptr) throw;
  } catch (const std::bad_alloc&) {
    (void)!::write(STDERR_FILENO, kText, sizeof kText - 1);
    ::_exit(static_cast<int>(lora_train::ExitCode::kDevice));
  } catch (...) {
  }
  abort_with_name();
}

}  // namespace

int main(int argc, char** argv) {
  occupy_standard_descriptors();
  // A closed pipe must not end a run: writing to it then fails with EPIPE, which is looked at or ignored.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // nor a file at its limit (ulimit -f): EFBIG
  std::signal(SIGBUS, end_at_failed_read);
  abort_with_name = std::set_terminate(end_at_uncaught);
  return lora_train::cli::run_program(std::vector<std::string>(argv + 1, argv + argc));
}
