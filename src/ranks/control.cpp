#include "control.h"

#include <poll.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "rendezvous.h"

namespace lora_train::ranks {
namespace {

StopError stop(const std::string& reason) { return {reason, "asked to stop"}; }

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kServePause(20), kWatchPause(100), kLeavePause(3);
constexpr milliseconds kTimeToSayWhy(500);  // from the end of a process to the entry that explains it
constexpr seconds kTimeToLeave(5);

std::string text_of(const ErrorReport& error, int rank) {
  return nlohmann::json{{"rank", rank},
                        {"code", static_cast<int>(error.code)},
                        {"is_lost_rank", error.is_reported},  // `where` is lost: each survivor reports it
                        {"kind", error.kind},
                        {"where", error.where},
                        {"message", error.message}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

void Gate::pass() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !is_closed_ || is_open_for_good_ || failure_ != nullptr; });
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  if (!is_open_for_good_ && last_ && position_.num_passed == *last_) throw stop(reason_);
  ++position_.num_passed;
  stop_if_last();
}

void Gate::begin_steps() {
  const std::lock_guard lock(mutex_);
  position_.in_steps = true;
}

void Gate::open() {
  const std::lock_guard lock(mutex_);
  is_open_for_good_ = true;
  changed_.notify_all();
}

void Gate::rethrow_failure(std::chrono::milliseconds wait) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, wait, [&] { return failure_ != nullptr; });
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

Gate::Position Gate::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  return position_;
}

void Gate::stop_after(std::int64_t last, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  last_ = last;
  reason_ = reason;
  is_closed_ = false;
  stop_if_last();
  changed_.notify_all();
}

void Gate::fail(const std::exception_ptr& error) {
  const std::lock_guard lock(mutex_);
  if (failure_ != nullptr) return;
  failure_ = error;
  interrupt(error);
  changed_.notify_all();
}

bool Gate::has_failed() {
  const std::lock_guard lock(mutex_);
  return failure_ != nullptr;
}

void Gate::stop_if_last() {
  if (last_ && position_.num_passed == *last_) interrupt(std::make_exception_ptr(stop(reason_)));
}

Control::Control(const launch::World& world, const Store& store, Gate& gate, Hooks hooks, Patience patience)
    : world_(world),
      store_(store->clone()),
      gate_(gate),
      hooks_(std::move(hooks)),
      patience_(patience),
      beat_(std::min<milliseconds>(seconds(1), patience.same_host / 4)),
      served_(Clock::now()) {
  store_->set(fmt::format("beat/{}", world_.rank), "0");
}

Control::~Control() { end(); }

void Control::start() {
  find_peers();
  const bool is_store_here = world_.rank == 0 || peers_.front().process.is_here();
  store_patience_ = is_store_here ? patience_.same_host : patience_.another_host;
  served_ = Clock::now();
  num_running_ = 2;
  server_ = std::thread([this] { run(&Control::serve); });
  watcher_ = std::thread([this] { run(&Control::watch); });
}

void Control::run(void (Control::*body)()) {
  (this->*body)();
  const std::lock_guard lock(mutex_);
  --num_running_;
  answered_.notify_all();
}

bool Control::end() {
  {
    std::unique_lock lock(mutex_);
    is_ending_ = true;
    woken_.notify_all();
    const bool has_ended =
        answered_.wait_for(lock, kTimeToLeave + 2 * kTimeToSayWhy, [&] { return num_running_ == 0 || is_store_lost_; });
    if (!has_ended || num_running_ > 0) return false;
  }
  if (server_.joinable()) server_.join();
  if (watcher_.joinable()) watcher_.join();
  return true;
}

void Control::find_peers() {
  for (int rank = 0; rank < world_.size; ++rank) {
    if (rank == world_.rank) continue;
    peers_.push_back({rank, PeerProcess(store_->get_to_str(process_key(rank))), "0", Clock::now()});
    if (peers_.back().process.has_ended()) lose(rank, "has ended without a word");
  }
}

std::vector<std::string> Control::keys(const std::string& name) const {
  std::vector<std::string> result;
  for (int rank = 0; rank < world_.size; ++rank) result.push_back(fmt::format("{}/{}", name, rank));
  return result;
}

bool Control::rest(milliseconds time) {
  std::unique_lock lock(mutex_);
  return !woken_.wait_for(lock, time, [&] { return is_ending_; });
}

/// Like rest(), but also ends when report() or leave() is called.
bool Control::wait_for_work(milliseconds time) {
  std::unique_lock lock(mutex_);
  const auto is_asked = [&] { return (own_error_ && !is_first_error_) || (exit_code_ && !is_done_published_); };
  woken_.wait_for(lock, exit_code_ ? kLeavePause : time, [&] { return is_ending_ || is_asked(); });
  return !is_ending_;
}

