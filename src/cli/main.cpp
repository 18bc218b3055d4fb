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

/// Opens descriptors 0 to 2 if they are closed: otherwise the next opened file gets their numbers, and output goes into
/// it. Reading and writing them still fails.
void occupy_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) == -1) (void)::open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
  }
}

/// Ends the program like other failed reads if a mapped file became shorter or its disk failed. Allocates nothing.
void end_at_failed_read(int) {
  constexpr char kText[] =
      "error: a file that was being read became shorter, or its disk failed. Nothing more was written; run the same "
      "command again when the file is whole\n";
  (void)!::write(STDERR_FILENO, kText, sizeof kText - 1);
  ::_exit(static_cast<int>(lora_train::ExitCode::kIo));
}

/// The handler of the run-time library, which names the exception and aborts.
std::terminate_handler abort_with_name;

/// Handles out-of-memory that nothing can catch (in a thread, in an initialiser of LibTorch) like any other. Allocates
/// nothing.
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
  // A closed pipe must not end a run: writing to it fails with EPIPE, which callers check or ignore.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);  // neither must a file at its limit (ulimit -f): EFBIG
  std::signal(SIGBUS, end_at_failed_read);
  abort_with_name = std::set_terminate(end_at_uncaught);
  return lora_train::cli::run_program(std::vector<std::string>(argv + 1, argv + argc));
}
