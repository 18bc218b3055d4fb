#include "rendezvous.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <tuple>
#include <utility>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/host_name.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/launch/local_ranks.h"
#include "lora_train/launch/world.h"

namespace lora_train::ranks {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPollInterval(5);
constexpr std::chrono::seconds kTimeToTell(5), kTimeToLearn(1), kTimeToAnswer(2);
constexpr const char* kLoopback = "127.0.0.1";

std::string name_of(const launch::World& world) {
  return fmt::format("rank {} of {} ({})", world.rank, world.size, to_string(world.launcher));
}

struct Address {
  std::string host;
  int port = 0;
};

fs::path published_file(const launch::World& world, const fs::path& shared_folder) {
  fs::path folder = shared_folder;
  if (world.is_on_one_host()) folder = world.job_folder.empty() ? fs::temp_directory_path() : world.job_folder;
  if (folder.empty()) {
    throw ConfigError("MASTER_ADDR", "is not set, and the nodes share no folder. Set MASTER_ADDR and MASTER_PORT.");
  }
  return folder / (fmt::format("lora-train.{}.address", world.job));
}

/// Writes the file that read_address() reads. Destroying the result removes it.
std::shared_ptr<void> publish(const fs::path& file, const Address& address) {
  fs::create_directories(file.parent_path());  // the output folder of a new run
  write_file_atomic(file, fmt::format("{} {}", address.host, address.port));
  return {nullptr, [file](void*) {
            std::error_code ignored;
            fs::remove(file, ignored);
          }};
}

/// Returns nothing if there is no address yet.
std::optional<Address> read_address(const fs::path& file, bool is_on_one_host) {
  struct stat status {};
  const bool is_there = ::stat(file.c_str(), &status) == 0;
  // Other users may write to the folder for temporary files. Between nodes, file systems change the owner.
  if (!is_there || (is_on_one_host && status.st_uid != ::geteuid())) return std::nullopt;
  const std::string text = read_file(file);
  const std::size_t blank = text.find(' ');
  if (blank == std::string::npos) return std::nullopt;
  return Address{text.substr(0, blank), std::atoi(text.c_str() + blank + 1)};
}

[[noreturn]] void lose(const launch::World& world, const std::string& who, const std::string& what) {
  const std::string where = who.empty() ? "torchrun's agent" : fmt::format("{} of {}", who, world.size);
  const std::string message = what + ", before all ranks had started";
  log_error("{}: {}", where, message);
  throw PeerError(where, message, "device", ExitCode::kDevice);
}

std::string rank_name(int rank) { return fmt::format("rank {}", rank); }

/// Throws if --nproc has seen a rank end.
void throw_if_rank_ended(const launch::World& world) {
  const auto ended = launch::find_ended_rank(world);
  if (!ended || ended->rank == world.rank) return;
  if (ended->exit_code == static_cast<int>(ExitCode::kStopped))
    throw StopError(rank_name(ended->rank), "was asked to stop");
  if (ended->signal > 0)
    lose(world, rank_name(ended->rank), fmt::format("process {} was killed (signal {})", ended->pid, ended->signal));
  throw PeerError(rank_name(ended->rank), "has ended", "device",
                  static_cast<ExitCode>(ended->exit_code));  // it has reported why
}

/// Waits for other ranks that cannot be reached yet.
class Wait {
 public:
  Wait(const launch::World& world, std::chrono::milliseconds timeout) : world_(world), end_(Clock::now() + timeout) {}

  /// Pauses; returns false once time is up. A stop request leaves a little time to tell the others, then throws
  /// StopError. Throws PeerError if a rank has ended meanwhile.
  bool goes_on() {
    throw_if_rank_ended(world_);
    if (!is_stopping_ && !requested_stop().empty()) {
      is_stopping_ = true;
      end_ = std::min(end_, Clock::now() + kTimeToTell);
    }
    if (Clock::now() >= end_) {
      throw_if_stop_requested();
      return false;
    }
    std::this_thread::sleep_for(kPollInterval);
    return true;
  }

 private:
  const launch::World& world_;
  Clock::time_point end_;
  bool is_stopping_ = false;
};

Address wait_for_address(const launch::World& world, const fs::path& file, std::chrono::milliseconds timeout) {
  for (Wait wait(world, timeout); wait.goes_on();) {
    if (const auto address = read_address(file, world.is_on_one_host())) return *address;
  }
  throw DeviceError(name_of(world), "rank 0 did not write {} within {} s. Has it ended, or does it see another folder?",
                    file.string(), timeout.count() / 1000);
}

/// Opens a listening socket; returns it and its port. The store's own socket would listen on all interfaces, also for
/// IPv6, and c10d asks the DNS for the names of IPv4 clients of such a socket, which takes 5 s without a DNS server.
std::pair<int, std::uint16_t> listen_on_loopback(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  socklen_t size = sizeof address;
  const int yes = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (fd < 0 || ::bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(fd, SOMAXCONN) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    fail_with(fmt::format("127.0.0.1, port {}", port), "cannot listen there");
  }
  return {fd, ntohs(address.sin_port)};
}

c10::intrusive_ptr<c10d::TCPStore> host_store(const Address& address) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(address.port);
  options.isServer = true;
  options.waitWorkers = false;
  if (address.host == kLoopback || address.host == "localhost")
    std::tie(options.masterListenFd, options.port) = listen_on_loopback(address.port);
  return c10::make_intrusive<c10d::TCPStore>(address.host, options);
}

