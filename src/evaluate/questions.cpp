#include "questions.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/report/eval_figures.h"
#include "lora_train/report/progress_bar.h"

namespace lora_train::evaluate {

std::vector<double> choice_shares(std::span<const double> log_probabilities) {
  const double largest = *std::max_element(log_probabilities.begin(), log_probabilities.end());
  std::vector<double> shares;
  double sum = 0;
  for (const double value : log_probabilities) sum += shares.emplace_back(std::exp(value - largest));
  for (double& share : shares) share /= sum;
  return shares;
}

ChoiceOutcome choice_outcome(std::span<const double> log_probabilities, std::span<const std::int64_t> num_chars,
                             std::size_t answer) {
  const auto best = [](const std::vector<double>& values) {
    return static_cast<std::size_t>(std::max_element(values.begin(), values.end()) - values.begin());
  };
  const std::vector<double> shares = choice_shares(log_probabilities);
  std::vector<double> normalized(log_probabilities.begin(), log_probabilities.end());
  for (std::size_t i = 0; i < normalized.size(); ++i) normalized[i] /= static_cast<double>(num_chars[i]);
  ChoiceOutcome outcome;
  outcome.taken = best({log_probabilities.begin(), log_probabilities.end()});
  outcome.is_right = outcome.taken == answer;
  outcome.is_right_normalized = best(normalized) == answer;
  outcome.confidence = shares[outcome.taken];
  for (std::size_t i = 0; i < shares.size(); ++i) outcome.brier += std::pow(shares[i] - (i == answer ? 1 : 0), 2);
  return outcome;
}

ChoiceFigures choice_figures(std::span<const ChoiceOutcome> outcomes) {
  const auto count = static_cast<double>(outcomes.size());
  std::vector<report::Judged> answers;
  ChoiceFigures figures;
  double num_right_normalized = 0;
  figures.num_rows = std::ssize(outcomes);
  for (const ChoiceOutcome& outcome : outcomes) {
    answers.push_back({outcome.confidence, outcome.is_right});
    num_right_normalized += outcome.is_right_normalized ? 1 : 0;
    figures.brier += outcome.brier / count;
  }
  figures.accuracy = report::share_right(answers);
  figures.normalized_accuracy = num_right_normalized / count;
  figures.ece = report::calibration_error(report::equal_width_bins(answers));
  return figures;
}

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

std::vector<std::int32_t> part(const std::vector<std::int32_t>& ids, std::size_t begin, std::size_t end) {
  return {ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.begin() + static_cast<std::ptrdiff_t>(end)};
}

/// The choices of an example, grouped by prompt, so that each prompt is computed once.
std::vector<generate::ScoreRequest> requests_of(const data::ChoiceExample& example) {
  std::vector<generate::ScoreRequest> requests;
  for (const data::Choice& choice : example.choices) {
    std::vector<std::int32_t> prompt = part(choice.ids, 0, choice.num_prompt);
    if (requests.empty() || requests.back().prompt != prompt)
      requests.push_back({std::move(prompt), {}, example.source});
    requests.back().completions.push_back(part(choice.ids, choice.num_prompt, choice.ids.size()));
  }
  return requests;
}

/// Judges greedy answers to questions; the id of a question's prompt is its place.
class JudgedAnswers : public generate::AnswerSink {
 public:
  JudgedAnswers(std::span<const Question> questions, const AnswerFormat& format, bool quiet)
      : questions_(questions),
        format_(format),
        answers_(questions.size()),
        ids_(questions.size()),
        progress_("example", questions.size(), quiet) {}

  bool on_token(std::int64_t id, const generate::Token& token) override {
    ids_[static_cast<std::size_t>(id)].push_back(token.id);
    return true;
  }
  void on_done(std::int64_t id, bool is_cut) override {
    const auto i = static_cast<std::size_t>(id);
    const std::vector<std::int32_t> ids = std::exchange(ids_[i], {});
    GreedyAnswer& answer = answers_[i];
    answer.text = format_.text_of(ids);
    answer.is_right = format_.matcher.pick(answer.text) == questions_[i].expected;
    answer.is_cut = is_cut;
    progress_.count(1, std::ssize(ids));
  }
  std::vector<GreedyAnswer> take() { return std::move(answers_); }

