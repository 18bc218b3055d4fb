#include "lora_train/evaluate/task_evaluation.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "inference.h"
#include "lora_train/base/error.h"
#include "lora_train/base/hash.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/data/encode/task_examples.h"
#include "lora_train/evaluate/evaluation.h"
#include "questions.h"

namespace lora_train::evaluate {

struct TaskExamples {
  EvalTask spec;
  std::unique_ptr<AnswerFormat> format;      ///< never null
  std::vector<data::ChoiceExample> choices;  ///< kind choices: the examples
  std::vector<data::AnswerExample> answers;  ///< other kinds: the examples
  /// The greedy questions for `answers`: all of them for exact_match; for confidence, those with neither `correct` nor
  /// choices.
  std::vector<std::optional<Question>> questions;
  std::vector<std::size_t> places;  ///< kind confidence: the place of each answer's confidence token
  std::int64_t longest = 0;         ///< tokens of the longest sequence, new ones included
  std::string fingerprint;          ///< hash of all the above

  std::size_t size() const { return spec.kind == TaskKind::kChoices ? choices.size() : answers.size(); }
};

namespace {

/// Bytes that enter a fingerprint.
void add_ids(const std::vector<std::int32_t>& ids, std::string& bytes) {
  bytes += fmt::format("{}:", ids.size());
  bytes.append(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(std::int32_t));
}

void add_choices(const data::ChoiceExample& example, std::string& bytes) {
  for (const auto& choice : example.choices) add_ids(choice.ids, bytes);
  bytes += std::to_string(example.answer);
}

/// Reads the examples of eval_tasks[index]. Throws like TaskEvaluation.
class TaskReader {
 public:
  TaskReader(const Profile& profile, std::size_t index, const lora::ModelFiles& files)
      : profile_(profile), files_(files), key_(fmt::format("eval_tasks[{}]", index)) {
    task_.spec = profile.tasks.eval_tasks[index];
    task_.format = std::make_unique<AnswerFormat>(answer_format(
        files, task_.spec.regex, key_ + (task_.spec.regex.empty() ? "" : ".regex"), task_.spec.max_new_tokens));
    max_examples_ = task_.spec.max_samples ? task_.spec.max_samples : profile.data.eval_max_samples;
  }

  TaskExamples read() {
    if (task_.spec.kind == TaskKind::kChoices) {
      read_choices();
    } else {
      read_answers();
    }
    task_.fingerprint = fingerprint();
    log_info("{} {}: {} examples of task \"{}\" ({})", key_, task_.spec.data.path, format_count(task_.size()),
             task_.spec.name, to_string(task_.spec.kind));
    return std::move(task_);
  }

 private:
  void read_choices() {
    const data::PromptOptions prompts{
        files_.tokenizer.get(), files_.chat_template.get(), false, {}, profile_.data.thinking};
    task_.choices =
        data::read_choice_set(task_.spec.data, max_examples_, prompts, files_.config.context_length()).examples;
    for (const auto& example : task_.choices) add_length(example);
  }

  void add_length(const data::ChoiceExample& example) {
    for (const auto& choice : example.choices) task_.longest = std::max(task_.longest, std::ssize(choice.ids));
  }

  void read_answers() {
    const bool is_confidence = task_.spec.kind == TaskKind::kConfidence;
    if (is_confidence) task_.format->confidence = data::confidence_tokens(profile_.tasks, *files_.tokenizer);
    task_.answers = data::read_answer_examples(task_.spec.data, max_examples_, plan::data_context(profile_, files_),
                                               is_confidence, profile_.data.thinking);
    for (std::size_t i = 0; i < task_.answers.size(); ++i) {
      const data::AnswerExample& example = task_.answers[i];
      if (is_confidence) find_place(example);
      task_.questions.emplace_back();
      if (example.choices) add_length(*example.choices);
      if (is_confidence && (example.correct || example.choices)) continue;
      task_.questions.back() = make_question(example, i, *task_.format);
      task_.longest = std::max(task_.longest, task_.questions.back()->prompt.length());
    }
    if (is_confidence) warn_of_absent_tokens();
  }

  void find_place(const data::AnswerExample& example) {
    const std::size_t place = data::find_confidence(example.ids, example.answer_begin, example.answer_end,
                                                    task_.format->confidence, example.source);
    const auto length = static_cast<std::int64_t>(place) + 1;
    if (length > files_.config.context_length()) {
      throw DataError(example.source, "has its confidence token at token " + format_count(length) +
                                          ", but the model supports " + format_count(files_.config.context_length()) +
                                          " (max_position_embeddings). Shorten or remove the example");
    }
    task_.places.push_back(place);
    task_.longest = std::max(task_.longest, length);
  }

