// How the ranks of a job find each other, and notice that the process of one has ended.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lora_train/launch/world.h"

namespace lora_train::ranks {

/// The file in which rank 0 says where it listens; removed with the object, so that no later job of the same name reads it.
class PublishedAddress {
 public:
  /// Throws IoError.
  PublishedAddress(std::filesystem::path file, const std::string& text);
  ~PublishedAddress();
  PublishedAddress(const PublishedAddress&) = delete;
  PublishedAddress& operator=(const PublishedAddress&) = delete;
  const std::filesystem::path& file() const { return file_; }

 private:
  std::filesystem::path file_;
};

struct Rendezvous {
  c10::intrusive_ptr<c10d::Store> store;        ///< of this job alone: keys and values of all its ranks
  std::string host;                             ///< where the store is, "127.0.0.1" if all ranks are on one host
  std::unique_ptr<PublishedAddress> published;  ///< of rank 0, if there is one; to be kept until all have met
};

/// Throws as connect() of connect.h does. Rank 0 hosts the store unless torchrun's agent does: it dies with rank 0.
Rendezvous meet(const launch::World& world, const std::filesystem::path& shared_folder,
                std::chrono::milliseconds timeout);

/// In the store: own_process() of a rank that has met the others.
std::string process_key(int rank);

/// Returns once every rank has met. Throws DeviceError naming those that have not within `timeout`; PeerError when one has ended
/// meanwhile; StopError on a stop request, here or of another rank.
void wait_for_all(const launch::World& world, const Rendezvous& place, std::chrono::milliseconds timeout);

/// For a rank whose connection to the others has failed: throws PeerError when one of them has ended, StopError when one was asked
/// to stop. Returns after a second in which neither was to be seen.
void look_for_ends(const launch::World& world, const Rendezvous& place);

/// The numeric address of the interface through which this host reaches `host`, "127.0.0.1" when that is this host. Sends nothing.
/// Throws DeviceError if the name or the route is unknown.
std::string local_address_towards(const std::string& host);

/// True of 127.0.0.0/8 and ::1.
bool is_loopback(const std::string& address);

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
