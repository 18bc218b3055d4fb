#include "lora_train/serve/service.h"

#include <algorithm>
#include <ctime>
#include <new>
#include <random>
#include <utility>
#include <vector>

#include "answer_json.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"

namespace lora_train::serve {

bool RequestBoard::submit(const std::shared_ptr<Answer>& answer, std::int64_t max_new_tokens) {
  const std::lock_guard lock(mutex_);
  const std::size_t count = answer->num_choices();
  if (is_closed_ || waiting_.size() + count > max_waiting_) return false;
  for (std::size_t choice = 0; choice < count; ++choice) {
    generate::Prompt prompt = answer->ask(choice, max_new_tokens);
    prompt.id = num_asked_++;
    asked_[prompt.id] = {answer, choice};
    waiting_.push_back(std::move(prompt));
  }
  changed_.notify_one();
  return true;
}

void RequestBoard::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  changed_.notify_one();
}

void RequestBoard::cancel_all() {
  std::map<std::int64_t, Asked> all;
  {
    const std::lock_guard lock(mutex_);
    all = asked_;
  }
  for (const auto& [id, asked] : all) asked.answer->outbox.cancel();
}

void RequestBoard::on_start(std::int64_t max_tokens) {
  max_tokens_ = max_tokens;
  if (when_started) when_started();
}

std::optional<generate::Prompt> RequestBoard::next(bool may_wait) {
  std::unique_lock lock(mutex_);
  if (may_wait) changed_.wait(lock, [&] { return !waiting_.empty() || is_closed_; });
  if (waiting_.empty()) return std::nullopt;
  generate::Prompt prompt = std::move(waiting_.front());
  waiting_.pop_front();
  return prompt;
}

RequestBoard::Asked RequestBoard::find(std::int64_t id) {
  const std::lock_guard lock(mutex_);
  return asked_.at(id);
}

RequestBoard::Asked RequestBoard::take(std::int64_t id) {
  const std::lock_guard lock(mutex_);
  return std::move(asked_.extract(id).mapped());
}

bool RequestBoard::is_wanted(std::int64_t id) {
  const Asked asked = find(id);
  const bool is_wanted = !asked.answer->outbox.is_cancelled() && !asked.answer->outbox.is_finished();
  if (!is_wanted) take(id);
  return is_wanted;
}

bool RequestBoard::on_token(std::int64_t id, const generate::Token& token) {
  const Asked asked = find(id);
  return asked.answer->on_token(asked.choice, token) && !asked.answer->outbox.is_finished();
}

void RequestBoard::on_done(std::int64_t id, bool is_cut) {
  const Asked asked = take(id);
  asked.answer->on_done(asked.choice, is_cut);
}

void RequestBoard::on_failure(std::int64_t id, const Error& error) {
  const Asked asked = take(id);
  asked.answer->on_failure(500, error.message());
}

namespace {

std::uint64_t random_number() {
  thread_local std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

std::string answer_id(bool is_chat) {
  return fmt::format("{}{:016x}", is_chat ? "chatcmpl-" : "cmpl-", random_number());
}

AnswerJson model_json(const ServedModel& model, std::int64_t max_tokens) {
  return {{"id", model.name},
          {"object", "model"},
          {"created", 0},
          {"owned_by", "lora-train"},
          {"max_model_len", max_tokens}};
}

HttpReply reply_of(const ApiError& error) {
  HttpReply reply{error.status(), error.json()};
  if (error.status() == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.status() == 503) reply.headers.emplace_back("Retry-After", "5");
  return reply;
}

/// The text of a chat for a model that takes raw prompts.
std::string only_message(const std::string& chat, const std::string& model) {
  const AnswerJson fields = AnswerJson::parse(chat), &messages = fields["messages"];
  const AnswerJson content = messages[0].value("content", AnswerJson());
  if (fields.size() == 1 && messages.size() == 1 && messages[0]["role"] == "user" && content.is_string())
    return content;
  throw ApiError(400,
                 "model \"" + model +
                     "\" takes raw prompts: a chat is one user message, without tools. /v1/completions takes whole "
                     "texts; --raw=false starts the server with the chat template",
                 "messages", "unsupported_value");
}

void expect_method(const HttpRequest& request, const std::string& method) {
  if (request.method == method) return;
  throw ApiError(405, fmt::format("{} takes {}, not {}", request.path, method, request.method.substr(0, 20)));
}

}  // namespace

bool Service::has_access(const std::string& authorization) const {
  if (options_.api_key.empty()) return true;
  const std::string expected = "Bearer " + options_.api_key;
  unsigned difference = authorization.size() == expected.size() ? 0 : 1;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const char given = i < authorization.size() ? authorization[i] : '\0';
    difference |= static_cast<unsigned char>(given) ^ static_cast<unsigned char>(expected[i]);
  }
  return difference == 0;
}

HttpReply Service::reply(const HttpRequest& request) noexcept {
  try {
    return route(request);
  } catch (const ApiError& error) {
    return reply_of(error);
  } catch (const std::bad_alloc&) {
    return reply_of(ApiError(500, "out of memory on the host"));
  } catch (const std::exception& error) {
    return reply_of(ApiError(500, error.what()));
  }
}

