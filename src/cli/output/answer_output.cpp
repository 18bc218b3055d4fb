#include "answer_output.h"

#include <unistd.h>

#include <algorithm>

#include "json_text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/base/visible_text.h"
#include "side_by_side.h"
#include "standard_output.h"

namespace lora_train::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kWidthOfAFile = 100;

const char* finish_reason(const Answer& answer) { return answer.is_cut ? "length" : "stop"; }

/// The prompt as a head over its answer: the last thing that was said, in one short line.
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