/// Why the address does not answer; empty if it does.
std::string why_no_answer(const Address& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) return ::gai_strerror(error);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
  std::string reason;
  for (const addrinfo* target = found; target != nullptr; target = target->ai_next) {
    const Descriptor probe(::socket(target->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    int status = ::connect(probe.get(), target->ai_addr, target->ai_addrlen) == 0 ? 0 : errno;
    pollfd connecting{probe.get(), POLLOUT, 0};
    if (status == EINPROGRESS) {
      socklen_t size = sizeof status;
      const bool has_answered = ::poll(&connecting, 1, 1000 * static_cast<int>(kTimeToAnswer.count())) == 1;
      if (!has_answered || ::getsockopt(probe.get(), SOL_SOCKET, SO_ERROR, &status, &size) != 0) status = ETIMEDOUT;
    }
    if (status == 0) return "";
    reason = std::strerror(status);
  }
  return reason;
}

/// c10d's own attempts are long and do not notice stops.
c10::intrusive_ptr<c10d::TCPStore> join_store(const launch::World& world, const Address& address,
                                              std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(address.port);
  options.waitWorkers = false;
  options.timeout = kTimeToAnswer;
  std::string reason;
  for (Wait wait(world, timeout); reason.empty() || wait.goes_on();) {
    reason = why_no_answer(address);
    if (!reason.empty()) continue;
    try {
      auto store = c10::make_intrusive<c10d::TCPStore>(address.host, options);
      store->setTimeout(timeout);
      return store;
    } catch (const c10::Error& error) {  // it disappeared meanwhile
      reason = error.what_without_backtrace();
    }
  }
  throw DeviceError(name_of(world),
                    "no answer at {}, port {}, within {} s: {}. Rank 0 listens there unless torchrun does; check "
                    "MASTER_ADDR and MASTER_PORT",
                    address.host, address.port, timeout.count() / 1000, reason);
}

/// The address that packets to `target` would be sent from; empty if there is no route.
std::string source_of_route(const addrinfo& target) {
  const Descriptor probe(::socket(target.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage local{};
  socklen_t size = sizeof local;
  std::array<char, 128> text{};
  // connect() on a datagram socket only looks up the route.
  const bool is_known = probe.is_open() && ::connect(probe.get(), target.ai_addr, target.ai_addrlen) == 0 &&
                        ::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&local), &size) == 0 &&
                        ::getnameinfo(reinterpret_cast<sockaddr*>(&local), size, text.data(), text.size(), nullptr, 0,
                                      NI_NUMERICHOST) == 0;
  return is_known ? text.data() : "";
}

std::string arrival_key(int rank) { return fmt::format("arrived/{}", rank); }
std::string left_key(int rank) { return fmt::format("left/{}", rank); }

/// The host of the store is gone. A process on this host may know why.
[[noreturn]] void lose_store(const launch::World& world) {
  for (const auto end = Clock::now() + kTimeToLearn; Clock::now() < end; std::this_thread::sleep_for(kPollInterval)) {
    throw_if_stop_requested();
    throw_if_rank_ended(world);
  }
  lose(world, world.has_agent_store ? "" : rank_name(0), "can no longer be reached");
}

/// The ranks that have arrived so far.
class Arrivals {
 public:
  Arrivals(const launch::World& world, const Rendezvous& place) : world_(world), store_(*place.store) {}

  /// The ranks that have not arrived.
  std::vector<std::string> missing() {
    std::vector<std::string> result;
    for (int rank = 0; rank < world_.size; ++rank) {
      if (processes_.contains(rank)) continue;
      if (store_.check({arrival_key(rank)})) {
        processes_.emplace(rank, PeerProcess(store_.get_to_str(process_key(rank))));
      } else {
        result.push_back(std::to_string(rank));
      }
    }
    return result;
  }

  /// The fate of the job, which every rank follows: kGo once all have arrived, unless one was asked to stop earlier.
  std::string decide(const std::string& wish) { return store_.compareSet(kFateKey, "", wish); }
  static constexpr const char* kGo = "go";

  void look_for_ends() {
    throw_if_rank_ended(world_);
    std::string fate = store_.check({kFateKey}) ? store_.get_to_str(kFateKey) : "";
    if (const std::string reason = requested_stop(); fate.empty() && !reason.empty()) fate = decide(reason);
    if (!fate.empty() && fate != kGo) throw StopError(fate, "asked to stop");
    for (const auto& [rank, process] : processes_) {
      if (rank != world_.rank && process.has_ended())
        lose(world_, rank_name(rank), fmt::format("process {} has ended without a word", process.pid()));
    }
  }

  /// Call it after a stop. The host of the store leaves last, so that the others learn of the stop.
  void leave_with_all() {
    store_.add(left_key(world_.rank), 1);
    if (world_.rank != 0 || world_.has_agent_store) return;
    const auto deadline = Clock::now() + kTimeToTell;
    const auto is_here = [&](const auto& arrived) {
      return !arrived.second.has_ended() && !store_.check({left_key(arrived.first)});
    };
    while (Clock::now() < deadline &&
           (!missing().empty() || std::any_of(processes_.begin(), processes_.end(), is_here))) {
      std::this_thread::sleep_for(kPollInterval);
    }
  }

 private:
  static constexpr const char* kFateKey = "fate";
  const launch::World& world_;
  c10d::Store& store_;
  std::map<int, PeerProcess> processes_;
};

/// The same only for processes that see each other's process numbers.
std::string process_space() {
  struct stat space {};
  const bool is_known = ::stat("/proc/self/ns/pid", &space) == 0;
  return fmt::format("{}/{}", launch::host_id(), is_known ? std::to_string(space.st_ino) : "");
}

}  // namespace