  void warn_of_absent_tokens() const {
    const data::ConfidenceTokens& tokens = task_.format->confidence;
    std::set<std::int32_t> found;
    for (std::size_t n = 0; n < task_.answers.size(); ++n) found.insert(task_.answers[n].ids[task_.places[n]]);
    std::vector<std::string> absent;
    for (std::size_t i = 0; i < tokens.ids.size(); ++i)
      if (!found.contains(tokens.ids[i])) absent.push_back(tokens.names[i]);
    if (!absent.empty()) {
      log_warning(key_ + ": no example of " + task_.spec.data.path + " has " + join(absent) +
                  " of confidence_tokens; the model's distribution is read over all of them");
    }
  }

  std::string fingerprint() const {
    std::string bytes = fmt::format("{}|{}|{}|{}|", task_.spec.name, to_string(task_.spec.kind), task_.spec.regex,
                                    task_.spec.max_new_tokens);
    for (const auto& example : task_.choices) add_choices(example, bytes);
    for (const auto& example : task_.answers) {
      add_ids(example.ids, bytes);
      if (example.choices) add_choices(*example.choices, bytes);
      bytes += fmt::format("{}{}", example.answer_begin, example.correct ? (*example.correct ? "+" : "-") : "?");
    }
    return hash128_hex(bytes);
  }

  const Profile& profile_;
  const lora::ModelFiles& files_;
  std::string key_;
  std::optional<std::int64_t> max_examples_;
  TaskExamples task_;
};

/// Softmax over the confidence tokens alone, from the logits of the whole vocabulary at the place of the confidence
/// token.
ConfidenceReading read_confidence(std::span<const float> logits, const data::ConfidenceTokens& tokens) {
  ConfidenceReading reading;
  for (const std::int32_t id : tokens.ids) reading.logits.push_back(logits[static_cast<std::size_t>(id)]);
  const std::vector<double> shares = choice_shares(reading.logits);
  for (std::size_t i = 0; i < shares.size(); ++i) reading.expected += shares[i] * tokens.probabilities[i];
  const auto [least, most] = std::ranges::minmax(tokens.probabilities);
  reading.expected = std::clamp(reading.expected, least, most);  // rounding must stay within the scale
  const auto best = std::ranges::max_element(shares) - shares.begin();
  reading.most_likely = tokens.probabilities[static_cast<std::size_t>(best)];
  return reading;
}

constexpr std::size_t kMaxPromptBytes = 2000;  // shown to a person

/// The last bytes of a text, starting at a character boundary.
std::string end_of(const std::string& text) {
  if (text.size() <= kMaxPromptBytes) return text;
  std::size_t begin = text.size() - kMaxPromptBytes;
  while (begin < text.size() && is_continuation(text[begin])) ++begin;
  return "..." + text.substr(begin);
}

/// The result of one example of a task.
struct ExampleResult {
  bool is_right = false;
  double confidence = 0, brier = 0;
  bool is_cut = false;
};

/// An answer on its way to the other ranks: a line.
std::string to_line(const TaskAnswer& answer) {
  std::string line = report::to_json(answer.answer);
  if (const auto& reading = answer.reading) {
    line += '\t' + nlohmann::json{reading->expected, reading->most_likely, reading->logits}.dump();
  }
  return line;
}

std::optional<TaskAnswer> answer_of(const std::string& line) {
  const std::size_t end = line.find('\t');
  auto parsed = report::parse_answer(line.substr(0, end));
  if (!parsed) return std::nullopt;
  TaskAnswer answer{std::move(*parsed), {}};
  if (end == std::string::npos) return answer;
  const auto reading = nlohmann::json::parse(line.substr(end + 1));
  answer.reading =
      ConfidenceReading{reading[0].get<double>(), reading[1].get<double>(), reading[2].get<std::vector<double>>()};
  return answer;
}

/// One task on one rank.
class TaskRun {
 public:
  TaskRun(const TaskExamples& task, generate::Generator& generator, ranks::Communicator& ranks,
          const TaskEvaluation::Options& options)
      : task_(task), generator_(generator), ranks_(ranks), options_(options) {
    std::vector<std::size_t> all(task.size());
    std::iota(all.begin(), all.end(), 0);
    own_ = of_rank(ranks, std::span<const std::size_t>(all));
  }

