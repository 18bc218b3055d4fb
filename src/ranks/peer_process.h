// The process of another rank, watched by a descriptor where it is on this host.
#pragma once

#include <string>

namespace lora_train::ranks {

/// Names this process to processes that see its number, in text for the store.
std::string own_process();

class PeerProcess {
 public:
  /// `named`: own_process() of the other rank.
  explicit PeerProcess(const std::string& named);
  ~PeerProcess();
  PeerProcess(PeerProcess&& other) noexcept;
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  /// Whether this process sees that one; false on another host or in another container.
  bool is_here() const { return fd_ >= 0 || had_ended_; }
  bool has_ended() const;
  /// Readable once it has ended; -1 where there is nothing to wait for.
  int fd() const { return fd_; }
  long pid() const { return pid_; }

 private:
  long pid_ = 0;
  int fd_ = -1;
  bool had_ended_ = false;
};

}  // namespace lora_train::ranks