std::string Control::name_of(int rank) const { return fmt::format("rank {} of {}", rank, world_.size); }

void Control::end_with(const std::exception_ptr& error) {
  gate_.fail(error);
  hooks_.abort();
}

void Control::lose(int rank, const std::string& what) {
  if (gate_.has_failed() || has_left_) return;
  const auto peer = std::find_if(peers_.begin(), peers_.end(), [&](const Peer& other) { return other.rank == rank; });
  const bool is_known = peer != peers_.end() && peer->process.is_here();
  const std::string message = (is_known ? fmt::format("process {} ", peer->process.pid()) : "") + what +
                              ". The checkpoints are intact; the same command continues from the last one";
  log_error("{}: {}", name_of(rank), message);
  end_with(std::make_exception_ptr(PeerError(name_of(rank), message, "device", ExitCode::kDevice)));
}

void Control::lose_store(const std::string& what) {
  is_store_lost_ = true;
  answered_.notify_all();
  if (!world_.has_agent_store) return lose(0, what);
  if (gate_.has_failed() || has_left_) return;
  const std::string message = what + ". The checkpoints are intact; the same command continues from the last one";
  log_error("torchrun's agent: " + message);
  end_with(std::make_exception_ptr(PeerError("torchrun's agent", message, "device", ExitCode::kDevice)));
}

void Control::serve() {
  auto last_beat = Clock::now();
  try {
    while (wait_for_work(kServePause)) {
      const auto now = Clock::now();
      if (const std::string reason = requested_stop(); !reason.empty() && !is_stop_announced_) {
        is_stop_announced_ = true;
        store_->compareSet("stop", "", reason);
        store_->add("events", 1);
      }
      if (store_->add("events", 0) > 0) look_at_events();
      look_at_ended();
      if (now - last_beat >= beat_) {
        if (now - last_beat > 5 * beat_) {  // this process itself was stopped
          for (Peer& peer : peers_) peer.seen = now;
        }
        last_beat = now;
        exchange_beats();
      }
      answer_main();
      served_ = Clock::now();
    }
    say_goodbye();
  } catch (const std::exception&) {  // rank 0 is gone, and the store with it
    is_store_lost_ = true;
    answered_.notify_all();
    if (rest(2 * kTimeToSayWhy)) lose_store("can no longer be reached");  // on its host, watch() named rank 0
  }
}

/// Answers report() and leave().
void Control::answer_main() {
  std::unique_lock lock(mutex_);
  if (own_error_ && !is_first_error_) {
    const std::string own = *own_error_;
    lock.unlock();
    const std::string first = store_->compareSet("error", "", own);
    store_->add("events", 1);
    lock.lock();
    is_first_error_ = first == own;
    answered_.notify_all();
  }
  if (!exit_code_ || exit_code_of_leader_) return;
  const std::string own = std::to_string(*exit_code_);
  lock.unlock();
  if (!std::exchange(is_done_published_, true)) store_->set(fmt::format("done/{}", world_.rank), own);
  if (!store_->check(keys("done"))) return;
  const int code = std::atoi(store_->get_to_str("done/0").c_str());
  lock.lock();
  exit_code_of_leader_ = code;
  answered_.notify_all();
  lock.unlock();
  publish_left();
}

void Control::publish_left() {
  has_left_ = true;
  // add() waits for an answer; a set() might be lost with the process.
  store_->add(fmt::format("left/{}", world_.rank), 1);
}

void Control::say_goodbye() {
  publish_left();
  if (world_.rank != 0) return;
  const auto deadline = Clock::now() + kTimeToLeave;
  const auto is_here = [&](const Peer& peer) {
    return !peer.process.has_ended() && !store_->check({fmt::format("left/{}", peer.rank)});
  };
  while (Clock::now() < deadline && std::any_of(peers_.begin(), peers_.end(), is_here)) {
    std::this_thread::sleep_for(kLeavePause);
  }
}

void Control::look_at_events() {
  if (!gate_.has_failed() && store_->check({"error"})) {
    const auto error = nlohmann::json::parse(store_->get_to_str("error"));
    const int rank = error["rank"];
    if (rank != world_.rank) {
      const std::string where = error["where"], message = error["message"];
      if (error["is_lost_rank"]) log_error("{}: {}", where, message);
      end_with(std::make_exception_ptr(
          PeerError(where, message, error["kind"], static_cast<ExitCode>(error["code"].get<int>()))));
    }
  }
  if (!is_agreed_ && store_->check({"stop"})) agree_on_stop();
}