 private:
  std::span<const Question> questions_;
  const AnswerFormat& format_;
  std::vector<GreedyAnswer> answers_;
  std::vector<std::vector<std::int32_t>> ids_;  ///< of answers that have not ended
  report::CountProgress progress_;
};

void refuse_cut_examples(const data::NamedStore& data) {
  for (const auto& entry : data.ledger.entries) {
    if (entry.reason != data::LedgerReason::kTruncated) continue;
    throw ConfigError("overlength",
                      "truncate cut {} examples of {} (first: {}), so their answers are incomplete; with --exact-match "
                      "set overlength: drop or a larger max_seq_len",
                      format_count(entry.count), data.name, entry.first_source);
  }
}

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

std::vector<ChoiceOutcome> choose(std::span<const data::ChoiceExample> examples, generate::Generator& generator,
                                  bool quiet) {
  std::vector<ChoiceOutcome> outcomes;
  report::CountProgress progress("example", examples.size(), quiet);
  for (const data::ChoiceExample& example : examples) {
    const auto requests = requests_of(example);
    std::vector<double> log_probabilities;
    std::vector<std::int64_t> num_chars;
    for (const auto& scores : generator.score(requests)) {
      log_probabilities.insert(log_probabilities.end(), scores.begin(), scores.end());
    }
    std::int64_t num_tokens = 0;
    for (const data::Choice& choice : example.choices) {
      num_chars.push_back(choice.num_chars);
      num_tokens += static_cast<std::int64_t>(choice.ids.size());
    }
    outcomes.push_back(choice_outcome(log_probabilities, num_chars, example.answer));
    progress.count(1, num_tokens);
  }
  return outcomes;
}

std::string AnswerFormat::text_of(std::span<const std::int32_t> ids) const {
  while (!ids.empty() && std::find(stop_ids.begin(), stop_ids.end(), ids.back()) != stop_ids.end()) {
    ids = ids.first(ids.size() - 1);
  }
  return tokenizer.decode(confidence.without(ids), /*skip_special=*/true);
}

AnswerFormat answer_format(const lora::ModelFiles& files, const std::string& regex, const std::string& where,
                           std::int64_t max_new_tokens) {
  if (files.tokenizer == nullptr) throw FormatError(where, "needs a tokenizer, and the model folder has none");
  return {*files.tokenizer,
          tokenizer::stop_token_ids(*files.tokenizer, files.chat_template.get()),
          AnswerMatcher(regex, where),
          where,
          max_new_tokens,
          files.config.context_length()};
}

Question make_question(const data::AnswerExample& example, std::size_t index, const AnswerFormat& format) {
  const std::span<const std::int32_t> ids = example.ids;
  const std::int64_t room = format.context_length - static_cast<std::int64_t>(example.answer_begin);
  if (room < 1) throw DataError(example.source, "the prompt leaves no room for an answer in the model's context");
  auto expected =
      format.matcher.pick(format.text_of(ids.subspan(example.answer_begin, example.answer_end - example.answer_begin)));
  if (!expected) {
    throw DataError(example.source,
                    "the regex of {} does not match the example's own answer; give one that matches the answers of the "
                    "examples and of the model",
                    format.where);
  }
  return {{part(example.ids, 0, example.answer_begin), static_cast<std::int64_t>(index),
           std::min(format.max_new_tokens, room), example.source},
          std::move(*expected)};
}

std::vector<Question> make_questions(const data::NamedStore& data, const AnswerFormat& format) {
  refuse_cut_examples(data);
  std::vector<Question> questions;
  for (std::size_t i = 0; i < data.store.size(); ++i) {
    throw_if_stop_requested();
    const auto ids = data.store.ids(i);
    const auto [begin, end] = data::answer_span(data.store.labels(i));
    const data::AnswerExample example{data.store.source(i), {ids.begin(), ids.end()}, begin, end};
    if (begin == end) throw DataError(example.source, "has no answer: no token of the example is supervised");
    if (begin == 0) {
      throw ConfigError(format.where, example.source + " is supervised from its first token, so there is no prompt. " +
                                          format.where +
                                          " needs chats or prompt/completion examples, and a loss_on other than all");
    }
    questions.push_back(make_question(example, i, format));
  }
  return questions;
}

std::vector<GreedyAnswer> ask(std::span<const Question> questions, const AnswerFormat& format,
                              generate::Generator& generator, bool quiet) {
  std::vector<generate::Prompt> prompts;
  for (const Question& question : questions) {
    prompts.push_back(question.prompt);
    prompts.back().id = std::ssize(prompts) - 1;
    prompts.back().stop_ids = format.stop_ids;
  }
  JudgedAnswers judged(questions, format, quiet);
  generator.run(prompts, judged);
  return judged.take();
}

MatchFigures match_figures(std::span<const Match> matches) {
  MatchFigures figures;
  figures.num_answers = std::ssize(matches);
  figures.num_matched = std::ranges::count_if(matches, &Match::is_right);
  figures.num_cut = std::ranges::count_if(matches, &Match::is_cut);
  figures.rate = static_cast<double>(figures.num_matched) / static_cast<double>(figures.num_answers);
  return figures;
}

}  // namespace lora_train::evaluate
