#include "teacher_tokens.h"

#include <algorithm>
#include <charconv>
#include <span>
#include <tuple>

#include "lora_train/base/error.h"
#include "lora_train/data/cache/document_store.h"
#include "lora_train/tokenizer/tokenizer.h"
#include "read/row_format.h"

namespace lora_train::data {
namespace {

constexpr std::string_view kIdMark = "token_id:";

/// The token that the teacher chose, and those that it thought of, itself among them.
struct TeacherToken {
  std::int32_t id = SoftLabels::kNone;
  std::vector<std::pair<std::int32_t, float>> alternatives = {};

  void add(std::int32_t alternative, float log_prob) {
    const bool is_new =
        std::ranges::find(alternatives, alternative, [](const auto& a) { return a.first; }) == alternatives.end();
    if (alternative != SoftLabels::kNone && is_new) alternatives.emplace_back(alternative, log_prob);
  }
};

std::int32_t id_of_number(std::int64_t id, const TeacherVocabulary& vocabulary) {
  return id >= 0 && id < vocabulary.vocab_size() ? static_cast<std::int32_t>(id) : SoftLabels::kNone;
}

std::int32_t id_of_text(const std::string& text, const TeacherVocabulary& vocabulary) {
  if (!text.starts_with(kIdMark)) return vocabulary.id_of_text(text);
  std::int64_t id = -1;
  std::from_chars(text.data() + kIdMark.size(), text.data() + text.size(), id);
  return id_of_number(id, vocabulary);
}

float log_prob_of(const Json& value, const std::string& place) {
  if (!value.is_number()) wrong_type(place, value, "a number");
  return value.get<float>();
}

std::pair<std::int32_t, float> read_token(const Json& entry, const std::string& place,
                                          const TeacherVocabulary& vocabulary) {
  if (!entry.is_object()) wrong_type(place, entry, "an object with token and logprob");
  const float log_prob = log_prob_of(entry.value("logprob", Json()), place + ".logprob");
  if (entry.contains("id") && entry["id"].is_number_integer())
    return {id_of_number(entry["id"].get<std::int64_t>(), vocabulary), log_prob};
  return {id_of_text(string_of(entry.value("token", Json()), place + ".token"), vocabulary), log_prob};
}

/// The form of chats.
std::vector<TeacherToken> read_content(const Json& list, const TeacherVocabulary& vocabulary) {
  std::vector<TeacherToken> tokens;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string place = "logprobs.content[" + std::to_string(i) + "]";
    const auto [id, log_prob] = read_token(list[i], place, vocabulary);
    TeacherToken token{id};
    token.add(id, log_prob);
    const Json top = list[i].value("top_logprobs", Json());
    if (!top.is_null() && !top.is_array()) wrong_type(place + ".top_logprobs", top, "a list");
    for (std::size_t k = 0; k < top.size(); ++k) {
      const auto [other, value] = read_token(top[k], place + ".top_logprobs[" + std::to_string(k) + "]", vocabulary);
      token.add(other, value);
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

/// The form of completions.
std::vector<TeacherToken> read_lists(const Json& lists, const TeacherVocabulary& vocabulary) {
  const Json texts = lists.value("tokens", Json()), values = lists.value("token_logprobs", Json());
  const Json tops = lists.value("top_logprobs", Json());
  if (!texts.is_array() || !values.is_array() || texts.size() != values.size())
    throw DataError("", "logprobs has neither content nor the lists tokens and token_logprobs of one length");
  std::vector<TeacherToken> tokens;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string place = "[" + std::to_string(i) + "]";
    TeacherToken token{id_of_text(string_of(texts[i], "logprobs.tokens" + place), vocabulary)};
    if (!values[i].is_null()) token.add(token.id, log_prob_of(values[i], "logprobs.token_logprobs" + place));
    if (tops.is_array() && i < tops.size() && tops[i].is_object()) {
      for (const auto& [text, value] : tops[i].items())
        token.add(id_of_text(text, vocabulary), log_prob_of(value, "logprobs.top_logprobs" + place));
    }
    tokens.push_back(std::move(token));
  }
  return tokens;
}

std::vector<TeacherToken> read_tokens(const Json& logprobs, const TeacherVocabulary& vocabulary) {
  if (logprobs.is_array()) return read_content(logprobs, vocabulary);
  if (!logprobs.is_object()) wrong_type("logprobs", logprobs, "an object as servers return it");
  const Json content = logprobs.value("content", Json());
  return content.is_array() ? read_content(content, vocabulary) : read_lists(logprobs, vocabulary);
}

}  // namespace

TeacherVocabulary::TeacherVocabulary(const tokenizer::Tokenizer* tokenizer, std::int64_t vocab_size)
    : vocab_size_(vocab_size) {
  if (tokenizer == nullptr) return;
  for (std::int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    const auto [found, is_new] = id_of_text_.try_emplace(tokenizer->decode(std::span(&id, 1)), id);
    if (!is_new) found->second = SoftLabels::kNone;
  }
}

std::int32_t TeacherVocabulary::id_of_text(const std::string& text) const {
  const auto found = id_of_text_.find(text);
  return found == id_of_text_.end() ? SoftLabels::kNone : found->second;
}

void add_soft_labels(const Json& logprobs, const TeacherVocabulary& vocabulary, EncodedSample& sample) {
  const std::vector<TeacherToken> tokens = read_tokens(logprobs, vocabulary);
  const auto is_trained = [&](std::size_t i) { return sample.labels[i] != kIgnoredLabel; };
  std::size_t end = sample.labels.size();
  while (end > 0 && !is_trained(end - 1)) --end;
  std::size_t begin = end;
  while (begin > 0 && is_trained(begin - 1)) --begin;
  std::size_t num_equal = 0, width = 0;
  while (num_equal < tokens.size() && begin + num_equal < end &&
         tokens[num_equal].id == sample.ids[begin + num_equal]) {
    width = std::max(width, tokens[num_equal++].alternatives.size());
  }
  if (width == 0) return;
  const auto num_supervised = static_cast<std::size_t>(count_supervised(sample.labels));
  sample.soft_width = static_cast<std::int64_t>(width);
  sample.soft_ids.assign(num_supervised * width, SoftLabels::kNone);
  sample.soft_log_probs.assign(num_supervised * width, 0);
  std::size_t at = static_cast<std::size_t>(count_supervised(std::span(sample.labels).first(begin)));
  for (std::size_t i = begin == 0 ? 1 : 0; i < num_equal; ++i, ++at) {  // nothing predicts the first token of a row
    for (std::size_t k = 0; k < tokens[i].alternatives.size(); ++k) {
      std::tie(sample.soft_ids[at * width + k], sample.soft_log_probs[at * width + k]) = tokens[i].alternatives[k];
    }
  }
}

}  // namespace lora_train::data
