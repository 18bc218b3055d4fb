// Runs a program and gives back what it wrote and how it ended.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/temporary_folder.h"

extern char** environ;

namespace lora_train::testing_support {

struct CommandResult {
  int exit_code = -1;  ///< 128 + n when signal n ended it
  std::string out, err;
};

struct CommandOptions {
  std::map<std::string, std::string> environment = {};  ///< on top of ours; an empty value removes the variable
  bool close_stdout_reader = false;                     ///< stdout is a pipe that nobody reads: writing gives EPIPE
  bool close_stderr_reader = false;
};

namespace run_command_detail {

inline std::vector<std::string> environment_with(const std::map<std::string, std::string>& changes) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    variables[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  }
  for (const auto& [name, value] : changes) variables[name] = value;
  std::vector<std::string> lines;
  for (const auto& [name, value] : variables) {
    if (!value.empty()) lines.push_back(name + "=" + value);
  }
  return lines;
}

inline std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (auto& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

inline std::string text_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

// Sends descriptor `target` of the child to a file, or into a pipe without a reader.
inline void redirect(posix_spawn_file_actions_t& actions, int target, const std::filesystem::path& file,
                     bool is_broken) {
  if (!is_broken) {
    posix_spawn_file_actions_addopen(&actions, target, file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    return;
  }
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("pipe");
  ::close(ends[0]);
  posix_spawn_file_actions_adddup2(&actions, ends[1], target);  // the parent's copy stays open; nobody reads it
}

}  // namespace run_command_detail

/// `command[0]` is looked up in PATH. stdin is /dev/null.
inline CommandResult run_command(std::vector<std::string> command, const CommandOptions& options = {}) {
  namespace detail = run_command_detail;
  const TemporaryFolder folder;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  detail::redirect(actions, STDOUT_FILENO, folder / "out", options.close_stdout_reader);
  detail::redirect(actions, STDERR_FILENO, folder / "err", options.close_stderr_reader);
  auto environment = detail::environment_with(options.environment);
  pid_t child = -1;
  const int failed = ::posix_spawnp(&child, command[0].c_str(), &actions, nullptr, detail::pointers_to(command).data(),
                                    detail::pointers_to(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) throw std::runtime_error("cannot start " + command[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return {code, detail::text_of(folder / "out"), detail::text_of(folder / "err")};
}

}  // namespace lora_train::testing_support
