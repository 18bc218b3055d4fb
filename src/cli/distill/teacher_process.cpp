#include "teacher_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"

namespace lora_train::cli {
namespace {

constexpr std::chrono::seconds kGrace{15};

/// The child: between fork() and exec() it makes system calls alone.
[[noreturn]] void become_server(const char* command, int output, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (::getppid() != parent || ::dup2(null, STDIN_FILENO) < 0) ::_exit(127);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  ::execl("/bin/sh", "sh", "-c", command, nullptr);
  ::_exit(127);
}

}  // namespace

TeacherProcess::TeacherProcess(const std::string& command, std::filesystem::path output) : output_(std::move(output)) {
  const int fd = ::open(output_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) fail_with(output_, "cannot open the log of the teacher");
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) become_server(command.c_str(), fd, parent);
  const int error = errno;
  ::close(fd);
  if (pid_ < 0) fail_with("--start-teacher", "cannot start a process", error);
  ::setpgid(pid_, pid_);  // both sides set it: a signal may come before the child has
}

TeacherProcess::~TeacherProcess() {
  if (!is_group_left()) return;
  log_info("ending the teacher");
  ::kill(-pid_, SIGTERM);
  const auto deadline = std::chrono::steady_clock::now() + kGrace;
  while (is_group_left() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  if (!is_group_left()) return;
  log_warning("the teacher did not end within 15 s of SIGTERM and is killed");
  ::kill(-pid_, SIGKILL);
  if (!end_) ::waitpid(pid_, nullptr, 0);
}

std::optional<std::string> TeacherProcess::end() {
  int status = 0;
  if (!end_ && ::waitpid(pid_, &status, WNOHANG) == pid_) {
    end_ = WIFSIGNALED(status) ? "signal " + std::to_string(WTERMSIG(status))
                               : "exit code " + std::to_string(WEXITSTATUS(status));
  }
  return end_;
}

bool TeacherProcess::is_group_left() {
  end();
  return ::kill(-pid_, 0) == 0;
}

std::string TeacherProcess::last_lines(std::size_t count) const {
  std::string text = trimmed(read_file(output_));
  std::size_t begin = text.size();
  for (std::size_t i = 0; i < count && begin != std::string::npos && begin > 0; ++i)
    begin = text.rfind('\n', begin - 1);
  if (begin != std::string::npos) text.erase(0, begin + (text[begin] == '\n' ? 1 : 0));
  std::string lines;
  for (const char c : "\n" + text) lines += c == '\n' ? std::string("\n  ") : std::string(1, c);
  return text.empty() ? "" : lines;
}

}  // namespace lora_train::cli
