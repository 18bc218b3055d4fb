// Preloaded into a program of ours (tests/support/fork_server.py): its main() runs once for each request, every time in
// a process forked from one that has loaded its libraries. Loading LibTorch takes longer than most tests compute. From
// main() on, nothing differs from a program that was started; static destructors do not run, but a preloaded library's
// at_end_of_request() does.
//
// FORK_SERVER=SOCKET[:LIBRARY...]: a connected Unix stream socket, and libraries to load before the first fork.
// A request is a Header with the descriptors of stdin, stdout, stderr and the working directory, then its strings, each
// ended by a NUL. The answers are two int32: the process id, then the status of waitpid(). The end of the stream ends
// the server. A broken request aborts it: its client is a test of the same commit.
#include <dirent.h>
#include <dlfcn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

namespace {

using Main = int (*)(int, char**, char**);

struct Header {
  std::uint32_t num_bytes;      // of the strings
  std::uint32_t num_arguments;  // the first strings, the program among them; the rest is the environment
  std::uint32_t cpu_seconds;    // limit; 0: none
};

constexpr int kNumDescriptors = 4;  // stdin, stdout, stderr, working directory
using Descriptors = std::array<int, kNumDescriptors>;

Main real_main;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "fork server: %s: %s\n", what, std::strerror(errno));
  std::abort();
}

void read_all(int socket, void* to, std::size_t num_bytes) {
  for (auto* at = static_cast<char*>(to); num_bytes > 0;) {
    const ssize_t got = ::read(socket, at, num_bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) fail("a request ends early");
    at += got;
    num_bytes -= static_cast<std::size_t>(got);
  }
}

void answer(int socket, std::int32_t value) {
  if (::send(socket, &value, sizeof value, MSG_NOSIGNAL) != sizeof value) fail("nobody takes an answer");
}

// False at the end of the stream.
bool receive(int socket, Header& header, Descriptors& descriptors) {
  iovec part{&header, sizeof header};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof descriptors)> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got;
  do {
    got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL);
  } while (got < 0 && errno == EINTR);
  if (got == 0) return false;
  const cmsghdr* const sent = CMSG_FIRSTHDR(&message);
  if (got != sizeof header || sent == nullptr || sent->cmsg_len != CMSG_LEN(sizeof descriptors)) fail("no request");
  std::memcpy(descriptors.data(), CMSG_DATA(sent), sizeof descriptors);
  return true;
}

// Takes the place of a process that was just started with these descriptors and this limit.
void become_request(const Header& header, const Descriptors& descriptors) {
  if (::fchdir(descriptors[3]) != 0) fail("working directory");
  for (int fd = 0; fd < 3; ++fd) {
    if (::dup2(descriptors[static_cast<std::size_t>(fd)], fd) < 0) fail("standard stream");
  }
  for (const int fd : descriptors) ::close(fd);
  if (header.cpu_seconds > 0) {
    const rlimit limit{header.cpu_seconds, header.cpu_seconds};
    if (::setrlimit(RLIMIT_CPU, &limit) != 0) fail("limit of CPU time");
  }
}

[[noreturn]] void run_request(int socket, const Header& header, const Descriptors& descriptors, std::string& strings) {
  ::close(socket);
  become_request(header, descriptors);
  std::vector<char*> arguments, environment;
  for (char* at = strings.data(); at < strings.data() + strings.size(); at += std::strlen(at) + 1) {
    (arguments.size() < header.num_arguments ? arguments : environment).push_back(at);
  }
  arguments.push_back(nullptr);
  environment.push_back(nullptr);
  ::environ = environment.data();
  const int code = real_main(static_cast<int>(header.num_arguments), arguments.data(), environment.data());
  std::fflush(nullptr);
  if (void* const at_end = ::dlsym(RTLD_DEFAULT, "at_end_of_request")) reinterpret_cast<void (*)()>(at_end)();
  std::_Exit(code);  // LibTorch's destructors would copy its pages
}

// A forked process has only the thread that forked: a lock that another thread held would stay locked.
void refuse_threads() {
  int num_threads = 0;
  DIR* const tasks = ::opendir("/proc/self/task");
  if (tasks == nullptr) fail("/proc/self/task");
  for (const dirent* entry; (entry = ::readdir(tasks)) != nullptr;) num_threads += entry->d_name[0] != '.';
  ::closedir(tasks);
  if (num_threads != 1) fail("a library started a thread");
}

int serve(int socket) {
  for (Header header; true;) {
    Descriptors descriptors;
    if (!receive(socket, header, descriptors)) return 0;
    std::string strings(header.num_bytes, '\0');
    read_all(socket, strings.data(), strings.size());
    refuse_threads();
    const pid_t child = ::fork();
    if (child < 0) fail("fork");
    if (child == 0) run_request(socket, header, descriptors, strings);
    answer(socket, child);
    for (const int fd : descriptors) ::close(fd);
    int status = 0;
    while (::waitpid(child, &status, 0) < 0) {
      if (errno != EINTR) fail("waitpid");
    }
    answer(socket, status);
  }
}

int served_main(int argc, char** argv, char** environment) {
  const char* const setting = std::getenv("FORK_SERVER");
  if (setting == nullptr) return real_main(argc, argv, environment);
  std::istringstream parts(setting);
  std::string part;
  std::getline(parts, part, ':');
  const int socket = std::stoi(part);
  while (std::getline(parts, part, ':')) {
    if (::dlopen(part.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      std::fprintf(stderr, "fork server: %s\n", ::dlerror());
      std::abort();
    }
  }
  return serve(socket);
}

}  // namespace

// glibc's start of a program, which gets its main(). Runs after the constructors of all libraries.
extern "C" __attribute__((visibility("default"))) int __libc_start_main(Main program_main, int argc, char** argv,
                                                                        void (*init)(), void (*fini)(),
                                                                        void (*rtld_fini)(), void* stack_end) {
  using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
  const auto start = reinterpret_cast<Start>(::dlsym(RTLD_NEXT, "__libc_start_main"));
  real_main = program_main;
  return start(served_main, argc, argv, init, fini, rtld_fini, stack_end);
}
