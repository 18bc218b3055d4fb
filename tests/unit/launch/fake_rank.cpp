// fake_rank N GRACE_S CASE [FIFO]: starts N ranks of itself as --nproc does. A rank does what CASE says; ranks meet at the FIFO.
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "lora_train/launch/local_ranks.h"

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

sigset_t block(std::initializer_list<int> numbers) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int number : numbers) ::sigaddset(&set, number);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  return set;
}

/// Rank 0 returns once every other rank has called it.
void meet(int rank, int num_ranks, const std::string& fifo) {
  const int fd = ::open(fifo.c_str(), O_RDWR | O_CLOEXEC);
  char byte = 'x';
  for (int i = 1; rank == 0 && i < num_ranks; ++i) (void)!::read(fd, &byte, 1);
  if (rank != 0) (void)!::write(fd, &byte, 1);
}

/// Ctrl-C, then SIGUSR1 to the launcher: 75 where each comes once, and from the launcher.
int count_signals(int rank, int num_ranks, const std::string& fifo) {
  const sigset_t set = block({SIGINT, SIGUSR1});
  for (const int number : {SIGINT, SIGUSR1}) {
    meet(rank, num_ranks, fifo);
    if (rank == 0) ::kill(number == SIGINT ? -::getpgid(::getppid()) : ::getppid(), number);
    siginfo_t info;
    if (::sigwaitinfo(&set, &info) != number || info.si_pid != ::getppid()) return 9;
  }
  return 75;
}

int run_rank(const std::string& name, const std::string& fifo) {
  ::alarm(20);  // so long waits a test that fails
  const int rank = std::stoi(variable("RANK")), num_ranks = std::stoi(variable("WORLD_SIZE"));
  if (name == "environment") {
    const std::string text = variable("RANK") + " of " + variable("WORLD_SIZE") + ", local " + variable("LOCAL_RANK") +
                             " of " + variable("LOCAL_WORLD_SIZE") + ", threads " + variable("OMP_NUM_THREADS") +
                             (::getpgrp() == ::getpid() ? ", own group" : ", shared group") +
                             (::access(variable("LORA_TRAIN_JOB_FOLDER").c_str(), W_OK) == 0 ? ", folder" : "");
    std::puts(text.c_str());
  } else if (name == "output" && rank == 0) {
    std::fputs("result\n", stdout);
  } else if (name == "output") {
    std::fputs("one\n[rank 1] two\n\nthree", stderr);
  } else if (name == "signals") {
    return count_signals(rank, num_ranks, fifo);
  } else if (name == "early") {  // no handler yet
    meet(rank, num_ranks, fifo);
    if (rank == 0) ::kill(::getppid(), SIGTERM);
    ::pause();
  } else if (name == "fail" || name == "die") {  // the others never end
    if (rank == 1 && name == "die") std::raise(SIGKILL);
    if (rank == 1) return 5;
    std::signal(SIGALRM, [](int) {});
    ::pause();
    std::fputs("was not killed\n", stderr);
  } else if (name == "first") {  // rank 0 fails once rank 1 is gone
    const int fd = ::open(fifo.c_str(), O_RDWR);
    pid_t other = ::getpid();
    if (rank == 1) return ::write(fd, &other, sizeof other) == sizeof other ? 3 : 9;
    if (::read(fd, &other, sizeof other) != sizeof other) return 9;
    while (::kill(other, 0) == 0) ::sched_yield();
    return 6;
  } else if (name == "orphans") {
    const sigset_t set = block({SIGTERM, SIGALRM});
    meet(rank, num_ranks, fifo + ".ready");
    if (rank == 0) ::kill(::getppid(), SIGKILL);
    siginfo_t info;
    const char byte = ::sigwaitinfo(&set, &info) == SIGTERM ? 'T' : 'x';
    return ::write(::open(fifo.c_str(), O_WRONLY), &byte, 1) == 1 ? 0 : 9;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argv[3], fifo = argc > 4 ? argv[4] : "";
  if (!variable(lora_train::launch::kJobFolderVariable).empty()) return run_rank(name, fifo);
  ::setpgid(0, 0);  // as a shell does, so that what the terminal sends reaches no test
  return lora_train::launch::run_local_ranks(
      {std::vector<std::string>(argv, argv + argc), std::stoi(argv[1]), std::stod(argv[2])});
}
