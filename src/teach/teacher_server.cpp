#include "lora_train/teach/teacher_server.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <thread>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/host_name.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/device/gpu.h"
#include "lora_train/hub/http/client.h"
#include "lora_train/hub/http/url.h"

namespace lora_train::teach {
namespace {

constexpr std::chrono::seconds kGrace{15};

/// The child process: between fork() and exec() it only makes system calls.
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

using Clock = std::chrono::steady_clock;

/// "host" and "8000" from "http://host:8000/v1".
std::pair<std::string, std::string> host_and_port(const std::string& url) {
  const std::string origin = hub::origin_of(url);
  const std::size_t begin = std::min(origin.find("://") + 3, origin.size()), end = origin.rfind(':');
  if (end == std::string::npos || end < begin) return {};
  return {origin.substr(begin, end - begin), origin.substr(end + 1)};
}

/// Why the server cannot be used; empty if it can. If the server has no /health, only its model list counts.
std::string problem_of(const std::string& url, hub::Client& client) {
  const char* const key = std::getenv("OPENAI_API_KEY");
  const std::string health = url.substr(0, url.size() - std::string("/v1").size()) + "/health";
  for (const std::string& address : {health, url + "/models"}) {
    hub::Request request;
    request.url = address;
    request.bearer = key == nullptr ? "" : key;
    try {
      const int status = client.send(request).status;
      if (status >= 500) return fmt::format("HTTP {} from {}", status, hub::shown_url(address));
    } catch (const hub::TransferError& error) {
      return error.message();
    }
  }
  return {};
}

/// "vllm serve ORG/NAME --tensor-parallel-size 4 ...", for a shell. MODEL if no model is named.
std::string launch_line(const ServerOptions& options, std::int64_t num_gpus) {
  return shell_line({"vllm", "serve", options.model.empty() ? "MODEL" : options.model, "--tensor-parallel-size",
                     std::to_string(num_gpus), "--max-model-len", std::to_string(options.max_model_len), "--dtype",
                     options.dtype, "--gpu-memory-utilization", fmt::format("{:g}", options.gpu_memory_utilization),
                     "--port", host_and_port(options.url).second});
}

}  // namespace

/// Runs `command` in a shell, in its own process group, with its output appended to a file. The destructor ends the
/// whole group: SIGTERM, and SIGKILL after 15 s. The child gets SIGTERM when this process dies. Not thread-safe;
/// construct and use it in the main thread.
class TeacherProcess {
 public:
  /// Throws IoError if it cannot be started.
  TeacherProcess(const std::string& command, std::filesystem::path output) : output_(std::move(output)) {
    const int fd = ::open(output_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) fail_with(output_, "cannot open the log of the teacher");
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ == 0) become_server(command.c_str(), fd, parent);
    const int error = errno;
    ::close(fd);
    if (pid_ < 0) fail_with("--start-teacher", "cannot start a process", error);
    ::setpgid(pid_, pid_);  // set on both sides: a signal may come before the child sets it
  }

  ~TeacherProcess() {
    if (!is_group_left()) return;
    log_info("ending the teacher");
    ::kill(-pid_, SIGTERM);
    const auto deadline = std::chrono::steady_clock::now() + kGrace;
    while (is_group_left() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (!is_group_left()) return;
    log_warning("the teacher did not end within 15 s of SIGTERM; killing it");
    ::kill(-pid_, SIGKILL);
    if (!end_) ::waitpid(pid_, nullptr, 0);
  }

  TeacherProcess(const TeacherProcess&) = delete;
  TeacherProcess& operator=(const TeacherProcess&) = delete;

  /// "exit code 1" or "signal 9" once it has ended; nothing while it runs.
  std::optional<std::string> end() {
    int status = 0;
    if (!end_ && ::waitpid(pid_, &status, WNOHANG) == pid_) {
      end_ = WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                                 : fmt::format("exit code {}", WEXITSTATUS(status));
    }
    return end_;
  }

  /// The last lines of its output, indented.
  std::string last_lines(std::size_t count) const {
    std::string text = trimmed(read_file(output_));
    std::size_t begin = text.size();
    for (std::size_t i = 0; i < count && begin != std::string::npos && begin > 0; ++i)
      begin = text.rfind('\n', begin - 1);
    if (begin != std::string::npos) text.erase(0, begin + (text[begin] == '\n' ? 1 : 0));
    std::string lines;
    for (const char c : "\n" + text) lines += c == '\n' ? std::string("\n  ") : std::string(1, c);
    return text.empty() ? "" : lines;
  }

 private:
  bool is_group_left() {
    end();
    return ::kill(-pid_, 0) == 0;
  }

  std::filesystem::path output_;
  pid_t pid_ = -1;
  std::optional<std::string> end_;
};

bool is_local(const std::string& url) {
  const std::string host = host_and_port(url).first;
  return host == "localhost" || host.starts_with("127.") || host == "[::1]" || host == "0.0.0.0" ||
         host == lower_case(host_name());
}

TeacherServer::TeacherServer(ServerOptions options) : options_(std::move(options)) {}

TeacherServer::~TeacherServer() = default;

std::int64_t TeacherServer::num_gpus() const {
  if (options_.tensor_parallel_size > 0) return options_.tensor_parallel_size;
  if (device::nvidia_device_nodes().empty()) return 1;
  return std::max<std::int64_t>(1, std::ssize(device::find_gpus().gpus));
}

void TeacherServer::get_ready() {
  if (process_ != nullptr) return;
  hub::ClientOptions once;
  if (options_.starts) once.num_retries = 0;
  hub::Client client(once);
  const std::string problem = problem_of(options_.url, client);
  if (problem.empty()) {
    if (options_.starts) log_info("the teacher at {} is already running", hub::shown_url(options_.url));
    return;
  }
  if (!options_.starts) {
    throw IoError(hub::shown_url(options_.url),
                  "the teacher does not answer (" + problem + "). Start it on its machine:\n  " +
                      launch_line(options_, num_gpus()) + "\nor let distill start it on this machine: --start-teacher");
  }
  const std::string command = options_.command.empty() ? launch_line(options_, num_gpus()) : options_.command;
  log_info("starting the teacher: {}; its output: {}", command, options_.log.string());
  process_ = std::make_unique<TeacherProcess>(command, options_.log);
  wait_for_start();
}

void TeacherServer::wait_for_start() {
  hub::ClientOptions once;
  once.num_retries = 0;
  hub::Client client(once);
  const auto begin = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  for (double next_line_s = 10;;) {
    throw_if_stop_requested();
    if (const auto end = process_->end()) {
      throw IoError(options_.log.string(), "the teacher ended ({}) before it answered. Its last lines:{}", *end,
                    process_->last_lines(8));
    }
    const std::string problem = problem_of(options_.url, client);
    if (problem.empty()) break;
    if (seconds() > options_.timeout_s) {
      throw IoError(options_.log.string(),
                    "the teacher has not answered after " + format_duration(seconds()) + " (" + problem +
                        "); raise --teacher-timeout to wait longer. Its last lines:" + process_->last_lines(8));
    }
    if (seconds() >= next_line_s) {
      log_info("waiting for the teacher, {}; its last line:{}", format_duration(seconds()), process_->last_lines(1));
      next_line_s += 10;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  log_info("the teacher answered after " + format_duration(seconds()));
}

void TeacherServer::log_end() const {
  if (process_ == nullptr) return;
  if (const auto end = process_->end())
    log_error("the teacher has ended ({}). Its last lines:{}", *end, process_->last_lines(8));
}

}  // namespace lora_train::teach
