// A slow disk for tests (LD_PRELOAD): every fsync takes SLOW_SYNC_MS milliseconds more, so that a process that is killed
// at random is often inside a save.
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

extern "C" int fsync(int fd) {
  const char* ms = std::getenv("SLOW_SYNC_MS");
  if (ms != nullptr) std::this_thread::sleep_for(std::chrono::milliseconds(std::atoi(ms)));
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
