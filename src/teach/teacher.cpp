#include "lora_train/teach/teacher.h"

#include <nlohmann/json.hpp>

#include "lora_train/base/log.h"
#include "lora_train/base/utf8.h"
#include "lora_train/hub/http/url.h"

namespace lora_train::teach {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxShown = 300;

/// The server's message about an error: OpenAI's {"error": {"message"}}, FastAPI's {"detail"}, or the text.
std::string said(const hub::Answer& answer) {
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

std::int64_t count_in(const Json& usage, const char* name) {
  return usage.is_object() && usage.contains(name) && usage[name].is_number_integer() ? usage[name].get<std::int64_t>()
                                                                                      : 0;
}

/// The request for a question, as JSON.
std::string request_body(const TeacherOptions& options, const Question& question) {
  const SamplingOptions& sampling = options.sampling;
  Json body = {{"model", options.model}};
  body[options.is_raw ? "prompt" : "messages"] = Json::parse(question.prompt);
  if (!question.tools.empty()) body["tools"] = Json::parse(question.tools);
  body["max_tokens"] = options.max_tokens;
  body["temperature"] = sampling.temperature;
  if (sampling.top_p < 1) body["top_p"] = sampling.top_p;
  if (sampling.top_k > 0) body["top_k"] = sampling.top_k;
  if (sampling.min_p > 0) body["min_p"] = sampling.min_p;
  body["seed"] = question.seed & 0x7fffffffU;  // servers read it as a signed number
  if (!options.stop.empty()) body["stop"] = options.stop;
  if (options.top_logprobs > 0) {
    if (options.is_raw) {
      body["logprobs"] = options.top_logprobs;
    } else {
      body["logprobs"] = true;
      body["top_logprobs"] = options.top_logprobs;
    }
    if (options.asks_for_ids) body["return_tokens_as_token_ids"] = true;
  }
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Reads a server's answer to a question. Throws NoAnswer, saying what is wrong with it.
Answer parse_answer(const TeacherOptions& options, const std::string& body) {
  const auto fail = [&](const std::string& what) {
    throw NoAnswer(options.url, fmt::format("{}: {}", what, repair_utf8(body.substr(0, kMaxShown))));
  };
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) fail("the answer is not JSON");
  const Json choices = json.value("choices", Json());
  if (!choices.is_array() || choices.empty() || !choices[0].is_object()) fail("the answer has no choices");
  const Json& choice = choices[0];
  Answer answer;
  if (options.is_raw) {
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
  if (options.top_logprobs > 0) {
    if (!choice.contains("logprobs") || choice["logprobs"].is_null()) fail("the answer has no choices[0].logprobs");
    answer.logprobs = choice["logprobs"].dump();
  }
  const Json usage = json.value("usage", Json());
  answer.prompt_tokens = count_in(usage, "prompt_tokens");
  answer.completion_tokens = count_in(usage, "completion_tokens");
  return answer;
}

}  // namespace

Teacher::Teacher(TeacherOptions options) : options_(std::move(options)) {
  while (options_.url.ends_with('/')) options_.url.pop_back();
  if (options_.model.empty() || options_.top_logprobs > 0) read_models();
}

Answer Teacher::ask(const Question& question) {
  hub::Request wanted = request(options_.is_raw ? "/completions" : "/chat/completions");
  wanted.method = "POST";
  wanted.headers.push_back({"Content-Type", "application/json"});
  wanted.body = request_body(options_, question);
  for (int tries = 1;; ++tries) {
    const std::string body = send(wanted, question.source);
    try {
      return parse_answer(options_, body);
    } catch (const NoAnswer& problem) {
      if (tries >= options_.num_tries) throw NoAnswer(question.source, problem.message());
      log_debug("{}: asking again: {}", question.source, problem.message());
    }
  }
}

hub::Request Teacher::request(const std::string& path) const {
  hub::Request request;
  request.url = options_.url + path;
  request.bearer = options_.key;
  request.stall_timeout_s = options_.timeout_s;
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
    case 403: throw IoError(where, "the server refuses the key in $OPENAI_API_KEY ({})", said(answer));
    case 404:
    case 405:
      throw IoError(where, "the server has no such path or model (" + said(answer) +
                               "). --teacher must end in /v1; --teacher-model must name a model that the server lists");
    case 400:
    case 413:
    case 422: throw RefusedQuestion(source, fmt::format("the server refuses the question ({})", said(answer)));
    default: throw no_answer(where, said(answer));
  }
}

void Teacher::read_models() {
  const hub::Request wanted = request("/models");
  const std::string where = hub::shown_url(wanted.url);
  const Json json = Json::parse(send(wanted, where), nullptr, /*allow_exceptions=*/false);
  const Json models = json.is_object() ? json.value("data", Json()) : Json();
  const bool has_model = models.is_array() && !models.empty() && models[0].is_object();
  options_.asks_for_ids = has_model && models[0].value("owned_by", Json()) == "vllm";
  if (!options_.model.empty()) return;
  if (!has_model || !models[0].contains("id") || !models[0]["id"].is_string())
    throw IoError(where, "the server lists no model; name one with --teacher-model");
  options_.model = models[0]["id"];
}

}  // namespace lora_train::teach