  TaskResult run() {
    switch (task_.spec.kind) {
      case TaskKind::kChoices: choose_own(); break;
      case TaskKind::kExactMatch: ask_own(); break;
      case TaskKind::kConfidence: read_own(); break;
    }
    results_ = gather_results(ranks_, results_, task_.size());
    TaskResult result{figures(), 0, {}};
    for (const auto& example : results_) result.num_cut += example.is_cut ? 1 : 0;
    result.answers = gather_answers();
    return result;
  }

 private:
  void choose_own() {
    std::vector<data::ChoiceExample> examples;
    for (const std::size_t i : own_) examples.push_back(task_.choices[i]);
    const auto outcomes = choose(examples, generator_, options_.quiet);
    for (std::size_t n = 0; n < own_.size(); ++n) {
      const ChoiceOutcome& outcome = outcomes[n];
      results_.push_back({outcome.is_right, outcome.confidence, outcome.brier, false});
      if (!shows(own_[n])) continue;
      const data::ChoiceExample& example = examples[n];
      const auto& [ids, num_prompt, num_chars] = example.choices.front();
      kept_.push_back({{0, task_.spec.name, example.source, prompt_text(std::span(ids).first(num_prompt)),
                        choice_text(example, example.answer), choice_text(example, outcome.taken), outcome.is_right,
                        outcome.confidence}});
    }
  }

  void ask_own() {
    std::vector<Question> questions;
    for (const std::size_t i : own_) questions.push_back(*task_.questions[i]);
    const auto answers = ask(questions, *task_.format, generator_, options_.quiet);
    for (std::size_t n = 0; n < own_.size(); ++n) {
      results_.push_back({answers[n].is_right, 0, 0, answers[n].is_cut});
      if (!shows(own_[n])) continue;
      kept_.push_back({{0, task_.spec.name, questions[n].prompt.name, prompt_text(questions[n].prompt.ids),
                        questions[n].expected, answers[n].text, answers[n].is_right}});
    }
  }

  /// Reads the confidence of each example, up to its confidence token.
  std::vector<ConfidenceReading> readings() {
    std::vector<generate::Prompt> prompts;
    for (const std::size_t i : own_) {
      const data::AnswerExample& example = task_.answers[i];
      prompts.push_back({.ids = {example.ids.begin(), example.ids.begin() + std::ptrdiff_t(task_.places[i])},
                         .index = static_cast<std::int64_t>(i),
                         .max_new_tokens = 1,
                         .name = example.source,
                         .id = std::ssize(prompts)});
    }
    struct Readings : generate::AnswerSink {
      explicit Readings(const data::ConfidenceTokens& of) : tokens(of) {}
      bool wants_logits() const override { return true; }
      void on_logits(std::int64_t id, std::span<const float> logits) override {
        found[static_cast<std::size_t>(id)] = read_confidence(logits, tokens);
      }
      const data::ConfidenceTokens& tokens;
      std::vector<ConfidenceReading> found;
    } readings(task_.format->confidence);
    readings.found.resize(own_.size());
    generator_.run(prompts, readings);
    return std::move(readings.found);
  }

  void read_own() {
    const std::vector<ConfidenceReading> found = readings();
    const std::vector<JudgedAnswer> answers = judge_own();
    for (std::size_t n = 0; n < own_.size(); ++n) {
      const data::AnswerExample& example = task_.answers[own_[n]];
      const auto& [answer, expected] = answers[n];
      results_.push_back({answer.is_right, found[n].expected, 0, answer.is_cut});
      if (!shows(own_[n])) continue;
      kept_.push_back(
          {{0, task_.spec.name, example.source, prompt_text(std::span(example.ids).first(example.answer_begin)),
            expected, answer.text, answer.is_right, found[n].expected},
           found[n]});
    }
  }

  /// Includes the expected answer; empty if the example itself states whether its answer is right.
  using JudgedAnswer = std::pair<GreedyAnswer, std::optional<std::string>>;
  /// Decides whether the answers of this rank's examples are right: by the example itself, its most likely choice, or a
  /// greedy answer.
  std::vector<JudgedAnswer> judge_own() {
    std::vector<Question> questions;
    std::vector<data::ChoiceExample> choices;
    for (const std::size_t i : own_) {
      if (task_.questions[i]) questions.push_back(*task_.questions[i]);
      if (task_.answers[i].choices) choices.push_back(*task_.answers[i].choices);
    }
    const auto greedy = ask(questions, *task_.format, generator_, options_.quiet);
    const auto outcomes = choose(choices, generator_, options_.quiet);
    auto next_greedy = greedy.begin();
    auto next_outcome = outcomes.begin();
    std::vector<JudgedAnswer> judged;
    for (const std::size_t i : own_) {
      const data::AnswerExample& example = task_.answers[i];
      GreedyAnswer answer;
      std::optional<std::string> expected;
      if (task_.questions[i]) {
        answer = *next_greedy++;
        expected = task_.questions[i]->expected;
      } else if (example.choices) {
        const ChoiceOutcome& outcome = *next_outcome++;
        answer = {{outcome.is_right, false}, choice_text(*example.choices, outcome.taken)};
        expected = choice_text(*example.choices, example.choices->answer);
      } else {
        answer = {{example.correct.value_or(false), false}, own_text(example)};
      }
      judged.emplace_back(std::move(answer), std::move(expected));
    }
    return judged;
  }

