// Scores one request at a time: the prompt is prefilled once, and each completion follows it in turn.
#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "generator_parts.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/kernels/aten.h"

namespace lora_train::generate {
namespace {

using Ids = std::span<const std::int32_t>;

class Scorer {
 public:
  Scorer(GeneratorParts& parts, const ScoreRequest& request, std::string name, bool use_adapter)
      : parts_(parts), request_(request), name_(std::move(name)), use_adapter_(use_adapter) {}

  std::vector<double> run() {
    read_prompt();
    std::vector<double> sums;
    for (std::size_t i = 0; i < request_.completions.size(); ++i) {
      const Ids completion = request_.completions[i];
      sums.push_back(first_[i] + sum_of_rest(completion));
    }
    return sums;
  }

 private:
  /// Tokens per pass.
  Ids cut(Ids ids, std::size_t begin) const {
    return ids.subspan(begin, std::min(ids.size() - begin, static_cast<std::size_t>(parts_.limits.max_pass_tokens)));
  }

  at::Tensor forward(std::int64_t position, Ids ids) {
    throw_if_stop_requested();
    const Piece piece{{}, position, ids};
    parts_.totals.prompt_tokens += static_cast<std::int64_t>(ids.size());
    return parts_.decoder.forward(std::span(&piece, 1), use_adapter_);
  }

  /// Logits of rows [begin, begin + count) on the CPU, checked. `position`: tokens before the one that the first row
  /// predicts.
  at::Tensor logits(const at::Tensor& hidden, std::int64_t begin, std::int64_t count, std::int64_t position) {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(count));
    std::iota(rows.begin(), rows.end(), begin);
    const at::Tensor host = parts_.decoder.logits(hidden, rows, use_adapter_).to(at::kCPU);
    for (std::int64_t i = 0; i < count; ++i) {
      if (!are_finite(logits_row(host, i))) refuse_logits(name_, position + i);
    }
    return host;
  }

  /// Fills first_: the log probability of each completion's first token.
  void read_prompt() {
    const Ids prompt = request_.prompt;
    at::Tensor hidden;
    for (std::size_t begin = 0; begin < prompt.size(); begin += cut(prompt, begin).size()) {
      hidden = forward(static_cast<std::int64_t>(begin), cut(prompt, begin));
    }
    parts_.decoder.copy_state(CachePlace{}.state_row, parts_.decoder.spare_row());
    const at::Tensor last = logits(hidden, hidden.size(0) - 1, 1, static_cast<std::int64_t>(prompt.size()));
    for (const auto& completion : request_.completions)
      first_.push_back(log_probability(logits_row(last, 0), completion[0]));
  }

  double sum_of_rest(Ids completion) {
    double sum = 0;
    parts_.decoder.copy_state(parts_.decoder.spare_row(), CachePlace{}.state_row);
    const Ids inputs = completion.first(completion.size() - 1);
    const auto before = static_cast<std::int64_t>(request_.prompt.size());
    for (std::size_t begin = 0; begin < inputs.size(); begin += cut(inputs, begin).size()) {
      const at::Tensor hidden = forward(before + static_cast<std::int64_t>(begin), cut(inputs, begin));
      // Takes a few rows of logits at a time: they are wide.
      for (std::int64_t row = 0; row < hidden.size(0); row += parts_.limits.max_sequences) {
        const std::int64_t count = std::min(parts_.limits.max_sequences, hidden.size(0) - row);
        const std::int64_t first = static_cast<std::int64_t>(begin) + row + 1;  // index of a token of the completion
        const at::Tensor rows = logits(hidden, row, count, before + first);
        for (std::int64_t i = 0; i < count; ++i) {
          sum += log_probability(logits_row(rows, i), completion[static_cast<std::size_t>(first + i)]);
        }
      }
    }
    return sum;
  }

  GeneratorParts& parts_;
  const ScoreRequest& request_;
  std::string name_;
  bool use_adapter_;
  std::vector<double> first_;
};

std::string name_of(const ScoreRequest& request, std::size_t index) {
  return request.name.empty() ? fmt::format("request {}", index) : request.name;
}

/// The length of the request's longest sequence.
std::int64_t check_request(const model::ModelConfig& config, const ScoreRequest& request, const std::string& name) {
  std::size_t longest = 0;
  for (std::size_t i = 0; i < request.completions.size(); ++i) {
    const auto& completion = request.completions[i];
    const std::string which = fmt::format("{}, completion {}", name, i + 1);
    check_sequence(config, request.prompt, std::ssize(completion), which);
    check_sequence(config, completion, 1, which);
    longest = std::max(longest, completion.size());
  }
  return static_cast<std::int64_t>(request.prompt.size() + longest);
}

}  // namespace

std::vector<std::vector<double>> Generator::score(std::span<const ScoreRequest> requests, bool use_adapter) {
  GeneratorParts& parts = *state_;
  std::int64_t longest = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    longest = std::max(longest, check_request(parts.config, requests[i], name_of(requests[i], i)));
  }
  std::vector<std::vector<double>> scores;
  if (requests.empty()) return scores;
  reserve_cache(parts, {longest});
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const Stopwatch watch(parts.totals.prompt_s);
    scores.push_back(Scorer(parts, requests[i], name_of(requests[i], i), use_adapter).run());
  }
  return scores;
}

}  // namespace lora_train::generate
