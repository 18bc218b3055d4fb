#include "lora_train/serve/answer.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "answer_json.h"
#include "lora_train/tokenizer/tokenizer.h"

namespace lora_train::serve {
namespace {

/// A piece of a choice.
std::string event_of(AnswerJson event, const ApiRequest& request, AnswerJson choice) {
  event["choices"] = AnswerJson::array({std::move(choice)});
  if (request.include_usage) event["usage"] = nullptr;
  return dump_json(event);
}

}  // namespace

void Outbox::wake() {
  if (std::exchange(is_suspended_, false) && resume_) resume_();
}

void Outbox::write(std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  if (is_cancelled_ || is_finished_) return;
  bytes_ += bytes;
  wake();
}

void Outbox::finish(int status) {
  const std::lock_guard lock(mutex_);
  if (is_finished_) return;
  is_finished_ = true;
  status_ = status;
  wake();
}

void Outbox::set_resume(Call resume) {
  const std::lock_guard lock(mutex_);
  resume_ = std::move(resume);
}

std::size_t Outbox::read(char* to, std::size_t most, const Call& suspend) {
  const std::lock_guard lock(mutex_);
  const std::size_t count = std::min(most, bytes_.size() - num_read_);
  std::copy_n(bytes_.data() + num_read_, count, to);
  num_read_ += count;
  if (num_read_ == bytes_.size()) {
    bytes_.clear();
    num_read_ = 0;
  }
  if (count == 0 && !is_finished_ && !is_cancelled_) {
    is_suspended_ = true;
    suspend();
  }
  return count;
}

bool Outbox::is_whole_or(const Call& suspend) {
  const std::lock_guard lock(mutex_);
  if (is_finished_ || is_cancelled_) return true;
  is_suspended_ = true;
  suspend();
  return false;
}

void Outbox::cancel() {
  const std::lock_guard lock(mutex_);
  is_cancelled_ = true;
  bytes_.clear();
  num_read_ = 0;
  wake();
}

void Outbox::abandon() {
  const std::lock_guard lock(mutex_);
  is_cancelled_ = true;
  is_suspended_ = false;
  resume_ = nullptr;
  bytes_.clear();
  num_read_ = 0;
}

bool Outbox::is_cancelled() const {
  const std::lock_guard lock(mutex_);
  return is_cancelled_;
}

bool Outbox::is_finished() const {
  const std::lock_guard lock(mutex_);
  return is_finished_;
}

int Outbox::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

struct Answer::Choice {
  Choice(const tokenizer::Tokenizer& tokenizer, const std::vector<std::string>& stop_strings)
      : stream(tokenizer), stops(stop_strings) {}

