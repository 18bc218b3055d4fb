#include "evaluate_tasks.h"

#include <algorithm>
#include <chrono>

#include "choice_figures.h"
#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/metrics/progress_bar.h"

namespace lora_train::evaluate {
namespace {

/// A progress bar on stderr that counts rows.
class RowProgress {
 public:
  RowProgress(std::size_t num_rows, bool quiet) : bar_({.quiet = quiet}) {
    state_.total_steps = static_cast<long long>(num_rows);
    state_.unit = "row";
  }
  void count_row(std::int64_t num_tokens) {
    ++state_.step;
    num_tokens_ += num_tokens;
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    const double seconds = std::max(elapsed.count(), 1e-9);
    state_.steps_per_s = static_cast<double>(state_.step) / seconds;
    state_.tokens_per_s = static_cast<double>(num_tokens_) / seconds;
    state_.eta_s = static_cast<double>(state_.total_steps - state_.step) / state_.steps_per_s;
    bar_.update(state_);
  }

 private:
  metrics::ProgressBar bar_;
  metrics::ProgressState state_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::int64_t num_tokens_ = 0;
};

std::vector<std::int32_t> part(const std::vector<std::int32_t>& ids, std::size_t begin, std::size_t end) {
  return {ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.begin() + static_cast<std::ptrdiff_t>(end)};
}

/// The choices of a row, grouped by prompt, so that each prompt is computed once.
std::vector<generate::ScoreRequest> requests_of(const data::ChoiceRow& row) {
  std::vector<generate::ScoreRequest> requests;
  for (const data::Choice& choice : row.choices) {
    std::vector<std::int32_t> prompt = part(choice.ids, 0, choice.num_prompt);
    if (requests.empty() || requests.back().prompt != prompt) requests.push_back({std::move(prompt), {}, row.source});
    requests.back().completions.push_back(part(choice.ids, choice.num_prompt, choice.ids.size()));
  }
  return requests;
}

/// Tokens of the last supervised run: [begin, end).
std::pair<std::size_t, std::size_t> last_run(std::span<const std::int32_t> labels) {
  std::size_t end = labels.size();
  while (end > 0 && labels[end - 1] == data::kIgnoredLabel) --end;
  std::size_t begin = end;
  while (begin > 0 && labels[begin - 1] != data::kIgnoredLabel) --begin;
  return {begin, end};
}

std::string text_of(std::span<const std::int32_t> ids, const std::vector<std::int32_t>& stop_ids,
                    const tokenizer::Tokenizer& tokenizer) {
  while (!ids.empty() && std::find(stop_ids.begin(), stop_ids.end(), ids.back()) != stop_ids.end()) {
    ids = ids.first(ids.size() - 1);
  }
  return tokenizer.decode(ids, /*skip_special=*/true);
}

void refuse_cut_rows(const data::NamedStore& data) {
  for (const auto& entry : data.ledger.entries) {
    if (entry.reason != data::LedgerReason::kTruncated) continue;
    throw ConfigError("overlength", "truncate cut " + format_count(entry.count) + " rows of " + data.name +
                                        " (first: " + entry.first_source +
                                        "), so their answers are incomplete; with --exact-match set "
                                        "overlength: drop or a larger max_seq_len");
  }
}

}  // namespace

ChoiceFigures evaluate_choices(const data::ChoiceSet& set, generate::Generator& generator, bool quiet) {
  ChoiceCounter counter;
  RowProgress progress(set.rows.size(), quiet);
  for (const data::ChoiceRow& row : set.rows) {
    const auto requests = requests_of(row);
    std::vector<double> log_probabilities;
    std::vector<std::int64_t> num_chars;
    for (const auto& scores : generator.score(requests)) {
      log_probabilities.insert(log_probabilities.end(), scores.begin(), scores.end());
    }
    std::int64_t num_tokens = 0;
    for (const data::Choice& choice : row.choices) {
      num_chars.push_back(choice.num_chars);
      num_tokens += static_cast<std::int64_t>(choice.ids.size());
    }
    counter.add(log_probabilities, num_chars, row.answer);
    progress.count_row(num_tokens);
  }
  return counter.figures();
}

std::vector<Question> make_questions(const data::NamedStore& data, const runtime::ModelFiles& files,
                                     const AnswerMatcher& matcher, const std::vector<std::int32_t>& stop_ids,
                                     std::int64_t max_new_tokens) {
  refuse_cut_rows(data);
  if (files.tokenizer == nullptr)
    throw FormatError("--exact-match", "needs a tokenizer, and the model folder has none");
  std::vector<Question> questions;
  for (std::size_t i = 0; i < data.store.size(); ++i) {
    throw_if_stop_requested();
    const auto ids = data.store.ids(i);
    const std::string source = data.store.source(i);
    const auto [begin, end] = last_run(data.store.labels(i));
    if (begin == end) throw DataError(source, "has no answer: no token of the row is supervised");
    if (begin == 0) {
      throw ConfigError("--exact-match",
                        source +
                            " is supervised from its first token, so there is no prompt. --exact-match needs "
                            "chats or prompt/completion rows, and a loss_on other than all");
    }
    const std::int64_t room = files.config.context_length() - static_cast<std::int64_t>(begin);
    if (room < 1) throw DataError(source, "the prompt leaves no room for an answer in the model's context");
    const std::string answer = text_of(ids.subspan(begin, end - begin), stop_ids, *files.tokenizer);
    auto expected = matcher.pick(answer);
    if (!expected) {
      throw DataError(source,
                      "the regex of --exact-match does not match the row's own answer; give one that matches the "
                      "answers of the rows and of the model");
    }
    const std::vector<std::int32_t> prompt(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(begin));
    questions.push_back(
        {{prompt, static_cast<std::int64_t>(i), std::min(max_new_tokens, room), source}, std::move(*expected)});
  }
  return questions;
}

MatchFigures evaluate_answers(const std::vector<Question>& questions, const runtime::ModelFiles& files,
                              const AnswerMatcher& matcher, const std::vector<std::int32_t>& stop_ids,
                              generate::Generator& generator, bool quiet) {
  std::vector<generate::Prompt> prompts;
  for (const Question& question : questions) prompts.push_back(question.prompt);
  MatchFigures figures;
  figures.num_answers = static_cast<long long>(questions.size());
  RowProgress progress(questions.size(), quiet);
  generate::GenerateCallbacks callbacks;
  callbacks.on_done = [&](std::size_t i, const generate::Completion& completion) {
    const auto answer = matcher.pick(text_of(completion.ids, stop_ids, *files.tokenizer));
    figures.num_matched += answer == questions[i].expected ? 1 : 0;
    figures.num_cut += completion.reason == generate::StopReason::kLength ? 1 : 0;
    progress.count_row(static_cast<std::int64_t>(completion.ids.size()));
  };
  generator.run(prompts, {.sampling = {}, .stop_ids = stop_ids}, callbacks);
  figures.rate = static_cast<double>(figures.num_matched) / static_cast<double>(figures.num_answers);
  return figures;
}

}  // namespace lora_train::evaluate
