// Lets the ranks of a job find each other, and notice when the process of one has ended.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "lora_train/base/file.h"
#include "lora_train/launch/world.h"

namespace lora_train::ranks {

struct Rendezvous {
  c10::intrusive_ptr<c10d::Store> store;  ///< for this job alone: keys and values of all its ranks
  std::string host;                       ///< host of the store; "127.0.0.1" if all ranks are on one host
  /// On rank 0, or null: removes the file in which it publishes where it listens, so that no later job of the same name
  /// reads it. Keep it until all have met.
  std::shared_ptr<void> published;
};

/// Throws like connect() in connect.h. Rank 0 hosts the store, which dies with it, unless torchrun's agent does.
Rendezvous meet(const launch::World& world, const std::filesystem::path& shared_folder,
                std::chrono::milliseconds timeout);

/// The key in the store for own_process() of a rank that has met the others.
std::string process_key(int rank);

/// Returns once all ranks have met. Throws DeviceError naming those that have not within `timeout`; PeerError if one
/// has ended meanwhile; StopError on a stop request to this or another rank.
void wait_for_all(const launch::World& world, const Rendezvous& place, std::chrono::milliseconds timeout);

/// For a rank whose connection to the others has failed: throws PeerError if one of them has ended, StopError if one
/// was asked to stop. Returns after a second without either.
void look_for_ends(const launch::World& world, const Rendezvous& place);

/// The numeric address of the interface through which this host reaches `host`; "127.0.0.1" if that is this host. Sends
/// nothing. Throws DeviceError if the name or the route is unknown.
std::string local_address_towards(const std::string& host);

/// True for 127.0.0.0/8 and ::1.
bool is_loopback(const std::string& address);

/// Text for the store that names this process to processes which can see its number.
std::string own_process();

class PeerProcess {
 public:
  /// `named` is own_process() of the other rank.
  explicit PeerProcess(const std::string& named);

  /// True if this process can see the other one; false on another host or in another container.
  bool is_here() const { return process_.is_open() || had_ended_; }
  bool has_ended() const;
  /// A descriptor that is readable once the process has ended; -1 if there is nothing to wait for.
  int fd() const { return process_.get(); }
  long pid() const { return pid_; }

 private:
  long pid_ = 0;
  Descriptor process_;
  bool had_ended_ = false;
};

}  // namespace lora_train::ranks
