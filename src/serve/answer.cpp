#include "lora_train/serve/answer.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "answer_json.h"
#include "lora_train/tokenizer/tokenizer.h"

namespace lora_train::serve {

/// A choice, or a piece of one.
struct ChoiceJson {
  const char* name;    ///< of a chat's message: "message" or "delta"
  AnswerJson message;  ///< of a chat,
  std::string text;    ///< or the text of a completion
  AnswerJson logprobs, finish_reason;
};

namespace {

AnswerJson as_json(bool is_chat, std::size_t index, ChoiceJson choice) {
  AnswerJson json = {{"index", index}};
  json[is_chat ? choice.name : "text"] = is_chat ? std::move(choice.message) : AnswerJson(choice.text);
  json["logprobs"] = std::move(choice.logprobs);
  json["finish_reason"] = std::move(choice.finish_reason);
  return json;
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

std::string AnswerText::take(const std::string& piece) {
  std::string shown = stops_.push(piece);
  text_ += shown;
  return shown;
}

std::string AnswerText::finish() {
  std::string shown = take(stream_.finish());
  if (is_stopped()) return shown;
  const std::string rest = stops_.finish();
  text_ += rest;
  return shown + rest;
}

struct Answer::Choice {
  AnswerText answer;                         ///< with `streams`, the part sent
  std::vector<generate::Token> tokens = {};  ///< those whose log-probabilities have not been sent
  std::size_t num_sent = 0;                  ///< bytes of text before these tokens
  std::string finish_reason = {};
};

Answer::Answer(ApiRequest request, const ServedModel& model, std::vector<data::Prompt> prompts, std::string id,
               std::int64_t created)
    : request_(std::move(request)), model_(model), prompts_(std::move(prompts)), id_(std::move(id)), created_(created) {
  choices_.reserve(num_choices());
  for (std::size_t i = 0; i < num_choices(); ++i) choices_.push_back({{*model.tokenizer, request_.stop}});
}
Answer::~Answer() = default;

std::size_t Answer::num_choices() const { return prompts_.size() * static_cast<std::size_t>(request_.n); }

std::int64_t Answer::num_prompt_tokens() const {
  std::int64_t sum = 0;
  for (const data::Prompt& prompt : prompts_) sum += std::ssize(prompt.ids);
  return sum;
}

generate::Prompt Answer::ask(std::size_t choice, std::int64_t max_new_tokens) const {
  return {.ids = prompts_[choice / static_cast<std::size_t>(request_.n)].ids,
          .index = static_cast<std::int64_t>(choice),
          .max_new_tokens = max_new_tokens,
          .sampling = request_.sampling,
          .stop_ids = model_.stop_ids,
          .adapter = model_.adapter,
          .num_top = request_.num_top};
}

bool Answer::on_token(std::size_t index, const generate::Token& token) {
  Choice& choice = choices_[index];
  ++num_new_;
  const auto& stop_ids = model_.stop_ids;
  if (std::find(stop_ids.begin(), stop_ids.end(), token.id) != stop_ids.end()) return !outbox.is_cancelled();
  if (request_.num_top) choice.tokens.push_back(token);
  send_text(index, choice.answer.push(token.id));
  return !choice.answer.is_stopped() && !outbox.is_cancelled();
}

/// Streams new text of a choice, if requested.
void Answer::send_text(std::size_t index, const std::string& text) {
  Choice& choice = choices_[index];
  if (!request_.streams || text.empty()) return;
  const bool is_first = choice.answer.text().size() == text.size();
  AnswerJson logprobs;
  if (request_.num_top) {
    logprobs = logprobs_json(request_.is_chat, *model_.tokenizer, choice.tokens, choice.num_sent);
    choice.tokens.clear();
    choice.num_sent = choice.answer.text().size();
  }
  AnswerJson delta = {{"content", text}};
  if (is_first) delta = {{"role", "assistant"}, {"content", text}};
  send_part(index, {"delta", std::move(delta), text, std::move(logprobs), nullptr});
}

/// Streams a piece of a choice.
void Answer::send_part(std::size_t index, ChoiceJson part) {
  AnswerJson event = answer_head(request_, id_, model_.name, created_);
  event["choices"] = AnswerJson::array({as_json(request_.is_chat, index, std::move(part))});
  if (request_.include_usage) event["usage"] = nullptr;
  send_event(dump_json(event));
}

void Answer::send_event(const std::string& json) { outbox.write(fmt::format("data: {}\n\n", json)); }

void Answer::on_done(std::size_t index, bool is_cut) {
  Choice& choice = choices_[index];
  send_text(index, choice.answer.finish());
  choice.finish_reason = is_cut && !choice.answer.is_stopped() ? "length" : "stop";
  if (request_.streams) {
    AnswerJson delta = AnswerJson::object();
    if (choice.answer.text().empty()) delta = {{"role", "assistant"}, {"content", ""}};
    send_part(index, {"delta", std::move(delta), "", nullptr, choice.finish_reason});
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
    const std::string& text = choice.answer.text();
    whole["choices"].push_back(
        as_json(request_.is_chat, i,
                {"message",
                 {{"role", "assistant"}, {"content", text}, {"refusal", nullptr}},
                 text,
                 request_.num_top ? logprobs_json(request_.is_chat, *model_.tokenizer, choice.tokens, 0) : AnswerJson(),
                 choice.finish_reason}));
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