  tokenizer::TextStream stream;
  tokenizer::StopStrings stops;
  std::string text;                 ///< the whole answer; with `streams`, the part sent
  std::vector<ServedToken> tokens;  ///< those whose log-probabilities have not been sent
  std::size_t num_sent = 0;         ///< bytes of text before these tokens
  std::string finish_reason;
};

Answer::Answer(ApiRequest request, const ServedModel& model, std::vector<data::Prompt> prompts, std::string id,
               std::int64_t created)
    : request_(std::move(request)), model_(model), prompts_(std::move(prompts)), id_(std::move(id)), created_(created) {
  choices_.reserve(num_choices());
  for (std::size_t i = 0; i < num_choices(); ++i) choices_.emplace_back(*model.tokenizer, request_.stop);
}
Answer::~Answer() = default;

std::size_t Answer::num_choices() const { return prompts_.size() * static_cast<std::size_t>(request_.n); }

std::int64_t Answer::num_prompt_tokens() const {
  std::int64_t sum = 0;
  for (const data::Prompt& prompt : prompts_) sum += std::ssize(prompt.ids);
  return sum;
}

ServedRequest Answer::ask(std::size_t choice, std::int64_t max_new_tokens) const {
  ServedRequest asked;
  asked.ids = prompts_[choice / static_cast<std::size_t>(request_.n)].ids;
  asked.max_new_tokens = max_new_tokens;
  asked.sampling = request_.sampling;
  asked.index = static_cast<std::int64_t>(choice);
  asked.stop_ids = model_.stop_ids;
  asked.owner = model_.owner;
  asked.num_top = request_.num_top;
  return asked;
}

bool Answer::on_token(std::size_t index, const ServedToken& token) {
  Choice& choice = choices_[index];
  ++num_new_;
  const auto& stop_ids = model_.stop_ids;
  if (std::find(stop_ids.begin(), stop_ids.end(), token.id) != stop_ids.end()) return !outbox.is_cancelled();
  if (request_.num_top) choice.tokens.push_back(token);
  send_text(index, choice.stops.push(choice.stream.push(token.id)));
  return !choice.stops.is_found() && !outbox.is_cancelled();
}

/// Adds text to the answer, and streams it at once if requested.
void Answer::send_text(std::size_t index, const std::string& text) {
  Choice& choice = choices_[index];
  const bool is_first = choice.text.empty();
  choice.text += text;
  if (!request_.streams || text.empty()) return;
  AnswerJson logprobs;
  if (request_.num_top) {
    logprobs = logprobs_json(request_.is_chat, *model_.tokenizer, choice.tokens, choice.num_sent);
    choice.tokens.clear();
    choice.num_sent = choice.text.size();
  }
  AnswerJson sent = {{"index", index}};
  if (request_.is_chat) {
    AnswerJson delta = {{"content", text}};
    if (is_first) delta = {{"role", "assistant"}, {"content", text}};
    sent["delta"] = std::move(delta);
  } else {
    sent["text"] = text;
  }
  sent["logprobs"] = std::move(logprobs);
  sent["finish_reason"] = nullptr;
  send_event(event_of(answer_head(request_, id_, model_.name, created_), request_, std::move(sent)));
}

void Answer::send_event(const std::string& json) { outbox.write(fmt::format("data: {}\n\n", json)); }

void Answer::on_done(std::size_t index, bool is_cut) {
  Choice& choice = choices_[index];
  send_text(index, choice.stops.push(choice.stream.finish()));
  if (!choice.stops.is_found()) send_text(index, choice.stops.finish());
  choice.finish_reason = is_cut && !choice.stops.is_found() ? "length" : "stop";
  if (request_.streams) {
    AnswerJson last = {{"index", index}};
    if (request_.is_chat) {
      last["delta"] = AnswerJson::object();
      if (choice.text.empty()) last["delta"] = {{"role", "assistant"}, {"content", ""}};
    } else {
      last["text"] = "";
    }
    last["logprobs"] = nullptr;
    last["finish_reason"] = choice.finish_reason;
    send_event(event_of(answer_head(request_, id_, model_.name, created_), request_, std::move(last)));
  }
  if (++num_done_ == choices_.size()) finish();
}

/// Ends the answer once all choices are complete.
void Answer::finish() {
  AnswerJson whole = answer_head(request_, id_, model_.name, created_);
  const AnswerJson usage = usage_json(num_prompt_tokens(), num_new_);
  whole["choices"] = AnswerJson::array();
  if (request_.streams) {
    whole["usage"] = usage;
    if (request_.include_usage) send_event(dump_json(whole));
    send_event("[DONE]");
    return outbox.finish(200);
  }
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    Choice& choice = choices_[i];
    AnswerJson entry = {{"index", i}};
    if (request_.is_chat) {
      entry["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
    } else {
      entry["text"] = choice.text;
    }
    entry["logprobs"] =
        request_.num_top ? logprobs_json(request_.is_chat, *model_.tokenizer, choice.tokens, 0) : AnswerJson();
    entry["finish_reason"] = choice.finish_reason;
    whole["choices"].push_back(std::move(entry));
  }
  whole["usage"] = usage;
  outbox.write(dump_json(whole));
  outbox.finish(200);
}

void Answer::on_failure(int status, const std::string& message) {
  const std::string error = ApiError(status, message).json();
  if (request_.streams) {
    send_event(error);
  } else {
    outbox.write(error);
  }
  outbox.finish(status);
}

}  // namespace lora_train::serve
