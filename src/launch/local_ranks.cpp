#include "lora_train/launch/local_ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/device/host.h"

namespace lora_train::launch {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLongestLine = 1 << 16;  // longer lines are split

/// Reads the pipe of a rank and writes its lines to stderr, each prefixed with the rank. Does nothing without a pipe
/// (fd -1).
class RankOutput {
 public:
  /// Owns `fd`.
  RankOutput(int fd, int rank) : pipe_(fd), prefix_(fmt::format("[rank {}] ", rank)) {
    if (pipe_.is_open()) ::fcntl(fd, F_SETFL, O_NONBLOCK);
  }

  /// The descriptor for poll(); -1 once the rank has closed its end.
  int fd() const { return pipe_.get(); }

  /// Writes the available lines without waiting for more.
  void forward() {
    std::array<char, 4096> buffer;
    while (pipe_.is_open()) {
      const ssize_t count = ::read(fd(), buffer.data(), buffer.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN) return;
      if (count <= 0) {
        pipe_ = Descriptor();
        return;
      }
      rest_.append(buffer.data(), static_cast<std::size_t>(count));
      for (std::size_t end = rest_.find('\n'); end != std::string::npos; end = rest_.find('\n')) {
        write_line(rest_.substr(0, end));
        rest_.erase(0, end + 1);
      }
      if (rest_.size() > kLongestLine) write_line(std::exchange(rest_, {}));
    }
  }

  /// Like forward(), and also writes a last line without a newline.
  void finish() {
    forward();
    if (!rest_.empty()) write_line(std::exchange(rest_, {}));
  }

 private:
  void write_line(const std::string& line) const {
    if (!can_write_to_stderr()) return;
    // A closed stderr must not end training.
    write_all(STDERR_FILENO, fmt::format("{}{}\n", line.starts_with(prefix_) ? "" : prefix_, line));
  }

