#include "answer_match.h"

#include <cctype>

namespace lora_train::evaluate {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

}  // namespace

std::string normalized_answer(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool has_digits = i > 0 && i + 1 < text.size() && is_digit(text[i - 1]) && is_digit(text[i + 1]);
    if (text[i] == ',' && has_digits) continue;
    if (!is_space(text[i])) {
      out += text[i];
    } else if (!out.empty() && out.back() != ' ') {
      out += ' ';
    }
  }
  if (out.ends_with(' ')) out.pop_back();
  return out;
}

AnswerMatcher::AnswerMatcher(const std::string& regex, const std::string& where) {
  if (!regex.empty()) pattern_ = std::make_shared<const tokenizer::TextPattern>(regex, where);
}

std::optional<std::string> AnswerMatcher::pick(const std::string& text) const {
  if (!pattern_) return normalized_answer(text);
  const auto found = pattern_->find(text);
  if (!found) return std::nullopt;
  std::string answer = normalized_answer(*found);
  while (answer.size() > 1 && (answer.back() == '.' || answer.back() == ',') && is_digit(answer[answer.size() - 2])) {
    answer.pop_back();
  }
  return answer;
}

}  // namespace lora_train::evaluate
