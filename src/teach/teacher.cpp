#include "teacher.h"

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "lora_train/base/log.h"
#include "lora_train/base/utf8.h"
#include "lora_train/hub/http/url.h"

namespace lora_train::teach {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxShown = 300;
constexpr int kTries = 3;  // for answers that cannot be used

}  // namespace

std::string server_message(const hub::Answer& answer) {
  const Json body = Json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
  std::string text = answer.body;
  if (body.is_object()) {
    const Json error = body.value("error", Json());
    if (error.is_object() && error.contains("message") && error["message"].is_string()) text = error["message"];
    if (error.is_string()) text = error;
    if (body.contains("message") && body["message"].is_string()) text = body["message"];
    if (body.contains("detail")) text = body["detail"].dump();
  }
  text = repair_utf8(text.substr(0, kMaxShown));
  return fmt::format("HTTP {}{}", answer.status, text.empty() ? "" : ": " + text);
}

namespace {

std::int64_t count_in(const Json& usage, const char* name) {
  return usage.is_object() && usage.contains(name) && usage[name].is_number_integer() ? usage[name].get<std::int64_t>()
                                                                                      : 0;
}

}  // namespace

Teacher::Teacher(std::string url, std::string model, const TeachRequest& request, const SamplingOptions& sampling)
    : url_(std::move(url)), model_(std::move(model)), request_(request), sampling_(sampling) {
  const char* const key = std::getenv("OPENAI_API_KEY");
  if (key != nullptr) key_ = key;
  while (url_.ends_with('/')) url_.pop_back();
  if (model_.empty() || request_.top_logprobs > 0) read_models();
}

std::string Teacher::body_of(const Question& question) const {
  Json body = {{"model", model_}};
  body[request_.job.is_raw ? "prompt" : "messages"] = Json::parse(question.prompt);
  if (!question.tools.empty()) body["tools"] = Json::parse(question.tools);
  body["max_tokens"] = request_.max_tokens;
  body["temperature"] = sampling_.temperature;
  if (sampling_.top_p < 1) body["top_p"] = sampling_.top_p;
  if (sampling_.top_k > 0) body["top_k"] = sampling_.top_k;
  if (sampling_.min_p > 0) body["min_p"] = sampling_.min_p;
  body["seed"] = question.seed & 0x7fffffffU;  // servers read it as a signed number
  if (!request_.stop.empty()) body["stop"] = request_.stop;
  if (request_.top_logprobs > 0) {
    if (request_.job.is_raw) {
      body["logprobs"] = request_.top_logprobs;
    } else {
      body["logprobs"] = true;
      body["top_logprobs"] = request_.top_logprobs;
    }
    if (asks_for_ids_) body["return_tokens_as_token_ids"] = true;
  }
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Answer Teacher::parse(const std::string& body) const {
  const auto fail = [&](const std::string& what) {
    throw NoAnswer(url_, fmt::format("{}: {}", what, repair_utf8(body.substr(0, kMaxShown))));
  };
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) fail("the answer is not JSON");
  const Json choices = json.value("choices", Json());
  if (!choices.is_array() || choices.empty() || !choices[0].is_object()) fail("the answer has no choices");
  const Json& choice = choices[0];
  Answer answer;
  if (request_.job.is_raw) {
    if (!choice.contains("text") || !choice["text"].is_string()) fail("the answer has no choices[0].text");
    answer.message = choice["text"].dump();
  } else {
    const Json message = choice.value("message", Json());
    const bool has_text = message.is_object() && message.contains("content") && message["content"].is_string();
    const bool has_calls = message.is_object() && message.contains("tool_calls") && !message["tool_calls"].empty();
    if (!has_text && !has_calls) fail("the answer has no choices[0].message with content or tool_calls");
    Json kept = {{"role", "assistant"}, {"content", has_text ? message["content"] : Json("")}};
    for (const char* name : {"reasoning_content", "tool_calls"}) {
      if (message.contains(name) && !message[name].is_null() && !message[name].empty()) kept[name] = message[name];
    }
    answer.message = kept.dump();
  }
  if (choice.contains("finish_reason") && choice["finish_reason"].is_string())
    answer.finish_reason = choice["finish_reason"];
  if (request_.top_logprobs > 0) {
    if (!choice.contains("logprobs") || choice["logprobs"].is_null()) fail("the answer has no choices[0].logprobs");
    answer.logprobs = choice["logprobs"].dump();
  }
  const Json usage = json.value("usage", Json());
  answer.prompt_tokens = count_in(usage, "prompt_tokens");
  answer.completion_tokens = count_in(usage, "completion_tokens");
  return answer;
}

Answer Teacher::ask(const Question& question) {
  hub::Request wanted = request(request_.job.is_raw ? "/completions" : "/chat/completions");
  wanted.method = "POST";
  wanted.headers.push_back({"Content-Type", "application/json"});
  wanted.body = body_of(question);
  for (int tries = 1;; ++tries) {
    const std::string body = send(wanted, question.source);
    try {
      return parse(body);
    } catch (const NoAnswer& problem) {
      if (tries >= kTries) throw NoAnswer(question.source, problem.message());
      log_debug("{}: asking again: {}", question.source, problem.message());
    }
  }
}

hub::Request Teacher::request(const std::string& path) const {
  hub::Request request;
  request.url = url_ + path;
  request.bearer = key_;
  request.stall_timeout_s = request_.timeout_s;
  return request;
}

std::string Teacher::send(hub::Request request, const std::string& source) {
  const auto no_answer = [&](const std::string& where, const std::string& message) {
    return NoAnswer(source, where == source ? message : fmt::format("{}: {}", where, message));
  };
  hub::Answer answer;
  try {
    answer = client_.send(request);
  } catch (const hub::TransferError& error) {
    throw no_answer(error.where(), error.message());
  }
  if (answer.is_ok()) return std::move(answer.body);
  const std::string where = hub::shown_url(request.url);
  switch (answer.status) {
    case 401:
    case 403: throw IoError(where, "the server refuses the key in $OPENAI_API_KEY ({})", server_message(answer));
    case 404:
    case 405:
      throw IoError(where, "the server has no such path or model (" + server_message(answer) +
                               "). --teacher must end in /v1; --teacher-model must name a model that the server lists");
    case 400:
    case 413:
    case 422:
      throw RefusedQuestion(source, fmt::format("the server refuses the question ({})", server_message(answer)));
    default: throw no_answer(where, server_message(answer));
  }
}

void Teacher::read_models() {
  const hub::Request wanted = request("/models");
  const std::string where = hub::shown_url(wanted.url);
  const Json json = Json::parse(send(wanted, where), nullptr, /*allow_exceptions=*/false);
  const Json models = json.is_object() ? json.value("data", Json()) : Json();
  const bool has_model = models.is_array() && !models.empty() && models[0].is_object();
  asks_for_ids_ = has_model && models[0].value("owned_by", Json()) == "vllm";
  if (!model_.empty()) return;
  if (!has_model || !models[0].contains("id") || !models[0]["id"].is_string())
    throw IoError(where, "the server lists no model; name one with --teacher-model");
  model_ = models[0]["id"];
}

}  // namespace lora_train::teach
