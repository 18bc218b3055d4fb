#include "lora_train/teach/verify.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <regex>

#include "lora_train/base/text.h"
#include "lora_train/hub/http/url.h"
#include "teacher.h"

namespace lora_train::teach {
namespace {

using Json = nlohmann::ordered_json;

/// Reads the infinities that Python writes as null. Leaves out values that are nested deeply: copies are recursive.
Json parse(const std::string& body) {
  static const std::regex infinite(R"(([:,\[] ?)(NaN|-?Infinity)\b)");
  const auto read = [](const std::string& text) {
    return Json::parse(
        text, [](int depth, auto, const Json&) { return depth < 16; }, /*allow_exceptions=*/false);
  };
  const Json json = read(body);
  return json.is_discarded() ? read(std::regex_replace(body, infinite, "$1null")) : json;
}

/// The element, or null.
const Json& at(const Json& list, std::size_t i) {
  static const Json none;
  return list.is_array() && i < list.size() ? list[i] : none;
}
const Json& at(const Json& object, const std::string& key) {
  return object.is_object() && object.contains(key) ? object[key] : at(object, SIZE_MAX);
}

std::string string_at(const Json& object, const char* key) {
  const Json& value = at(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}

std::optional<double> number(const Json& value) {
  const double number = value.is_number() ? value.get<double>() : 1;
  return number > -9999 && number <= 1e-3 ? std::optional(number) : std::nullopt;
}

struct NamedToken {
  std::string name;
  std::int64_t id = -1;
  std::optional<double> log_prob;
};

/// Reads a list of objects (chats; with llama.cpp, completions too) or lists side by side (OpenAI's completions). A
/// token without its own number may be among the most likely ones.
std::vector<NamedToken> tokens_of(const Json& logprobs) {
  std::vector<NamedToken> tokens;
  for (const Json& entry : at(logprobs, "content")) {
    tokens.push_back({string_at(entry, "token"), -1, number(at(entry, "logprob"))});
    NamedToken& token = tokens.back();
    if (at(entry, "id").is_number_integer()) token.id = entry["id"].get<std::int64_t>();
    for (const Json& top : at(entry, "top_logprobs")) {
      if (!token.log_prob && string_at(top, "token") == token.name) token.log_prob = number(at(top, "logprob"));
    }
  }
  for (const Json& name : at(logprobs, "tokens")) {
    const std::size_t i = tokens.size();
    tokens.push_back(
        {name.is_string() ? name.get<std::string>() : "", -1, number(at(at(logprobs, "token_logprobs"), i))});
    NamedToken& token = tokens.back();
    if (!token.log_prob) token.log_prob = number(at(at(at(logprobs, "top_logprobs"), i), token.name));
  }
  return tokens;
}

/// `usual`: the id at this place where the whole text is tokenized as usual; else -1.
std::int32_t id_of(const NamedToken& token, std::int32_t usual, const tokenizer::Tokenizer& tokenizer) {
  if (token.id >= 0 && token.id < tokenizer.vocab_size()) return static_cast<std::int32_t>(token.id);
  if (token.name.find("\ufffd") != std::string::npos) return -1;  // any part of a character
  const std::vector<std::int32_t> alone = tokenizer.encode(token.name).ids;
  const std::int32_t named = tokenizer.token_to_id(token.name).value_or(-1);
  for (const std::int32_t id : {usual, named, alone.size() == 1 ? alone[0] : -1}) {
    const bool is_named = tokenizer.decode(std::span(&id, 1)) == token.name || tokenizer.id_to_token(id) == token.name;
    if (id >= 0 && is_named) return id;
  }
  return -1;
}

struct Way {
  const char* path;
  bool is_echo, is_chat;
  Json fields;
};

}  // namespace

ServedTokens read_log_probs(const std::string& body, const Continuation& asked, bool is_echo,
                            const tokenizer::Tokenizer& tokenizer) {
  const Json json = parse(body);
  const Json& choice = at(at(json, "choices"), 0);
  const Json& of_prompt = at(choice, "prompt_logprobs");  // vLLM's
  std::vector<NamedToken> tokens = tokens_of(at(choice, "logprobs"));
  std::vector<std::int32_t> usual =
      tokenizer.encode(string_at(choice, "text") + string_at(at(choice, "message"), "content")).ids;
  if (is_echo) {
    const std::size_t before = asked.prompt.size(), whole = before + asked.tokens.size();
    const bool is_apart = of_prompt.size() == whole;
    if (!is_apart && tokens.size() != whole && tokens.size() != whole + 1) return {};  // one more: the server's own
    tokens.resize(whole);
    tokens.erase(tokens.begin(), tokens.begin() + std::ssize(asked.prompt));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const Json& entry = at(at(of_prompt, before + i), std::to_string(asked.tokens[i]));
      if (is_apart) tokens[i].log_prob = number(at(entry, "logprob"));
    }
  }
  ServedTokens served;
  for (const NamedToken& token : tokens) {
    const std::size_t i = served.ids.size();
    if (!is_echo && std::cmp_equal(i, asked.max_tokens)) break;
    const std::int32_t id = is_echo ? asked.tokens[i] : id_of(token, i < usual.size() ? usual[i] : -1, tokenizer);
    if (id < 0) break;
    served.ids.push_back(id);
    served.log_probs.push_back(token.log_prob);
    served.num_left_out -= token.log_prob ? 1 : 0;
  }
  served.num_left_out += std::ssize(tokens);
  return served;
}

ServerModel::ServerModel(std::string url, std::string name, const std::vector<std::string>& own_names,
                         const tokenizer::Tokenizer& tokenizer)
    : url_(std::move(url)), name_(std::move(name)), tokenizer_(tokenizer) {
  if (const char* const key = std::getenv("OPENAI_API_KEY"); key != nullptr) key_ = key;
  while (url_.ends_with('/')) url_.pop_back();
  if (!url_.ends_with("/v1")) url_ += "/v1";
  const Json list = parse(send("/models", "").body);
  std::vector<std::string> listed;
  for (const Json& model : at(list, "data")) listed.push_back(string_at(model, "id"));
  const auto is_listed = [&](const std::string& one) { return std::ranges::count(listed, one) > 0; };
  const std::string problem = name_.empty() ? "missing, and none is called " + join(own_names, " or ")
                                            : fmt::format("the server has no \"{}\"", name_);
  if (const auto own = std::ranges::find_if(own_names, is_listed); name_.empty() && own != own_names.end())
    name_ = *own;
  if (name_.empty() && listed.size() == 1) name_ = listed[0];
  if (name_.empty() || (!listed.empty() && !is_listed(name_)))
    throw ConfigError("--served-model", "{}; the models of {}: {}.", problem, hub::shown_url(url_),
                      listed.empty() ? "none" : join(listed));
}

hub::Answer ServerModel::send(const std::string& path, const std::string& body) {
  hub::Request request{.url = url_ + path, .bearer = key_, .body = body, .is_repeatable = false};
  request.stall_timeout_s = 600;
  if (!body.empty()) {
    request.method = "POST";
    request.headers = {{"Content-Type", "application/json"}};
  }
  hub::Answer answer = client_.send(request);
  if (answer.status == 401 || answer.status == 403)
    throw IoError(hub::shown_url(request.url), "refuses the key in $OPENAI_API_KEY ({})", server_message(answer));
  return answer;
}

ServedTokens ServerModel::ask(const Continuation& asked) {
  // A fixed continuation comes first: it leaves no doubt about the ids of tokens.
  static const std::vector<Way> ways = {{"/completions", true, false, {{"echo", true}, {"logprobs", 1}}},
                                        {"/completions", true, false, {{"prompt_logprobs", 1}}},
                                        {"/completions", false, false, {{"logprobs", 1}}},
                                        {"/chat/completions", false, true, {{"logprobs", true}, {"top_logprobs", 1}}}};
  std::vector<std::string> problems;
  for (std::size_t i = way_.value_or(0); i < (way_ ? *way_ + 1 : ways.size()); ++i) {
    const auto& [path, is_echo, is_chat, fields] = ways[i];
    if (is_chat && asked.messages.empty()) continue;  // the text would get a template
    Json body = fields;
    body.update({{"model", name_}, {"temperature", 0}, {"max_tokens", is_echo ? 1 : asked.max_tokens}});
    std::vector<std::int32_t> ids = asked.prompt;
    if (is_echo) ids.insert(ids.end(), asked.tokens.begin(), asked.tokens.end());
    body[is_chat ? "messages" : "prompt"] = is_chat ? Json::parse(asked.messages) : Json(ids);
    const hub::Answer answer = send(path, body.dump(-1, ' ', false, Json::error_handler_t::replace));
    ServedTokens served;
    if (answer.is_ok()) served = read_log_probs(answer.body, asked, is_echo, tokenizer_);
    if (std::ranges::any_of(served.log_probs, [](const auto& number) { return number.has_value(); })) {
      way_ = i;
      return served;
    }
    problems.push_back(fmt::format("{}: {}", path, answer.is_ok() ? "no log-probabilities" : server_message(answer)));
  }
  if (problem_.empty()) problem_ = join(problems, "; ");
  return {.num_left_out = std::ssize(asked.tokens)};
}

Comparison compare(const std::vector<ServedTokens>& served, const std::vector<std::vector<double>>& with_adapter,
                   const std::vector<std::vector<double>>& of_base) {
  Comparison result;
  double between = 0;
  for (std::size_t i = 0; i < served.size(); ++i) {
    result.num_left_out += served[i].num_left_out;
    for (std::size_t t = 0; t < served[i].ids.size(); ++t) {
      if (!served[i].log_probs[t]) continue;
      const double gap = std::abs(*served[i].log_probs[t] - with_adapter[i][t]);
      ++result.num_tokens;
      result.max_gap = std::max(result.max_gap, gap);
      result.gap_to_adapter += gap;
      result.gap_to_base += std::abs(*served[i].log_probs[t] - of_base[i][t]);
      between += std::abs(with_adapter[i][t] - of_base[i][t]);
    }
  }
  const auto count = static_cast<double>(result.num_tokens);
  for (double* const sum : {&result.gap_to_adapter, &result.gap_to_base, &between}) *sum /= count;
  const auto is_close = [](double gap, double other) { return gap <= 0.1 && gap <= other / 3; };
  result.can_tell = between > 0.02;
  if (result.can_tell && is_close(result.gap_to_adapter, result.gap_to_base)) result.verdict = "adapter";
  if (result.can_tell && is_close(result.gap_to_base, result.gap_to_adapter)) result.verdict = "base";
  return result;
}

}  // namespace lora_train::teach
