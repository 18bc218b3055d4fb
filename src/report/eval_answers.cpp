#include "lora_train/report/eval_answers.h"

#include <algorithm>
#include <sstream>

#include "json_fields.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"

namespace lora_train::report {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

std::string to_json(const EvalAnswer& answer) {
  Json object = {{"step", answer.step},
                 {"name", answer.name},
                 {"source", answer.source},
                 {"prompt", answer.prompt},
                 {"expected", or_null(answer.expected)},
                 {"answer", answer.answer},
                 {"is_right", answer.is_right}};
  if (answer.confidence) object["confidence"] = *answer.confidence;
  return to_line(object);
}

std::optional<EvalAnswer> parse_answer(const std::string& line) {
  const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object() || !object.contains("is_right") || !object["is_right"].is_boolean()) return std::nullopt;
  EvalAnswer answer{whole_number_of(object, "step").value_or(0),
                    text_of(object, "name"),
                    text_of(object, "source"),
                    text_of(object, "prompt"),
                    {},
                    text_of(object, "answer"),
                    object["is_right"].get<bool>(),
                    number_of(object, "confidence")};
  if (object.contains("expected") && object["expected"].is_string()) answer.expected = text_of(object, "expected");
  return answer;
}

std::vector<EvalAnswer> read_answers(const std::filesystem::path& file) {
  std::vector<EvalAnswer> answers;
  if (path_kind(file) != PathKind::kFile) return answers;
  try {
    std::istringstream lines(read_file(file));
    for (std::string line; std::getline(lines, line);) {
      if (auto answer = parse_answer(line)) answers.push_back(std::move(*answer));
    }
  } catch (const IoError&) {  // they are for people, and the next evaluation writes others
    return {};
  }
  return answers;
}

EvalAnswers::Task& EvalAnswers::task_of(const std::string& name) {
  const auto found = std::ranges::find(tasks_, name, &std::pair<std::string, Task>::first);
  return found != tasks_.end() ? found->second : tasks_.emplace_back(name, Task()).second;
}

void EvalAnswers::keep_first(long long step) {
  tasks_.clear();
  for (EvalAnswer& answer : read_answers(file_)) {
    if (answer.step > step) continue;
    Task& task = task_of(answer.name);
    if (task.first.empty() || task.first.front().step == answer.step) task.first.push_back(std::move(answer));
  }
}

void EvalAnswers::take(std::vector<EvalAnswer> answers) {
  if (answers.empty()) return;
  Task& task = task_of(answers.front().name);
  const bool is_first = task.first.empty() || task.first.front().step >= answers.front().step;
  (is_first ? task.first : task.latest) = std::move(answers);
  if (is_first) task.latest.clear();
}

void EvalAnswers::write() const {
  std::string text;
  for (const auto& [name, task] : tasks_) {
    for (const auto* answers : {&task.first, &task.latest}) {
      for (const EvalAnswer& answer : *answers) text += to_json(answer) + "\n";
    }
  }
  write_file_atomic(file_, text);
}

}  // namespace lora_train::report
