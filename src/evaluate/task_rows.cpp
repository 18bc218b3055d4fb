#include "task_rows.h"

#include <algorithm>
#include <string_view>

#include "lora_train/base/error.h"
#include "lora_train/base/hash.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"

namespace lora_train::evaluate {
namespace {

/// Bytes that enter a fingerprint.
void add_ids(const std::vector<std::int32_t>& ids, std::string& bytes) {
  bytes += std::to_string(ids.size()) + ":";
  bytes.append(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(std::int32_t));
}

void add_choices(const data::ChoiceRow& row, std::string& bytes) {
  for (const auto& choice : row.choices) add_ids(choice.ids, bytes);
  bytes += std::to_string(row.answer);
}

std::int64_t length_of(const Question& question) {
  return std::ssize(question.prompt.ids) + question.prompt.max_new_tokens;
}

class TaskReader {
 public:
  TaskReader(const Profile& profile, std::size_t index, const plan::ModelFiles& files)
      : profile_(profile), files_(files), key_("eval_tasks[" + std::to_string(index) + "]") {
    task_.spec = profile.tasks.eval_tasks[index];
    task_.format = std::make_unique<AnswerFormat>(answer_format(
        files, task_.spec.regex, key_ + (task_.spec.regex.empty() ? "" : ".regex"), task_.spec.max_new_tokens));
    max_rows_ = task_.spec.max_samples ? task_.spec.max_samples : profile.data.eval_max_samples;
  }

  TaskRows read() {
    if (task_.spec.kind == TaskKind::kChoices) {
      read_choices();
    } else {
      read_answers();
    }
    task_.fingerprint = fingerprint();
    log_info(key_ + " " + task_.spec.data.path + ": " + format_count(static_cast<long long>(task_.size())) +
             " rows of task \"" + task_.spec.name + "\" (" + to_string(task_.spec.kind) + ")");
    return std::move(task_);
  }

 private:
  void read_choices() {
    const data::PromptOptions prompts{files_.tokenizer.get(), files_.chat_template.get(), false, {}};
    task_.choices = data::read_choice_set(task_.spec.data, max_rows_, prompts, files_.config.context_length()).rows;
    for (const auto& row : task_.choices) add_length(row);
  }

  void add_length(const data::ChoiceRow& row) {
    for (const auto& choice : row.choices) task_.longest = std::max(task_.longest, std::ssize(choice.ids));
  }

  void read_answers() {
    const bool is_confidence = task_.spec.kind == TaskKind::kConfidence;
    if (is_confidence) task_.format->confidence = data::confidence_tokens(profile_.tasks, *files_.tokenizer);
    task_.answers =
        data::read_answer_rows(task_.spec.data, max_rows_, plan::data_context(profile_, files_), is_confidence);
    for (std::size_t i = 0; i < task_.answers.size(); ++i) {
      const data::AnswerRow& row = task_.answers[i];
      if (is_confidence) find_place(row);
      task_.questions.emplace_back();
      if (row.choices) add_length(*row.choices);
      if (is_confidence && (row.correct || row.choices)) continue;
      task_.questions.back() = make_question(row, i, *task_.format);
      task_.longest = std::max(task_.longest, length_of(*task_.questions.back()));
    }
    if (is_confidence) warn_of_absent_tokens();
  }

  void find_place(const data::AnswerRow& row) {
    const std::size_t place =
        data::find_confidence(row.ids, row.answer_begin, row.answer_end, task_.format->confidence, row.source);
    const auto length = static_cast<std::int64_t>(place) + 1;
    if (length > files_.config.context_length()) {
      throw DataError(row.source, "has its confidence token at token " + format_count(length) +
                                      ", but the model supports " + format_count(files_.config.context_length()) +
                                      " (max_position_embeddings). Shorten or remove the row");
    }
    task_.places.push_back(place);
    task_.longest = std::max(task_.longest, length);
  }

  void warn_of_absent_tokens() const {
    const data::ConfidenceTokens& tokens = task_.format->confidence;
    std::vector<std::string> absent;
    for (std::size_t i = 0; i < tokens.ids.size(); ++i) {
      const auto has_token = [&](std::size_t n) { return task_.answers[n].ids[task_.places[n]] == tokens.ids[i]; };
      bool is_there = false;
      for (std::size_t n = 0; n < task_.answers.size() && !is_there; ++n) is_there = has_token(n);
      if (!is_there) absent.push_back(tokens.names[i]);
    }
    if (!absent.empty()) {
      log_warning(key_ + ": no row of " + task_.spec.data.path + " has " + join(absent) +
                  " of confidence_tokens; the model's distribution is read over all of them");
    }
  }

  std::string fingerprint() const {
    std::string bytes = task_.spec.name + "|" + to_string(task_.spec.kind) + "|" + task_.spec.regex + "|" +
                        std::to_string(task_.spec.max_new_tokens) + "|";
    for (const auto& row : task_.choices) add_choices(row, bytes);
    for (const auto& row : task_.answers) {
      add_ids(row.ids, bytes);
      if (row.choices) add_choices(*row.choices, bytes);
      bytes += std::to_string(row.answer_begin) + (row.correct ? (*row.correct ? "+" : "-") : "?");
    }
    return hash128_hex(bytes);
  }

  const Profile& profile_;
  const plan::ModelFiles& files_;
  std::string key_;
  std::optional<std::int64_t> max_rows_;
  TaskRows task_;
};

}  // namespace

TaskRows read_task_rows(const Profile& profile, std::size_t index, const plan::ModelFiles& files) {
  return TaskReader(profile, index, files).read();
}

}  // namespace lora_train::evaluate
