// A server that runs as our child.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>

namespace lora_train::cli {

/// Runs `command` in a shell, in a process group of its own, with its output appended to a file. The destructor ends the whole group:
/// SIGTERM, and after 15 s SIGKILL. The child gets SIGTERM when this process dies. Not thread-safe; construct and use it in the
/// main thread.
class TeacherProcess {
 public:
  /// Throws IoError if it cannot be started.
  TeacherProcess(const std::string& command, std::filesystem::path output);
  ~TeacherProcess();
  TeacherProcess(const TeacherProcess&) = delete;
  TeacherProcess& operator=(const TeacherProcess&) = delete;

  /// "exit code 1" or "signal 9" once it has ended; nothing while it runs.
  std::optional<std::string> end();
  /// The last lines of its output, each with an indent.
  std::string last_lines(std::size_t count) const;

 private:
  bool is_group_left();

  std::filesystem::path output_;
  pid_t pid_ = -1;
  std::optional<std::string> end_;
};

}  // namespace lora_train::cli