  std::string choice_text(const data::ChoiceExample& example, std::size_t choice) const {
    const auto& [ids, num_prompt, num_chars] = example.choices[choice];
    return task_.format->tokenizer.decode(std::span(ids).subspan(num_prompt));
  }

  std::string own_text(const data::AnswerExample& example) const {
    return task_.format->text_of(
        std::span(example.ids).subspan(example.answer_begin, example.answer_end - example.answer_begin));
  }
  std::string prompt_text(std::span<const std::int32_t> ids) const {
    return end_of(task_.format->tokenizer.decode(ids));
  }

  bool shows(std::size_t example) const { return example < options_.num_answers; }

  report::EvalFigures figures() const {
    std::vector<report::Judged> judged;
    double brier = 0;
    for (const auto& example : results_) {
      judged.push_back({example.confidence, example.is_right});
      brier += example.brier;
    }
    report::EvalFigures figures = report::task_figures(task_.spec.kind, judged);
    figures.name = task_.spec.name;
    if (task_.spec.kind == TaskKind::kChoices) figures.brier = brier / static_cast<double>(judged.size());
    return figures;
  }

  /// All ranks' answers, in example order.
  std::vector<TaskAnswer> gather_answers() {
    if (ranks_.world_size() == 1 || options_.num_answers == 0) return std::move(kept_);
    std::string own;
    for (const TaskAnswer& answer : kept_) own += to_line(answer) + "\n";
    std::vector<TaskAnswer> all;
    std::vector<std::string> texts = ranks_.all_gather(own);
    for (std::size_t i = 0; i < std::min(options_.num_answers, task_.size()); ++i) {
      std::string& rest = texts[i % texts.size()];
      const std::size_t end = rest.find('\n');
      if (auto answer = answer_of(rest.substr(0, end))) all.push_back(std::move(*answer));
      rest.erase(0, end == std::string::npos ? end : end + 1);
    }
    return all;
  }

  const TaskExamples& task_;
  generate::Generator& generator_;
  ranks::Communicator& ranks_;
  const TaskEvaluation::Options& options_;
  std::vector<ExampleResult> results_;  ///< of own_; in the end, of all
  std::vector<std::size_t> own_;        ///< examples of this rank
  std::vector<TaskAnswer> kept_;
};

}  // namespace

TaskEvaluation::TaskEvaluation(const Profile& profile, const lora::ModelFiles& files) {
  for (std::size_t i = 0; i < profile.tasks.eval_tasks.size(); ++i)
    tasks_.push_back(TaskReader(profile, i, files).read());
}
TaskEvaluation::~TaskEvaluation() = default;
TaskEvaluation::TaskEvaluation(TaskEvaluation&&) noexcept = default;
TaskEvaluation& TaskEvaluation::operator=(TaskEvaluation&&) noexcept = default;

std::int64_t TaskEvaluation::longest() const {
  std::int64_t longest = 0;
  for (const TaskExamples& task : tasks_) longest = std::max(longest, task.longest);
  return longest;
}

std::string TaskEvaluation::fingerprint() const {
  std::string parts;
  for (const TaskExamples& task : tasks_) parts += task.fingerprint + "|";
  return hash128_hex(parts);
}

std::int64_t TaskEvaluation::least_bytes(const Profile& profile, const lora::ModelFiles& files) const {
  if (tasks_.empty()) return 0;
  return generator_bytes(profile, files.config, longest());
}

void TaskEvaluation::evaluate(const TaskModel& model, std::span<const std::size_t> which, const Options& options,
                              const std::function<void(TaskResult&&)>& on_result) const {
  if (which.empty()) return;
  {
    const auto generator = make_generator(model.device, model.model, model.run);
    for (const std::size_t i : which) on_result(TaskRun(tasks_[i], *generator, *model.device.ranks, options).run());
  }
  plan::release_unused_memory(model.device);
}

}  // namespace lora_train::evaluate