void Control::agree_on_stop() {
  if (!is_position_published_) {
    const Gate::Position own = gate_.close();
    store_->set(fmt::format("position/{}", world_.rank),
                fmt::format("{}{}", own.num_passed, own.in_steps ? " 1" : " 0"));
    is_position_published_ = true;
  }
  if (!store_->check(keys("position"))) return;
  is_agreed_ = true;
  std::int64_t last = 0;
  bool in_steps = false;
  for (const std::string& key : keys("position")) {
    const std::string position = store_->get_to_str(key);
    last = std::max<std::int64_t>(last, std::atoll(position.c_str()));
    in_steps = in_steps || position.ends_with('1');
  }
  const std::string reason = store_->get_to_str("stop");
  if (!in_steps) last = gate_.close().num_passed;
  gate_.stop_after(last, reason);
  if (!in_steps) hooks_.abort();  // nothing to wait for
}

void Control::exchange_beats() {
  store_->set(fmt::format("beat/{}", world_.rank), std::to_string(++num_beats_));
  for (Peer& peer : peers_) {
    const std::string beat = store_->get_to_str(fmt::format("beat/{}", peer.rank));
    const auto now = Clock::now();
    if (beat != peer.beat) {
      peer.beat = beat;
      peer.seen = now;
    }
    const milliseconds limit = peer.process.is_here() ? patience_.same_host : patience_.another_host;
    if (now - peer.seen < limit || store_->check({fmt::format("left/{}", peer.rank)})) continue;
    lose(peer.rank, peer.process.is_here()
                        ? "has stopped answering: it was stopped (SIGSTOP), or its host is overloaded"
                        : "has stopped answering: it has ended, or its host cannot be reached");
  }
}

/// A rank whose process has ended may have reported why, or left.
void Control::look_at_ended() {
  std::unique_lock lock(mutex_);
  const auto ended = ended_;
  lock.unlock();
  for (const auto& [rank, seen] : ended) {
    const bool has_left = store_->check({fmt::format("left/{}", rank)}) || store_->check({"error"});
    if (!has_left && Clock::now() - seen < kTimeToSayWhy) continue;
    if (!has_left) lose(rank, "has ended without a word: killed, or out of memory");
    lock.lock();
    ended_.erase(rank);
    lock.unlock();
  }
}

void Control::watch() {
  std::vector<const Peer*> watched;
  for (const Peer& peer : peers_) {
    if (peer.process.fd() >= 0) watched.push_back(&peer);
  }
  auto last_round = Clock::now();
  while (rest(milliseconds(0))) {
    const auto now = Clock::now();
    if (now - last_round > 50 * kWatchPause) served_ = now;  // this process itself was stopped
    last_round = now;
    std::vector<pollfd> processes;
    for (const Peer* peer : watched) processes.push_back({peer->process.fd(), POLLIN, 0});
    (void)::poll(processes.data(), processes.size(), static_cast<int>(kWatchPause.count()));
    for (std::size_t i = processes.size(); i-- > 0;) {
      if (processes[i].revents == 0) continue;
      const int rank = watched[i]->rank;
      watched.erase(watched.begin() + static_cast<std::ptrdiff_t>(i));
      if (rank == 0 && !world_.has_agent_store) {  // the store is gone too, where rank 0 would have reported
        lose(rank, "has ended without a word: killed, or out of memory");
      } else {
        const std::lock_guard lock(mutex_);
        ended_.emplace(rank, now);
      }
    }
    const milliseconds silence = std::chrono::duration_cast<milliseconds>(Clock::now() - served_.load());
    if (silence > store_patience_) lose_store("has stopped answering: it was stopped, or its host cannot be reached");
    if (const std::string error = hooks_.asynchronous_error(); !error.empty()) {
      end_with(std::make_exception_ptr(DeviceError(name_of(world_.rank), error)));
    }
  }
}

bool Control::report(const ErrorReport& error) {
  std::unique_lock lock(mutex_);
  own_error_ = text_of(error, world_.rank);
  woken_.notify_all();
  while (!is_first_error_ && !is_store_lost_) answered_.wait_for(lock, kServePause);
  return is_first_error_.value_or(true);
}

int Control::leave(int exit_code) {
  std::unique_lock lock(mutex_);
  exit_code_ = exit_code;
  woken_.notify_all();
  while (!answered_.wait_for(lock, kServePause, [&] { return exit_code_of_leader_.has_value(); })) {
    lock.unlock();
    gate_.rethrow_failure(milliseconds(0));
    lock.lock();
  }
  return *exit_code_of_leader_;
}

}  // namespace lora_train::ranks
