#include "lora_train/teach/teach_run.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/hash.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/hub/http/url.h"
#include "teacher.h"

namespace lora_train::teach {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

std::string answers_file(const std::string& output) {
  const std::string end = ".jsonl";
  return (output.ends_with(end) ? output.substr(0, output.size() - end.size()) : output) + ".answers.jsonl";
}

/// Puts `text` first as the system message, before an existing one.
Json with_system(Json messages, const std::string& text) {
  if (text.empty()) return messages;
  if (messages[0].value("role", "") != "system") {
    messages.insert(messages.begin(), Json{{"role", "system"}, {"content", text}});
  } else if (messages[0].contains("content") && messages[0]["content"].is_string()) {
    messages[0]["content"] = fmt::format("{}\n\n{}", text, messages[0]["content"].get<std::string>());
  }
  return messages;
}

std::string text_of(const Json& message) {
  if (message.is_string()) return message;
  const bool has_text = message.contains("content") && message["content"].is_string();
  return has_text ? message["content"].get<std::string>() : "";
}

/// The text of a prompt that is a single user message.
Json raw_text(const data::ChatQuestion& prompt) {
  const Json messages = Json::parse(prompt.messages);
  if (messages.size() == 1 && messages[0].value("role", "") == "user") return messages[0]["content"];
  throw DataError(prompt.source,
                  "is a chat, but --raw asks for the continuation of a text; expected {\"prompt\": \"...\"}");
}

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

std::string model_of_answers(const std::string& output) {
  const std::string answers = answers_file(output), settings = answers + ".settings.json";
  std::error_code code;
  if (path_kind(settings) != PathKind::kFile || std::filesystem::file_size(answers, code) == 0 || code) return {};
  const Json recorded = Json::parse(read_file(settings), nullptr, /*allow_exceptions=*/false);
  const bool is_of_server = recorded.is_object() && recorded.contains("model") && !recorded.contains("adapter");
  return is_of_server && recorded["model"].is_string() ? recorded["model"].get<std::string>() : "";
}

TeachJob::TeachJob(TeachOptions options, std::vector<data::ChatQuestion> prompts, const GenerationSettings& settings)
    : options_(std::move(options)), prompts_(std::move(prompts)), settings_(settings) {
  const auto samples = static_cast<std::size_t>(options_.samples);
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    if (options_.is_raw) prompts_[i].messages = raw_text(prompts_[i]).dump();
    const bool is_ours = static_cast<std::int64_t>(i) % options_.num_shards == options_.shard;
    for (std::size_t sample = 0; sample < samples; ++sample) {
      if (is_ours) wanted_.push_back(given_.size());
      given_.push_back(prompts_[i].messages);
    }
  }
  const std::string file = answers_file(options_.output);
  if (path_kind(options_.output) != PathKind::kNone && path_kind(file) == PathKind::kNone) {
    throw ConfigError(options_.output,
                      "exists, and teach did not write it (there is no {}): name another --output, or move it", file);
  }
  answers_.emplace("teach", file, settings_, given_);
}

std::vector<std::size_t> TeachJob::open() const {
  std::vector<std::size_t> open;
  std::ranges::copy_if(wanted_, std::back_inserter(open), [&](std::size_t i) { return !answers_->is_done(i); });
  return open;
}

Question TeachJob::question(std::size_t answer) const {
  const data::ChatQuestion& prompt = prompts_[prompt_of(answer)];
  Question question{prompt.source, prompt.messages, prompt.tools, options_.seed + answer};
  if (!options_.is_raw) question.prompt = with_system(Json::parse(prompt.messages), options_.system).dump();
  return question;
}

void TeachJob::add(std::size_t answer, const Answer& given) {
  Json line = {{"index", answer}, {"prompt", Json::parse(given_[answer])}};
  line["answer"] = Json::parse(given.message);
  line["finish_reason"] = given.finish_reason;
  line["prompt_tokens"] = given.prompt_tokens;
  line["completion_tokens"] = given.completion_tokens;
  if (!given.logprobs.empty()) line["logprobs"] = Json::parse(given.logprobs);
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace);
  const std::lock_guard lock(mutex_);
  answers_->append(answer, text);
}

