#include "answers.h"

#include <algorithm>

namespace lora_train::cli {

AnswerCollector::AnswerCollector(const tokenizer::Tokenizer& tokenizer, AnswerOptions options, Callbacks callbacks)
    : tokenizer_(tokenizer), options_(std::move(options)), callbacks_(std::move(callbacks)) {}

void AnswerCollector::on_start() {
  if (callbacks_.on_start) callbacks_.on_start();
}

bool AnswerCollector::is_stop_id(std::int32_t id) const {
  return std::find(options_.stop_ids.begin(), options_.stop_ids.end(), id) != options_.stop_ids.end();
}

void AnswerCollector::add_text(Active& active, const std::string& piece) {
  const std::string shown = active.stops.push(piece);
  active.text += shown;
  if (callbacks_.on_text && !shown.empty()) callbacks_.on_text(shown);
}

bool AnswerCollector::on_token(std::size_t prompt, bool is_base, std::int32_t id) {
  Active& active = active_.try_emplace({prompt, is_base}, tokenizer_, options_.stop_strings).first->second;
  active.ids.push_back(id);
  if (callbacks_.on_token) callbacks_.on_token();
  const bool reads_text = callbacks_.on_text || !options_.stop_strings.empty();
  if (!reads_text || is_stop_id(id)) return true;
  add_text(active, active.stream.push(id));
  return !active.stops.is_found();
}

Answer AnswerCollector::finish(Active& active, bool is_cut) {
  if (callbacks_.on_text || !options_.stop_strings.empty()) {
    add_text(active, active.stream.finish());
    if (active.stops.is_found()) return {std::move(active.ids), std::move(active.text), false};
    const std::string rest = active.stops.finish();
    if (callbacks_.on_text && !rest.empty()) callbacks_.on_text(rest);
  }
  std::span<const std::int32_t> ids = active.ids;
  if (!ids.empty() && is_stop_id(ids.back())) ids = ids.first(ids.size() - 1);
  std::string text = tokenizer_.decode(ids, /*skip_special=*/true);
  return {std::move(active.ids), std::move(text), is_cut};
}

void AnswerCollector::on_done(std::size_t prompt, bool is_base, bool is_cut) {
  const auto found = active_.try_emplace({prompt, is_base}, tokenizer_, options_.stop_strings).first;
  Answer answer = finish(found->second, is_cut);
  active_.erase(found);
  if (is_base) {
    waiting_.emplace(prompt, std::move(answer));
    return;
  }
  Answers answers{std::move(answer), {}};
  if (options_.compare) {
    const auto base = waiting_.find(prompt);
    answers.base = std::move(base->second);
    waiting_.erase(base);
  }
  if (callbacks_.on_answers) callbacks_.on_answers(prompt, answers);
}

}  // namespace lora_train::cli