Rendezvous meet(const launch::World& world, const fs::path& shared_folder, std::chrono::milliseconds timeout) try {
  const bool is_server = world.rank == 0 && !world.has_agent_store;
  Rendezvous result;
  Address address{world.master_address, world.master_port};
  c10::intrusive_ptr<c10d::TCPStore> store;
  if (!address.host.empty()) {
    store = is_server ? host_store(address) : join_store(world, address, timeout);
  } else {
    const fs::path file = published_file(world, shared_folder);
    if (is_server) {
      address = {world.is_on_one_host() ? kLoopback : host_name(), 0};
      store = host_store(address);
      address.port = store->getPort();
      result.published = publish(file, address);
    } else {
      address = wait_for_address(world, file, timeout);
      store = join_store(world, address, timeout);
    }
  }
  result.host = world.is_on_one_host() ? kLoopback : address.host;
  result.store = c10::make_intrusive<c10d::PrefixStore>("lora-train/" + world.job, store);
  result.store->set(process_key(world.rank), own_process());
  if (result.store->add(arrival_key(world.rank), 1) != 1) {
    throw ConfigError(name_of(world),
                      "another process has this rank at {}, port {}. Give each job on a host its own MASTER_PORT.",
                      address.host, address.port);
  }
  return result;
} catch (const c10::Error& error) {
  throw DeviceError(name_of(world), std::string("cannot meet the other ranks: ") + error.what_without_backtrace());
}

void look_for_ends(const launch::World& world, const Rendezvous& place) try {
  Arrivals arrivals(world, place);
  arrivals.missing();
  for (const auto end = Clock::now() + kTimeToLearn; Clock::now() < end; std::this_thread::sleep_for(kPollInterval)) {
    arrivals.look_for_ends();
  }
} catch (const c10::Error&) {
  lose_store(world);
}

std::string process_key(int rank) { return fmt::format("process/{}", rank); }

void wait_for_all(const launch::World& world, const Rendezvous& place, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  Arrivals arrivals(world, place);
  std::vector<std::string> missing;
  try {
    do {
      missing = arrivals.missing();
      if (missing.empty() && arrivals.decide(Arrivals::kGo) == Arrivals::kGo) return;
      arrivals.look_for_ends();
      std::this_thread::sleep_for(kPollInterval);
    } while (Clock::now() < deadline);
  } catch (const StopError&) {
    try {
      arrivals.leave_with_all();
    } catch (const c10::Error&) {  // the store is gone: no one is left to tell
    }
    throw;
  } catch (const c10::Error&) {
    lose_store(world);
  }
  throw DeviceError(name_of(world), "rank {} did not arrive within {} s.", join(missing), timeout.count() / 1000);
}

std::string local_address_towards(const std::string& host) {
  for (const int family : {AF_INET, AF_INET6}) {  // all ranks must choose the same family
    addrinfo hints{};
    hints.ai_family = family;
    hints.ai_socktype = SOCK_DGRAM;
    addrinfo* found = nullptr;
    if (::getaddrinfo(host.c_str(), "9", &hints, &found) != 0) continue;
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
    if (const std::string address = source_of_route(*found); !address.empty()) return address;
  }
  throw DeviceError(host, "this name has no address, or there is no route to it");
}

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

std::string own_process() { return fmt::format("{} {}", process_space(), ::getpid()); }

PeerProcess::PeerProcess(const std::string& named) {
  const std::size_t blank = named.rfind(' ');
  pid_ = std::atol(named.c_str() + blank + 1);
  if (named.substr(0, blank) != process_space()) return;
  process_ = Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid_), 0)));
  had_ended_ = !process_.is_open() && errno == ESRCH;
}

bool PeerProcess::has_ended() const {
  pollfd process{fd(), POLLIN, 0};
  return had_ended_ || (process_.is_open() && ::poll(&process, 1, 0) == 1);
}

}  // namespace lora_train::ranks
