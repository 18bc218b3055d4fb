#include "lora_train/report/eval_files.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "json_fields.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"

template <>
constexpr auto lora_train::record_fields<lora_train::report::DocumentLosses>() {
  using L = report::DocumentLosses;
  return std::tuple{field("step", &L::step), field("name", &L::name), field("documents", &L::documents),
                    field("losses", &L::losses), field("weights", &L::weights)};
}

template <>
constexpr auto lora_train::record_fields<lora_train::report::EvalAnswer>() {
  using A = report::EvalAnswer;
  return std::tuple{field("step", &A::step),         field("name", &A::name),
                    field("source", &A::source),     field("prompt", &A::prompt),
                    field("expected", &A::expected), field("answer", &A::answer),
                    field("is_right", &A::is_right), field("confidence", &A::confidence, IfEmpty::kOmit)};
}

namespace lora_train::report {
namespace {

using Json = nlohmann::ordered_json;

template <typename Record>
std::string json_line(const Record& record) {
  Json object;
  put_fields(object, record);
  return to_line(object);
}

/// Throws Json::exception.
template <typename Record>
Record record_of(const std::string& line) {
  Record record;
  const Json object = Json::parse(line);
  if (object.contains("step") && !whole_number_of(object, "step"))
    throw Json::other_error::create(501, "step is no count", &object);
  get_fields(object, record);
  return record;
}

enum class OtherLines { kSkipped, kEmptyTheList };

/// None if the file is missing or is a link.
template <typename Record>
std::vector<Record> read_records(const std::filesystem::path& file, OtherLines other_lines) try {
  std::vector<Record> records;
  if (path_kind(file) != PathKind::kFile) return records;
  std::istringstream lines(read_file(file));
  for (std::string line; std::getline(lines, line);) {
    try {
      records.push_back(record_of<Record>(line));
    } catch (const Json::exception&) {
      if (other_lines == OtherLines::kEmptyTheList) return {};
    }
  }
  return records;
} catch (const IoError&) {
  return {};
}

constexpr long long kLeastDocuments = 5;

/// The 97.5% quantile of Student's t, by Cornish and Fisher: within 1% from 4 degrees of freedom on.
double student_t(double degrees) {
  constexpr double z = 1.959963984540054;
  return z + (z * z * z + z) / (4 * degrees) +
         (5 * std::pow(z, 5) + 16 * z * z * z + 3 * z) / (96 * degrees * degrees) +
         (3 * std::pow(z, 7) + 19 * std::pow(z, 5) + 17 * z * z * z - 15 * z) / (384 * std::pow(degrees, 3));
}

bool are_same_documents(const std::vector<DocumentLosses>& base, const std::vector<DocumentLosses>& run) {
  if (base.size() != run.size()) return false;
  for (std::size_t i = 0; i < base.size(); ++i) {
    if (base[i].documents.empty() || base[i].documents != run[i].documents) return false;
    if (base[i].losses.size() != run[i].losses.size()) return false;
  }
  return true;
}

}  // namespace

void write_document_losses(const std::filesystem::path& file, const std::vector<DocumentLosses>& sets) {
  std::string text;
  for (const DocumentLosses& set : sets) text += json_line(set) + "\n";
  write_file_atomic(file, text);
}

std::vector<DocumentLosses> read_document_losses(const std::filesystem::path& file) {
  auto sets = read_records<DocumentLosses>(file, OtherLines::kEmptyTheList);
  const auto is_torn = [](const DocumentLosses& set) { return set.losses.size() != set.weights.size(); };
  return std::ranges::any_of(sets, is_torn) ? std::vector<DocumentLosses>() : sets;
}

std::optional<LossDifference> difference_of(const std::vector<DocumentLosses>& base,
                                            const std::vector<DocumentLosses>& run) {
  if (!are_same_documents(base, run)) return std::nullopt;
  double base_sum = 0, sum = 0, weight = 0;
  LossDifference result;
  for (std::size_t set = 0; set < base.size(); ++set) {
    for (std::size_t i = 0; i < base[set].losses.size(); ++i) {
      base_sum += base[set].losses[i];
      sum += run[set].losses[i];
      weight += base[set].weights[i];
      ++result.num_documents;
    }
  }
  if (result.num_documents < kLeastDocuments || !(weight > 0)) return std::nullopt;
  result.base_loss = base_sum / weight;
  result.mean = (sum - base_sum) / weight;
  double squares = 0;  // of each document's deviation from what its tokens would give at the mean
  for (std::size_t set = 0; set < base.size(); ++set) {
    for (std::size_t i = 0; i < base[set].losses.size(); ++i) {
      const double residual = run[set].losses[i] - base[set].losses[i] - result.mean * base[set].weights[i];
      squares += residual * residual;
    }
  }
  const auto count = static_cast<double>(result.num_documents);
  const double margin = student_t(count - 1) * std::sqrt(count / (count - 1) * squares) / weight;
  result.low = result.mean - margin;
  result.high = result.mean + margin;
  return result;
}

LossVerdict judge(const LossDifference& difference) {
  const double limit = kKeptShare * difference.base_loss;
  if (difference.high <= limit) return LossVerdict::kKept;
  return difference.low > limit ? LossVerdict::kWorse : LossVerdict::kUnclear;
}

std::string to_string(LossVerdict verdict) {
  switch (verdict) {
    case LossVerdict::kKept: return "kept";
    case LossVerdict::kWorse: return "worse";
    case LossVerdict::kUnclear: return "unclear";
  }
  return "";
}

std::string to_json(const LossDifference& difference, const std::string& baseline) {
  return to_line({{"baseline", baseline},
                  {"mean", difference.mean},
                  {"low", difference.low},
                  {"high", difference.high},
                  {"num_documents", difference.num_documents},
                  {"verdict", to_string(judge(difference))}});
}

std::string in_words(const LossDifference& difference) {
  const LossVerdict verdict = judge(difference);
  const char* const words = difference.high < 0              ? "lower"
                            : verdict == LossVerdict::kKept  ? "at most 1% higher"
                            : verdict == LossVerdict::kWorse ? "more than 1% higher"
                                                             : "too few documents to tell";
  return fmt::format("{}: {:+.4f} (95%: {:+.4f} to {:+.4f}) over {} documents", words, difference.mean, difference.low,
                     difference.high, difference.num_documents);
}

std::string to_json(const EvalAnswer& answer) { return json_line(answer); }

std::optional<EvalAnswer> parse_answer(const std::string& line) {
  try {
    return record_of<EvalAnswer>(line);
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

std::vector<EvalAnswer> read_answers(const std::filesystem::path& file) {
  return read_records<EvalAnswer>(file, OtherLines::kSkipped);
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
