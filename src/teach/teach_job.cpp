#include "lora_train/teach/teach_job.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/stop_request.h"

namespace lora_train::teach {
namespace {

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

std::string TeachJob::example(std::size_t answer, const GivenAnswer& given) const {
  const std::string& message = given.message;
  const data::ChatQuestion& prompt = prompts_[prompt_of(answer)];
  Json example;
  if (options_.is_raw) {
    example = {{"prompt", Json::parse(prompt.messages)}, {"completion", Json::parse(message)}};
  } else {
    Json messages = with_system(Json::parse(prompt.messages), options_.student_system);
    messages.push_back(Json::parse(message));
    example = {{"messages", messages}};
    if (!prompt.tools.empty()) example["tools"] = Json::parse(prompt.tools);
  }
  if (!given.logprobs.empty()) example["logprobs"] = Json::parse(given.logprobs);
  return example.dump() + "\n";
}

TeachJob::Examples TeachJob::write_examples(const Filters& filters) {
  answers_->finish();
  std::vector<std::size_t> numbers;
  std::vector<GivenAnswer> given;
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
    given.push_back({line["answer"].dump(), line.contains("logprobs") ? line["logprobs"].dump() : ""});
    candidates.push_back({prompt_of(i), source(i), text_of(line["answer"]), is_cut});
  }
  FilterResult result = filters.apply(candidates);
  AtomicFileWriter writer(options_.output, 0);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (!result.is_kept[i]) continue;
    writer.write(example(numbers[i], given[i]));
    ++examples.num_written;
  }
  writer.commit();
  examples.num_answers = static_cast<std::int64_t>(numbers.size());
  examples.dropped = std::move(result.counts);
  return examples;
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
  if (prices_.prompt || prices_.completion) {
    now.cost_usd = (static_cast<double>(now.prompt_tokens) * prices_.prompt.value_or(0) +
                    static_cast<double>(now.completion_tokens) * prices_.completion.value_or(0)) /
                   1e6;
  }
  return now;
}

}  // namespace lora_train::teach
