// Watches the other ranks and agrees with them, in threads of its own that never take part in a collective.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "lora_train/base/error.h"
#include "lora_train/launch/world.h"
#include "lora_train/ranks/connect.h"
#include "rendezvous.h"

namespace lora_train::ranks {

/// A gate that every collective passes and that counts them. On a stop, the control threads of all ranks close their
/// gates, compare the counts, and let through the collectives that at least one rank has entered.
class Gate {
 public:
  struct Position {
    std::int64_t num_passed = 0;
    bool in_steps = false;  ///< after begin_steps()
  };

  // For the thread that computes.

  /// Call it before a collective. Waits while the gate is closed. Throws the error of fail(), or StopError at the
  /// agreed place.
  void pass();
  void begin_steps();
  /// After a stop: nothing waits or stops here anymore.
  void open();
  /// Rethrows the error of fail(); waits at most this long for one.
  void rethrow_failure(std::chrono::milliseconds wait);

  // For the control threads.

  Position close();
  /// All ranks pass `last` collectives, then stop. Calls interrupt() (base/stop_request.h) once this rank has.
  void stop_after(std::int64_t last, const std::string& reason);
  /// Only the first error counts. Calls interrupt().
  void fail(const std::exception_ptr& error);
  bool has_failed();

 private:
  void stop_if_last();

  std::mutex mutex_;
  std::condition_variable changed_;
  Position position_;
  bool is_closed_ = false, is_open_for_good_ = false;
  std::optional<std::int64_t> last_;
  std::string reason_;
  std::exception_ptr failure_;
};

class Control {
 public:
  using Store = c10::intrusive_ptr<c10d::Store>;
  /// Calls to the current transport from the threads: abort() and asynchronous_error() of transport.h.
  struct Hooks {
    std::function<void()> abort;
    std::function<std::string()> asynchronous_error;
  };
  Control(const launch::World& world, const Store& store, Gate& gate, Hooks hooks, Patience patience);
  ~Control();

  /// Call it once every rank has been constructed.
  void start();
  /// Communicator::report and leave. They wait for serve(), the only user of the store, whose host may never answer.
  bool report(const ErrorReport& error);
  int leave(int exit_code);
  /// Publishes that this rank leaves, and ends the threads. Rank 0, which hosts the store, waits a few seconds for all
  /// others to leave. Returns false if a thread waits for a store that does not answer: then never destroy this object.
  bool end();

 private:
  using Clock = std::chrono::steady_clock;
  struct Peer {
    int rank = 0;
    PeerProcess process;
    std::string beat;
    Clock::time_point seen;  ///< when `beat` changed
  };

  void run(void (Control::*body)());  ///< a thread
  void serve();                       ///< a thread: stops, errors and heartbeats, through the store
  void watch();                       ///< a thread: dead processes, a silent store, and errors of the device
  void answer_main();
  void say_goodbye();
  void look_at_events();
  void look_at_ended();
  void agree_on_stop();
  void exchange_beats();
  void find_peers();
  bool rest(std::chrono::milliseconds time);
  bool wait_for_work(std::chrono::milliseconds time);
  std::string name_of(int rank) const;
  void publish_left();
  void lose(int rank, const std::string& what);
  void lose_store(const std::string& what);  ///< loses its host: rank 0 or torchrun's agent
  void end_with(const std::exception_ptr& error);
  std::vector<std::string> keys(const std::string& name) const;

  const launch::World world_;
  const Store store_;  ///< only for serve(), once it runs
  Gate& gate_;
  const Hooks hooks_;
  const Patience patience_;
  const std::chrono::milliseconds beat_;  ///< between heartbeats
  std::chrono::milliseconds store_patience_{0};
  std::vector<Peer> peers_;
  std::int64_t num_beats_ = 0;
  bool is_stop_announced_ = false, is_position_published_ = false, is_agreed_ = false, is_done_published_ = false;
  std::atomic<bool> has_left_ = false;       ///< what the others do no longer matters
  std::atomic<bool> is_store_lost_ = false;  ///< do not wait for serve()
  std::atomic<Clock::time_point> served_;    ///< last round of serve()
  std::mutex mutex_;                         ///< guards the members below
  std::condition_variable woken_, answered_;
  bool is_ending_ = false;
  int num_running_ = 0;                     ///< running threads
  std::map<int, Clock::time_point> ended_;  ///< ranks whose processes have ended, and when that was seen
  std::optional<std::string> own_error_;    ///< for report()
  std::optional<bool> is_first_error_;      ///< its answer
  std::optional<int> exit_code_;            ///< for leave()
  std::optional<int> exit_code_of_leader_;  ///< its answer
  std::thread server_, watcher_;
};

}  // namespace lora_train::ranks
