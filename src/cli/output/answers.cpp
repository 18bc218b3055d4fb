#include "answers.h"

#include <unistd.h>
#include <utf8proc.h>

#include <algorithm>
#include <limits>
#include <sstream>
#include <vector>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "standard_output.h"

namespace lora_train::cli {

AnswerCollector::AnswerCollector(const tokenizer::Tokenizer& tokenizer, AnswerOptions options, Callbacks callbacks)
    : tokenizer_(tokenizer),
      options_(std::move(options)),
      callbacks_(std::move(callbacks)),
      reads_text_(callbacks_.on_text || !options_.stop_strings.empty()) {}

void AnswerCollector::on_start(std::int64_t) {
  if (callbacks_.on_start) callbacks_.on_start();
}

bool AnswerCollector::is_stop_id(std::int32_t id) const {
  return std::ranges::find(options_.stop_ids, id) != options_.stop_ids.end();
}

AnswerCollector::Active& AnswerCollector::active(std::int64_t id) {
  const auto found = active_.find(id);
  if (found != active_.end()) return found->second;
  return active_.emplace(id, Active{{}, {tokenizer_, options_.stop_strings}}).first->second;
}

void AnswerCollector::show(const std::string& piece) const {
  if (callbacks_.on_text && !piece.empty()) callbacks_.on_text(piece);
}

bool AnswerCollector::on_token(std::int64_t id, const generate::Token& token) {
  Active& answer = active(id);
  answer.ids.push_back(token.id);
  if (callbacks_.on_token) callbacks_.on_token();
  if (!reads_text_ || is_stop_id(token.id)) return true;
  show(answer.text.push(token.id));
  return !answer.text.is_stopped();
}

Answer AnswerCollector::finish(Active& answer, bool is_cut) const {
  if (reads_text_) show(answer.text.finish());
  if (answer.text.is_stopped()) return {std::move(answer.ids), answer.text.text(), false};
  std::span<const std::int32_t> ids = answer.ids;
  if (!ids.empty() && is_stop_id(ids.back())) ids = ids.first(ids.size() - 1);
  std::string text = tokenizer_.decode(ids, /*skip_special=*/true);
  return {std::move(answer.ids), std::move(text), is_cut};
}

void AnswerCollector::on_done(std::int64_t id, bool is_cut) {
  Answer answer = finish(active(id), is_cut);
  active_.erase(id);
  if (id < 0) {
    waiting_.emplace(~id, std::move(answer));
    return;
  }
  Answers answers{std::move(answer), {}};
  if (auto base = waiting_.extract(static_cast<std::size_t>(id))) answers.base = std::move(base.mapped());
  if (callbacks_.on_answers) callbacks_.on_answers(static_cast<std::size_t>(id), answers);
}

namespace {

constexpr std::string_view kBetween = " | ";
constexpr int kNarrowestColumn = 20;

struct Fitting {
  std::size_t bytes = 0;
  int columns = 0;
};

/// How much of the text fits, at least one character.
Fitting fitting(std::string_view text, int width) {
  Fitting found;
  while (found.bytes < text.size()) {
    const Utf8Char c = utf8_char(text, found.bytes);
    const int columns = std::max(0, utf8proc_charwidth(static_cast<utf8proc_int32_t>(c.code_point)));
    if (found.columns + columns > width && found.bytes > 0) break;
    found.columns += columns;
    found.bytes += std::max<std::size_t>(c.length, 1);
  }
  return found;
}

void wrap_line(std::string_view line, int width, std::vector<std::string>& out) {
  for (std::size_t end = 0; (end = fitting(line, width).bytes) < line.size();) {
    const std::size_t space = line.substr(0, end + 1).rfind(' ');
    const bool at_word = space != std::string_view::npos && space > 0;
    out.emplace_back(line.substr(0, at_word ? space : end));
    line.remove_prefix(at_word ? space + 1 : end);
  }
  out.emplace_back(line);
}

std::vector<std::string> wrapped(const std::string& text, int width) {
  std::vector<std::string> lines;
  std::istringstream given(text + "\n");
  for (std::string line; std::getline(given, line);) wrap_line(line, width, lines);
  return lines;
}

std::string padded(const std::string& text, int width) {
  return text + std::string(static_cast<std::size_t>(
                                std::max(0, width - fitting(text, std::numeric_limits<int>::max()).columns)),
                            ' ');
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

std::string describe(const generate::Totals& totals) {
  std::string text = fmt::format("{} prompt tokens {}; {} new tokens", format_count(totals.prompt_tokens),
                                 rate(totals.prompt_tokens, totals.prompt_s), format_count(totals.new_tokens));
  if (totals.decoded_tokens == 0) return text;
  return fmt::format("{}; decoding, without the first of each answer: {} {}", text, format_count(totals.decoded_tokens),
                     rate(totals.decoded_tokens, totals.decode_s));
}

void log_totals(const std::function<generate::Totals()>& answer) {
  try {
    log_info(describe(answer()));
  } catch (const StopError& stop) {
    log_info("stopped by " + stop.where());
  }
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
