#include "ask_server.h"

#include <chrono>
#include <exception>
#include <mutex>
#include <thread>

#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"

namespace lora_train::cli {
namespace {

using Clock = std::chrono::steady_clock;

/// Lets requests begin at a steady pace.
class Pace {
 public:
  explicit Pace(double per_minute)
      : gap_(per_minute > 0
                 ? std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(60 / per_minute))
                 : Clock::duration::zero()) {}

  void wait() {
    if (gap_ == Clock::duration::zero()) return;
    Clock::time_point mine;
    {
      const std::lock_guard lock(mutex_);
      mine = std::max(next_, Clock::now());
      next_ = mine + gap_;
    }
    while (Clock::now() < mine) {
      throw_if_stop_requested();
      std::this_thread::sleep_for(std::min<Clock::duration>(mine - Clock::now(), std::chrono::milliseconds(100)));
    }
  }

 private:
  Clock::duration gap_;
  std::mutex mutex_;
  Clock::time_point next_ = Clock::now();
};

class Round {
 public:
  Round(teach::Teacher& teacher, TeachJob& job, TeachProgress& progress, const AskOptions& options)
      : teacher_(teacher),
        job_(job),
        progress_(progress),
        pace_(options.requests_per_minute),
        max_failures_in_a_row_(3 * options.concurrency),
        open_(job.open()) {}

  OpenQuestions run(std::int64_t concurrency) {
    std::vector<std::thread> threads;
    for (std::int64_t i = 0; i < concurrency; ++i) threads.emplace_back([this] { work(); });
    for (std::thread& thread : threads) thread.join();
    if (error_) std::rethrow_exception(error_);
    return questions_;
  }

 private:
  void work() {
    try {
      while (const auto answer = take()) ask(*answer);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }

  /// The next question; nothing where all are asked, or the work is to end.
  std::optional<std::size_t> take() {
    throw_if_stop_requested();
    const std::lock_guard lock(mutex_);
    if (error_ || next_ == open_.size() || failures_in_a_row_ >= max_failures_in_a_row_) return std::nullopt;
    return open_[next_++];
  }

  void ask(std::size_t answer) {
    pace_.wait();
    try {
      const teach::Answer given = teacher_.ask(job_.question(answer));
      job_.add(answer, given);
      progress_.add(given);
      const std::lock_guard lock(mutex_);
      failures_in_a_row_ = 0;
    } catch (const teach::RefusedQuestion& error) {
      count(questions_.refused, questions_.first_refused, error);
    } catch (const teach::NoAnswer& error) {
      count(questions_.failed, questions_.first_failed, error);
      const std::lock_guard lock(mutex_);
      if (++failures_in_a_row_ == max_failures_in_a_row_)
        log_error(std::to_string(failures_in_a_row_) + " questions in a row have no answer; no more are asked");
    }
  }

  void count(std::int64_t& number, std::string& first, const Error& error) {
    const std::lock_guard lock(mutex_);
    const std::string text = error.where() + ": " + error.message();
    if (++number == 1) first = text;
    log_debug(text);
  }

  teach::Teacher& teacher_;
  TeachJob& job_;
  TeachProgress& progress_;
  Pace pace_;
  std::int64_t max_failures_in_a_row_;
  std::mutex mutex_;
  std::vector<std::size_t> open_;
  std::size_t next_ = 0;
  std::int64_t failures_in_a_row_ = 0;
  OpenQuestions questions_;
  std::exception_ptr error_;
};

}  // namespace

OpenQuestions ask_server(teach::Teacher& teacher, TeachJob& job, TeachProgress& progress, const AskOptions& options) {
  return Round(teacher, job, progress, options).run(options.concurrency);
}

}  // namespace lora_train::cli
