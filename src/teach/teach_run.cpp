#include "lora_train/teach/teach_run.h"

#include <chrono>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "lora_train/base/error.h"
#include "lora_train/base/hash.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/hub/http/url.h"
#include "lora_train/teach/teacher.h"

namespace lora_train::teach {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

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

/// Asks a job's open questions, several at a time. Ends early if the server has failed for three rounds in a row.
class Round {
 public:
  Round(Teacher& teacher, TeachJob& job, TeachProgress& progress, const AskOptions& options)
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

  /// The next question; nothing if all have been asked, or if the work is to end.
  std::optional<std::size_t> take() {
    throw_if_stop_requested();
    const std::lock_guard lock(mutex_);
    if (error_ || next_ == open_.size() || failures_in_a_row_ >= max_failures_in_a_row_) return std::nullopt;
    return open_[next_++];
  }

  void ask(std::size_t answer) {
    pace_.wait();
    try {
      const Answer given = teacher_.ask(job_.question(answer));
      job_.add(answer, given);
      progress_.add(given);
      const std::lock_guard lock(mutex_);
      failures_in_a_row_ = 0;
    } catch (const RefusedQuestion& error) {
      count(questions_.refused, questions_.first_refused, error);
    } catch (const NoAnswer& error) {
      count(questions_.failed, questions_.first_failed, error);
      const std::lock_guard lock(mutex_);
      if (++failures_in_a_row_ == max_failures_in_a_row_)
        log_error("{} questions in a row got no answer; asking no more", failures_in_a_row_);
    }
  }

  void count(std::int64_t& number, std::string& first, const Error& error) {
    const std::lock_guard lock(mutex_);
    const std::string text = fmt::format("{}: {}", error.where(), error.message());
    if (++number == 1) first = text;
    log_debug(text);
  }

  Teacher& teacher_;
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

/// The settings that affect the answers, whoever gives them.
GenerationSettings teach_settings(const TeachRequest& request, const SamplingOptions& sampling) {
  GenerationSettings settings = sampling_settings(sampling);
  settings.insert(settings.end(), {{"system_hash", Json(hash128_hex(request.job.system)).dump()},
                                   {"samples", Json(request.job.samples).dump()},
                                   {"raw", Json(request.job.is_raw).dump()},
                                   {"max_tokens", Json(request.max_tokens).dump()},
                                   {"stop", Json(request.stop).dump(-1, ' ', false, Json::error_handler_t::replace)},
                                   {"logprobs", Json(request.top_logprobs).dump()}});
  return settings;
}

using Ask = std::function<OpenQuestions(TeachJob&, TeachProgress&)>;

void log_result(const TeachRequest& request, const TeachResult& result) {
  const auto& [code, totals, examples, open] = result;
  for (const FilterCount& count : examples.dropped)
    log_warning("{} dropped: {}; first: {}", count_of(count.count, "answer"), count.reason, count.first_source);
  if (examples.num_cut > 0 && !request.filters.drop_cut) {
    log_warning("{} reached --max-tokens {} and may be incomplete; --drop-cut drops them",
                count_of(examples.num_cut, "answer"), request.max_tokens);
  }
  std::string line = fmt::format("asked: {} in {} ({:.1f} a minute), {} prompt and {} answer tokens",
                                 count_of(totals.answers, "answer"), format_duration(totals.seconds),
                                 60 * static_cast<double>(totals.answers) / totals.seconds,
                                 format_count(totals.prompt_tokens), format_count(totals.completion_tokens));
  if (totals.cost_usd) line += fmt::format(", {:.4f} USD", *totals.cost_usd);
  if (totals.answers > 0) log_info(line);
  log_info("{}: {} of {}", request.job.output, count_of(examples.num_written, "example"),
           count_of(examples.num_answers, "answer"));
}

void refuse_open_questions(const TeachRequest& request, const OpenQuestions& open) {
  const std::int64_t count = open.count();
  if (count == 0) return;
  std::string text = count_of(count, "question") + " without an answer";
  if (open.refused > 0) text += fmt::format("; {} refused, first: {}", open.refused, open.first_refused);
  if (open.failed > 0) text += fmt::format("; {} failed, first: {}", open.failed, open.first_failed);
  if (count <= request.max_failures) return log_warning(text);
  throw IoError(request.job.output,
                text + ". Run the same command to ask again; --max-failures N accepts up to N of them");
}

TeachResult teach_with(const TeachRequest& request, const SamplingOptions& sampling, GenerationSettings settings,
                       const Filters& filters, TeachInput input, bool is_quiet, const Ask& ask) {
  const GenerationSettings of_request = teach_settings(request, sampling);
  settings.insert(settings.end(), of_request.begin(), of_request.end());
  TeachOptions options = request.job;
  options.seed = sampling.seed;
  TeachJob job(options, std::move(input.prompts), settings);
  for (const std::string& output : input.join) job.join(output);
  const std::size_t num_open = job.open().size();
  if (num_open < job.num_wanted() && num_open > 0) {
    log_info(request.job.output + ": " + format_count(job.num_wanted() - num_open) + " of " +
             count_of(job.num_wanted(), "answer") + " are already there; resuming");
  }
  if (num_open > 0 && input.before_asking) input.before_asking();
  TeachResult result;
  {
    TeachProgress progress(num_open, request.prices, is_quiet);
    try {
      result.open = ask(job, progress);
      result.examples = job.write_examples(filters);
    } catch (const StopError& stop) {
      log_warning("stopped by {} after {} of {}; run the same command to resume", stop.where(),
                  format_count(progress.totals().answers), count_of(num_open, "answer"));
      result.exit_code = static_cast<int>(ExitCode::kStopped);
      result.totals = progress.totals();
      return result;
    }
    result.totals = progress.totals();
  }
  log_result(request, result);
  refuse_open_questions(request, result.open);
  return result;
}

}  // namespace

TeachResult teach_by_server(const std::string& url, const TeachRequest& request, const SamplingOptions& sampling,
                            TeachInput input, bool is_quiet) {
  const Filters filters(request.filters);  // before anything is asked
  const char* const key = std::getenv("OPENAI_API_KEY");
  TeacherOptions options{url, key == nullptr ? "" : key, request.teacher_model, request.job.is_raw, sampling};
  if (options.model.empty()) options.model = model_of_answers(request.job.output);
  if (options.model.empty() && input.before_asking) std::exchange(input.before_asking, nullptr)();
  options.max_tokens = request.max_tokens;
  options.stop = request.stop;
  options.top_logprobs = request.top_logprobs;
  options.timeout_s = request.timeout_s;
  Teacher teacher(options);
  log_info("teacher: {} at {}", teacher.model(), hub::shown_url(url));
  const GenerationSettings settings = {{"model", Json(repair_utf8(teacher.model())).dump()}};
  return teach_with(request, sampling, settings, filters, std::move(input), is_quiet,
                    [&](TeachJob& job, TeachProgress& progress) {
                      return Round(teacher, job, progress, request.ask).run(request.ask.concurrency);
                    });
}

TeachResult teach_by_model(LocalTeacher& teacher, const TeachRequest& request, const SamplingOptions& sampling,
                           TeachInput input, bool is_quiet) {
  return teach_with(request, sampling, teacher.settings(request.job.is_raw), Filters(request.filters), std::move(input),
                    is_quiet, [&](TeachJob& job, TeachProgress& progress) {
                      teacher.ask(request, sampling, job, progress);
                      return OpenQuestions{};
                    });
}

}  // namespace lora_train::teach
