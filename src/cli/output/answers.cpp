#include "answers.h"

#include <unistd.h>
#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "standard_output.h"

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

namespace {

constexpr std::string_view kBetween = " | ";
constexpr int kNarrowestColumn = 20;

int columns_of(std::string_view text) {
  int columns = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_char(text, at);
    columns += std::max(0, utf8proc_charwidth(static_cast<utf8proc_int32_t>(c.code_point)));
    at += std::max<std::size_t>(c.length, 1);
  }
  return columns;
}

/// How much of the text fits, at least one character.
std::size_t fitting(std::string_view text, int width) {
  std::size_t at = 0;
  for (int columns = 0; at < text.size();) {
    const Utf8Char c = utf8_char(text, at);
    columns += std::max(0, utf8proc_charwidth(static_cast<utf8proc_int32_t>(c.code_point)));
    if (columns > width && at > 0) break;
    at += std::max<std::size_t>(c.length, 1);
  }
  return at;
}

void wrap_line(std::string_view line, int width, std::vector<std::string>& out) {
  while (columns_of(line) > width) {
    const std::size_t end = fitting(line, width);
    const std::size_t space = line.substr(0, end + 1).rfind(' ');
    const bool at_word = space != std::string_view::npos && space > 0;
    out.emplace_back(line.substr(0, at_word ? space : end));
    line.remove_prefix(at_word ? space + 1 : end);
  }
  out.emplace_back(line);
}

std::vector<std::string> wrapped(std::string_view text, int width) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    wrap_line(text.substr(begin, end - begin), width, lines);
    begin = end + 1;
  }
  return lines;
}

std::string padded(const std::string& text, int width) {
  return text + std::string(static_cast<std::size_t>(std::max(0, width - columns_of(text))), ' ');
}

}  // namespace

std::string side_by_side(std::string_view left_head, std::string_view left, std::string_view right_head,
                         std::string_view right, int width) {
  const std::string left_text = visible_text(left), right_text = visible_text(right);
  const int column = (width - static_cast<int>(kBetween.size())) / 2;
  if (column < kNarrowestColumn) {
    return fmt::format("{}:\n{}\n{}:\n{}\n", left_head, left_text, right_head, right_text);
  }
  const auto left_lines = wrapped(left_text, column), right_lines = wrapped(right_text, column);
  std::string out = fmt::format("{}{}{}\n", padded(std::string(left_head), column), kBetween, right_head);
  const std::string rule(static_cast<std::size_t>(column), '-');
  out += fmt::format("{}{}{}\n", rule, kBetween, rule);
  for (std::size_t i = 0; i < std::max(left_lines.size(), right_lines.size()); ++i) {
    std::string line = padded(i < left_lines.size() ? left_lines[i] : "", column) + std::string(kBetween);
    if (i < right_lines.size()) line += right_lines[i];
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

namespace {

/// "in 0.52 s (241.3 tok/s)"
std::string rate(std::int64_t tokens, double seconds) {
  return fmt::format("in {:.2f} s ({:.1f} tok/s)", seconds, static_cast<double>(tokens) / std::max(seconds, 1e-9));
}

}  // namespace

std::string describe(const evaluate::GenerateTotals& totals) {
  std::string text = fmt::format("{} prompt tokens {}; {} new tokens", format_count(totals.prompt_tokens),
                                 rate(totals.prompt_tokens, totals.prompt_s), format_count(totals.new_tokens));
  if (totals.decoded_tokens == 0) return text;
  return fmt::format("{}; decoding, without the first of each answer: {} {}", text, format_count(totals.decoded_tokens),
                     rate(totals.decoded_tokens, totals.decode_s));
}

namespace {

using Json = nlohmann::ordered_json;

constexpr int kWidthOfAFile = 100;

const char* finish_reason(const Answer& answer) { return answer.is_cut ? "length" : "stop"; }

/// A heading for an answer: the last message of the prompt, on one short line.
std::string head_of(const data::Prompt& prompt) {
  constexpr std::size_t kLongest = 200;
  const Json given = Json::parse(prompt.given);
  std::string text = given.is_string() ? given.get<std::string>() : given.back().value("content", std::string());
  std::replace(text.begin(), text.end(), '\n', ' ');
  if (text.size() > kLongest) text = repair_utf8(text.substr(0, kLongest)) + "...";
  return "> " + visible_text(text);
}

}  // namespace

std::string answer_to_json(const data::Prompt& prompt, std::size_t index, const Answers& answers) {
  Json line = {{"index", index},
               {"prompt", Json::parse(prompt.given)},
               {"completion", answers.answer.text},
               {"completion_ids", answers.answer.ids},
               {"finish_reason", finish_reason(answers.answer)}};
  if (answers.base) {
    line["base_completion"] = answers.base->text;
    line["base_completion_ids"] = answers.base->ids;
    line["base_finish_reason"] = finish_reason(*answers.base);
  }
  return to_line(line);
}

void AnswerPrinter::add(std::size_t index, const Answers& answers) {
  waiting_.emplace(index, json_ ? answer_to_json(prompts_[index], index, answers) + "\n" : text_of(index, answers));
  for (auto next = waiting_.begin(); next != waiting_.end() && next->first == num_shown_; ++num_shown_) {
    print_raw(next->second);
    next = waiting_.erase(next);
  }
}

void AnswerPrinter::finish() {
  for (const auto& [index, text] : waiting_) print_raw(text);
  waiting_.clear();
}

std::string AnswerPrinter::text_of(std::size_t index, const Answers& answers) const {
  const bool is_terminal = ::isatty(STDOUT_FILENO) == 1;
  const bool is_single = prompts_.size() == 1;
  const std::string head = is_single && !answers.base ? "" : head_of(prompts_[index]) + "\n";
  const std::string end = is_single ? "" : "\n";
  if (!answers.base) return head + (is_terminal ? visible_text(answers.answer.text) : answers.answer.text) + "\n" + end;
  return head +
         side_by_side("base", answers.base->text, "adapter", answers.answer.text,
                      is_terminal ? stdout_width() : kWidthOfAFile) +
         end;
}

}  // namespace lora_train::cli