HttpReply Service::route(const HttpRequest& request) {
  const std::string& path = request.path;
  if (path == "/health") {
    expect_method(request, "GET");
    return {200, R"({"status":"ok"})"};
  }
  if (!has_access(request.authorization)) {
    throw ApiError(401, "this server needs a key: Authorization: Bearer KEY", "", "invalid_api_key");
  }
  const std::string models = "/v1/models";
  if (path == models || path.starts_with(models + "/")) {
    expect_method(request, "GET");
    return path == models ? list_models() : show_model(path.substr(models.size() + 1));
  }
  const bool is_chat = path == "/v1/chat/completions";
  if (!is_chat && path != "/v1/completions") {
    throw ApiError(404, "there is no " + path.substr(0, 100) +
                            "; there are /v1/chat/completions, /v1/completions, /v1/models and /health");
  }
  expect_method(request, "POST");
  return ask(request, is_chat);
}

HttpReply Service::list_models() const {
  AnswerJson list = AnswerJson::array();
  for (const ServedModel& model : options_.models) list.push_back(model_json(model, board_.max_tokens()));
  return {200, dump_json({{"object", "list"}, {"data", std::move(list)}})};
}

HttpReply Service::show_model(const std::string& name) const {
  return {200, dump_json(model_json(find(name), board_.max_tokens()))};
}

const ServedModel& Service::find(const std::string& name) const {
  std::vector<std::string> names;
  for (const ServedModel& model : options_.models) {
    if (model.name == name) return model;
    names.push_back(model.name);
  }
  throw ApiError(404, fmt::format("there is no model \"{}\"; there are {}", name.substr(0, 100), join(names)), "model",
                 "model_not_found");
}

std::vector<data::Prompt> Service::prompts_of(const ApiRequest& request, const ServedModel& model) const {
  if (request.is_chat && model.chat_template == nullptr && !model.is_raw) {
    throw ApiError(400,
                   "model \"" + model.name +
                       "\" has no chat template; start the server with --chat-template, or use /v1/completions",
                   "model");
  }
  const data::PromptOptions options{model.tokenizer, model.chat_template, /*raw=*/!request.is_chat || model.is_raw, ""};
  std::vector<data::Prompt> prompts;
  try {
    if (request.is_chat && model.is_raw)
      prompts.push_back(data::make_prompt(only_message(request.chat, model.name), "messages", options));
    else if (request.is_chat)
      prompts.push_back(data::make_prompt_of_example(request.chat, "messages", options));
    for (const auto& text : request.texts) prompts.push_back(data::make_prompt(text, "prompt", options));
  } catch (const DataError& error) {
    throw ApiError(400, error.what(), request.is_chat ? "messages" : "prompt");
  } catch (const FormatError& error) {
    throw ApiError(400, error.what(), request.is_chat ? "messages" : "prompt");
  }
  for (const auto& ids : request.token_lists) prompts.push_back({"prompt", "", ids});
  for (const data::Prompt& prompt : prompts) {
    const std::int32_t largest = *std::max_element(prompt.ids.begin(), prompt.ids.end());
    if (largest < model.vocab_size) continue;
    throw ApiError(400, fmt::format("token {} is not in the vocabulary of {}", largest, model.vocab_size), "prompt");
  }
  return prompts;
}

/// New tokens that each prompt may have.
std::int64_t Service::room_for_answer(const ApiRequest& request, const std::vector<data::Prompt>& prompts) const {
  const std::int64_t most = board_.max_tokens();
  std::int64_t longest = 0;
  for (const data::Prompt& prompt : prompts) longest = std::max(longest, static_cast<std::int64_t>(prompt.ids.size()));
  const std::int64_t room = most - longest;
  const std::int64_t wanted =
      request.max_tokens.value_or(std::min(options_.max_new_tokens, std::max<std::int64_t>(room, 1)));
  if (wanted <= room) return wanted;
  throw ApiError(400,
                 fmt::format("the prompt has {} tokens, and the request asks for {} new ones; this server's context is "
                             "{}. Shorten the prompt, or lower max_tokens",
                             longest, wanted, most),
                 request.is_chat ? "messages" : "prompt", "context_length_exceeded");
}

HttpReply Service::ask(const HttpRequest& request, bool is_chat) {
  if (request.is_too_large) {
    throw ApiError(413, fmt::format("the body is longer than {} bytes", kMaxBodyBytes));
  }
  if (!lower_case(request.content_type).starts_with("application/json")) {
    throw ApiError(415, "Content-Type is \"" + request.content_type.substr(0, 60) + "\"; expected application/json");
  }
  ApiRequest asked = is_chat ? parse_chat_request(request.body) : parse_completion_request(request.body);
  const ServedModel& model = find(asked.model);
  if (!asked.has_seed) asked.sampling.seed = random_number();
  std::vector<data::Prompt> prompts = prompts_of(asked, model);
  const std::int64_t max_new_tokens = room_for_answer(asked, prompts);
  const auto answer =
      std::make_shared<Answer>(std::move(asked), model, std::move(prompts), answer_id(is_chat), std::time(nullptr));
  if (!board_.submit(answer, max_new_tokens)) {
    throw ApiError(503, "too many requests are waiting, or the server is stopping; try again later", "", "server_busy");
  }
  return {200, "", {}, answer};
}

}  // namespace lora_train::serve