void TeachJob::join(const std::string& output) {
  const std::string file = answers_file(output);
  if (path_kind(file) == PathKind::kNone)
    throw ConfigError("--join", "{}: teach has no answers for it ({})", output, file);
  const GenerationFile other("teach", file, settings_, given_);
  const std::vector<std::string> lines = other.lines();
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty() || answers_->is_done(i)) continue;
    answers_->append(i, lines[i].substr(0, lines[i].size() - 1));  // without its end
  }
}

std::string TeachJob::example(std::size_t answer, const std::string& line) const {
  const Json given = Json::parse(line);
  const data::ChatQuestion& prompt = prompts_[prompt_of(answer)];
  Json example;
  if (options_.is_raw) {
    example = {{"prompt", Json::parse(prompt.messages)}, {"completion", given["answer"]}};
  } else {
    Json messages = with_system(Json::parse(prompt.messages), options_.student_system);
    messages.push_back(given["answer"]);
    example = {{"messages", messages}};
    if (!prompt.tools.empty()) example["tools"] = Json::parse(prompt.tools);
  }
  if (given.contains("logprobs")) example["logprobs"] = given["logprobs"];
  return example.dump() + "\n";
}

TeachJob::Examples TeachJob::write_examples(const Filters& filters) {
  answers_->finish();
  std::vector<std::size_t> numbers;
  std::vector<Candidate> candidates;
  Examples examples;
  const std::vector<std::string> lines = answers_->lines();
  for (std::size_t i = 0; i < lines.size(); ++i) {
    throw_if_stop_requested();
    if (lines[i].empty()) continue;
    const Json line = Json::parse(lines[i]);
    const bool is_cut = line.value("finish_reason", "") == "length";
    examples.num_cut += is_cut ? 1 : 0;
    examples.prompt_tokens += line.value("prompt_tokens", std::int64_t{0});
    examples.completion_tokens += line.value("completion_tokens", std::int64_t{0});
    numbers.push_back(i);
    candidates.push_back({prompt_of(i), source(i), text_of(line["answer"]), is_cut});
  }
  FilterResult result = filters.apply(candidates);
  AtomicFileWriter writer(options_.output, 0);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (!result.is_kept[i]) continue;
    writer.write(example(numbers[i], lines[numbers[i]]));
    ++examples.num_written;
  }
  writer.commit();
  examples.num_answers = static_cast<std::int64_t>(numbers.size());
  examples.dropped = std::move(result.counts);
  return examples;
}

std::optional<double> TokenPrices::cost(const TeachTotals& totals) const {
  if (!prompt && !completion) return std::nullopt;
  return (static_cast<double>(totals.prompt_tokens) * prompt.value_or(0) +
          static_cast<double>(totals.completion_tokens) * completion.value_or(0)) /
         1e6;
}

TeachProgress::TeachProgress(std::size_t num_answers, TokenPrices prices, bool is_quiet)
    : prices_(prices), bar_({.quiet = is_quiet}) {
  state_.total_steps = static_cast<long long>(num_answers);
  state_.unit = "answer";
}

void TeachProgress::add(const Answer& answer) {
  const std::lock_guard lock(mutex_);
  ++totals_.answers;
  totals_.prompt_tokens += answer.prompt_tokens;
  totals_.completion_tokens += answer.completion_tokens;
  const TeachTotals now = totals_locked();
  state_.step = now.answers;
  state_.steps_per_s = static_cast<double>(now.answers) / now.seconds;
  state_.tokens_per_s = static_cast<double>(now.completion_tokens) / now.seconds;
  state_.eta_s = static_cast<double>(state_.total_steps - state_.step) / state_.steps_per_s;
  state_.elapsed_s = now.seconds;
  state_.cost_usd = now.cost_usd;
  bar_.update(state_);
}

TeachTotals TeachProgress::totals() const {
  const std::lock_guard lock(mutex_);
  return totals_locked();
}

TeachTotals TeachProgress::totals_locked() const {
  TeachTotals now = totals_;
  now.seconds = std::max(std::chrono::duration<double>(Clock::now() - start_).count(), 1e-9);
  now.cost_usd = prices_.cost(now);
  return now;
}

TeachResult teach_by_server(const std::string& url, const TeachRequest& request, const SamplingOptions& sampling,
                            TeachInput input, bool is_quiet) {
  const Filters filters(request.filters);  // before anything is asked
  std::string model = request.teacher_model;
  if (model.empty()) model = model_of_answers(request.job.output);
  if (model.empty() && input.before_asking) std::exchange(input.before_asking, nullptr)();
  Teacher teacher(url, std::move(model), request, sampling);
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