  Descriptor pipe_;
  std::string prefix_, rest_;
};

using Clock = std::chrono::steady_clock;

constexpr std::array kForwarded{SIGINT, SIGTERM, SIGUSR1, SIGHUP};
constexpr int kStopped = static_cast<int>(ExitCode::kStopped);

fs::path end_file(const fs::path& job_folder) { return job_folder / "ended"; }

class JobFolder {
 public:
  JobFolder() : path_((fs::temp_directory_path() / "lora-train-job-XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) fail_with(path_, "cannot create the job's folder");
  }
  ~JobFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  JobFolder(const JobFolder&) = delete;
  JobFolder& operator=(const JobFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Receives signals through a descriptor instead of handlers, until it is destroyed.
class SignalQueue {
 public:
  SignalQueue() {
    ::sigemptyset(&mask_);
    ::sigaddset(&mask_, SIGCHLD);
    for (const int number : kForwarded) {
      struct sigaction action {};
      ::sigaction(number, nullptr, &action);
      if (number != SIGHUP || action.sa_handler != SIG_IGN) ::sigaddset(&mask_, number);
    }
    std::signal(SIGCHLD, SIG_DFL);  // if ignored, the system reaps the ranks before waitpid() does
    ::sigprocmask(SIG_BLOCK, &mask_, &previous_);
    queue_ = Descriptor(::signalfd(-1, &mask_, SFD_NONBLOCK | SFD_CLOEXEC));
    if (!queue_.is_open()) fail_with("signalfd", "cannot be created");
  }
  ~SignalQueue() { restore_mask(); }
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int fd() const { return queue_.get(); }
  void restore_mask() const { ::sigprocmask(SIG_SETMASK, &previous_, nullptr); }
  std::optional<int> next() const {
    struct signalfd_siginfo info {};
    if (::read(fd(), &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return std::nullopt;
    return static_cast<int>(info.ssi_signo);
  }

 private:
  sigset_t mask_{}, previous_{};
  Descriptor queue_;
};

struct RankProcess {
  pid_t pid = -1;
  std::optional<int> exit_code;
  RankOutput output;
};

std::vector<std::string> environment_of(int rank, int num_ranks, const std::string& job_folder) {
  const int num_cores = device::count_physical_cores(device::usable_cpus());
  const std::string index = std::to_string(rank), count = std::to_string(num_ranks);
  std::vector<std::pair<std::string, std::string>> ours = {{"RANK", index},
                                                           {"WORLD_SIZE", count},
                                                           {"LOCAL_RANK", index},
                                                           {"LOCAL_WORLD_SIZE", count},
                                                           {kJobFolderVariable, job_folder}};
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    ours.emplace_back("OMP_NUM_THREADS", std::to_string(std::max(1, num_cores / num_ranks)));
  }
  std::vector<std::string> result;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const bool is_ours =
        std::any_of(ours.begin(), ours.end(), [&](const auto& entry) { return text.starts_with(entry.first + "="); });
    if (!is_ours) result.push_back(text);
  }
  for (const auto& [name, value] : ours) result.push_back(fmt::format("{}={}", name, value));
  return result;
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// Runs in the child. Between fork() and exec(), it only makes system calls.
[[noreturn]] void become_rank(char* const* command, char* const* environment, int output, pid_t launcher,
                              const SignalQueue& signals) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (::getppid() != launcher || ::dup2(null, STDIN_FILENO) < 0) ::_exit(127);
  if (output >= 0) {
    ::dup2(output, STDOUT_FILENO);
    ::dup2(output, STDERR_FILENO);
  }
  for (const int number : kForwarded) {  // until exec(), the launcher's handlers apply, which end nothing here
    struct sigaction action {};
    ::sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) std::signal(number, SIG_DFL);
  }
  signals.restore_mask();
  ::execve(command[0], command, environment);
  constexpr char kText[] = "error: --nproc cannot start a rank: execve failed\n";
  (void)!::write(STDERR_FILENO, kText, sizeof kText - 1);
  ::_exit(127);
}

class Ranks {
 public:
  explicit Ranks(const LocalRanks& settings) : settings_(settings) {}
  ~Ranks() {
    send(SIGKILL);
    for (const RankProcess& rank : processes_) {
      if (!rank.exit_code) ::waitpid(rank.pid, nullptr, 0);
    }
  }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  const std::vector<int>& forwarded() const { return forwarded_; }

  int run() {
    for (int rank = 0; rank < settings_.num_ranks; ++rank) start(rank);
    while (std::any_of(processes_.begin(), processes_.end(), [](const auto& rank) { return !rank.exit_code; })) {
      std::vector<pollfd> waited = {{signals_.fd(), POLLIN, 0}};
      for (const RankProcess& rank : processes_) waited.push_back({rank.output.fd(), POLLIN, 0});
      (void)::poll(waited.data(), waited.size(), milliseconds_left());
      for (RankProcess& rank : processes_) rank.output.forward();
      while (const auto number = signals_.next()) {
        if (*number == SIGCHLD) continue;
        forwarded_.push_back(*number);
        send(*number);
      }
      if (milliseconds_left() == 0) {
        send(SIGKILL);
        deadline_.reset();
      }
      reap();
    }
    for (RankProcess& rank : processes_) rank.output.finish();
    return first_failure_.value_or(is_stopped_ ? kStopped : 0);
  }

 private:
  void start(int rank) {
    std::array<int, 2> pipe{-1, -1};
    if (rank > 0 && ::pipe2(pipe.data(), O_CLOEXEC) != 0) fail_with("--nproc", "cannot open a pipe to a rank");
    RankProcess process{-1, std::nullopt, RankOutput(pipe[0], rank)};
    std::vector<std::string> variables = environment_of(rank, settings_.num_ranks, folder_.path());
    const auto arguments = pointers_to(settings_.command), environment = pointers_to(variables);
    const pid_t launcher = ::getpid();
    process.pid = ::fork();
    if (process.pid == 0) become_rank(arguments.data(), environment.data(), pipe[1], launcher, signals_);
    const int error = errno;
    if (pipe[1] >= 0) ::close(pipe[1]);
    if (process.pid < 0) fail_with("--nproc", fmt::format("cannot start rank {}", rank), error);
    ::setpgid(process.pid, process.pid);  // both sides set it: a signal may come before the child does
    processes_.push_back(std::move(process));
  }

  void send(int number) {
    for (const RankProcess& rank : processes_) {
      if (!rank.exit_code) ::kill(rank.pid, number);
    }
  }

  void reap() {
    for (RankProcess& rank : processes_) {
      int status = 0;
      if (rank.exit_code || ::waitpid(rank.pid, &status, WNOHANG) != rank.pid) continue;
      int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      // A rank that has just started does not handle signals yet.
      const bool is_early_stop = forwarded_.size() == 1 && signal == forwarded_.front();
      if (is_early_stop) signal = 0;
      const int code = is_early_stop ? kStopped : signal > 0 ? 128 + signal : WEXITSTATUS(status);
      rank.exit_code = code;
      if (code != 0) publish(rank, signal);
      if (code == kStopped) is_stopped_ = true;
      if (code == 0 || code == kStopped || first_failure_) continue;
      first_failure_ = code;
      deadline_ =
          Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(settings_.grace_s));
    }
  }

  /// Publishes the end of the first rank that ended.
  void publish(const RankProcess& rank, int signal) {
    if (std::exchange(is_end_published_, true)) return;
    try {
      write_file_atomic(end_file(folder_.path()),
                        fmt::format("{} {} {} {}", &rank - processes_.data(), *rank.exit_code, signal, rank.pid));
    } catch (const IoError&) {  // the others wait until killed
    }
  }

  /// Time until the remaining ranks are killed; -1 (no limit, for poll()) while nothing has failed.
  int milliseconds_left() const {
    if (!deadline_) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline_ - Clock::now());
    return static_cast<int>(std::max<std::chrono::milliseconds::rep>(0, left.count()));
  }

  LocalRanks settings_;
  JobFolder folder_;
  SignalQueue signals_;
  std::vector<RankProcess> processes_;
  std::vector<int> forwarded_;  ///< signal numbers
  std::optional<int> first_failure_;
  std::optional<Clock::time_point> deadline_;
  bool is_stopped_ = false, is_end_published_ = false;
};

}  // namespace

std::optional<EndedRank> find_ended_rank(const World& world) {
  if (world.launcher != Launcher::kNproc) return std::nullopt;
  const fs::path file = end_file(world.job_folder);
  std::error_code ignored;
  if (!fs::exists(file, ignored)) return std::nullopt;
  EndedRank ended;
  std::istringstream(read_file(file)) >> ended.rank >> ended.exit_code >> ended.signal >> ended.pid;
  return ended;
}

int run_local_ranks(const LocalRanks& settings, std::vector<int>* forwarded) {
  Ranks ranks(settings);
  const int code = ranks.run();
  if (forwarded != nullptr) *forwarded = ranks.forwarded();
  return code;
}

}  // namespace lora_train::launch
