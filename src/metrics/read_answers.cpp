#include "read_answers.h"

#include <fstream>

#include "json_value.h"

namespace lora_train::metrics {
namespace {

constexpr std::size_t kMostAnswers = 1000;

}  // namespace

std::vector<LoggedAnswer> read_answers(const std::filesystem::path& file) {
  std::vector<LoggedAnswer> answers;
  std::ifstream lines(file, std::ios::binary);
  for (std::string line; answers.size() < kMostAnswers && std::getline(lines, line);) {
    const auto object = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object() || !object.contains("answer")) continue;
    const auto is_right = object.find("is_right");
    answers.push_back({.step = count_of(object, "step").value_or(0),
                       .name = text_of(object, "name"),
                       .source = text_of(object, "source"),
                       .prompt = text_of(object, "prompt"),
                       .expected = text_of(object, "expected"),
                       .answer = text_of(object, "answer"),
                       .is_right = is_right != object.end() && is_right->is_boolean() && is_right->get<bool>(),
                       .confidence = number_of(object, "confidence")});
  }
  return answers;
}

}  // namespace lora_train::metrics
