#include "lora_train/generate/generator.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "generator_parts.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/kernels/aten.h"

namespace lora_train::generate {
namespace {

/// True if tokens can be chosen on the device, which filters all rows in the same way and knows one adapter.
bool are_alike(std::span<const Prompt> prompts) {
  const Prompt& first = prompts.front();
  return first.adapter.value_or(kNoAdapter) == kNoAdapter && std::ranges::all_of(prompts, [&](const Prompt& prompt) {
           return prompt.adapter == first.adapter && filter_of(prompt.sampling) == filter_of(first.sampling) &&
                  !prompt.num_top;
         });
}

}  // namespace

void check_sampling(const SamplingOptions& options) {
  for_each_sampling_option([&](const char* name, auto member, const SamplingRange& range) {
    const auto value = static_cast<double>(options.*member);
    if (!range.holds(value)) throw ConfigError(name, "is {}; expected {}", value, range.expected);
  });
}

kernels::SamplingFilter filter_of(const SamplingOptions& options) {
  return {options.temperature, options.top_k, options.top_p, options.min_p};
}

PhiloxKey sampling_key(std::uint64_t seed, std::int64_t prompt_index) {
  return philox_key(seed, RandomPurpose::kSampling, "", static_cast<std::uint64_t>(prompt_index));
}

std::int32_t choose_token(std::span<const float> logits, const SamplingOptions& options, std::int64_t prompt_index,
                          std::int64_t position) {
  const double draw = kernels::sampling_draw(sampling_key(options.seed, prompt_index), position);
  return kernels::sample_token(logits, filter_of(options), draw);
}

double log_probability(std::span<const float> logits, std::int32_t id) {
  const auto largest = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return static_cast<double>(logits[static_cast<std::size_t>(id)]) - largest - std::log(sum);
}

Generator::Generator(const model::ModelConfig& config, const model::ModelShape& shape, model::BaseWeights& weights,
                     const GeneratorLimits& limits, kernels::AttentionBackend attention) {
  GeneratorLimits used = limits;
  used.max_sequences = std::max<std::int64_t>(limits.max_sequences, 1);
  used.max_pass_tokens = std::max<std::int64_t>(limits.max_pass_tokens, 1);
  if (config.is_hybrid() && std::exchange(used.drafts, false)) {
    log_info("generation guesses no repeated text: the state of a gated delta net cannot take a wrong guess back");
  }
  const std::int64_t most_rows = std::max(used.max_sequences, used.max_pass_tokens);
  state_ = std::make_unique<State>(
      State{{config, used, CachedDecoder(config, shape, weights, attention, most_rows, used.max_sequences)}});
}
Generator::~Generator() = default;

void Generator::run(std::span<const Prompt> prompts, AnswerSink& sink, bool is_turn) {
  if (prompts.empty()) return;
  std::vector<std::int64_t> lengths;
  for (const Prompt& prompt : prompts) {
    check_sampling(prompt.sampling);
    check_sequence(state_->config, prompt.ids, prompt.max_new_tokens, name_of(prompt));
    lengths.push_back(prompt.length());
  }
  std::int64_t num_cached = 0;
  if (is_turn) {
    reserve_for_conversation(*state_, lengths.front());
    num_cached = num_reusable(std::exchange(state_->left, {}), prompts.front(), state_->config.is_hybrid());
  } else {
    reserve_cache(*state_, lengths);
  }
  // A state cannot go back: after a run on a device, it may be one token further than the answer.
  const bool may_run_further = !is_turn || !state_->config.is_hybrid();
  const bool uses_device =
      may_run_further && !sink.wants_logits() && are_alike(prompts) && state_->decoder.samples_on_device();
  const auto next = [&, i = std::size_t{0}](bool) mutable {
    return i < prompts.size() ? std::optional(prompts[i++]) : std::nullopt;
  };
  std::vector<std::int32_t> tokens = uses_device ? run_on_device(*state_, {prompts, sink, num_cached})
                                                 : run_on_host(*state_, {next, sink, num_cached});
  if (!is_turn) return;
  tokens.pop_back();  // the last new one has not gone through the model
  state_->left = {std::move(tokens), prompts.front().adapter};
}

void Generator::serve(PromptQueue& queue) {
  queue.on_start(reserve_for_requests(*state_));
  run_on_host(*state_, {[&](bool may_wait) { return queue.next(may_wait); }, queue, 0, /*is_served=*/true});
}

Totals Generator::totals() const { return state_->totals; }

std::int64_t cache_bytes_per_token(const model::ModelConfig& config, at::ScalarType dtype) {
  return 2 * config.num_layers_of(model::LayerKind::kAttention) * config.num_kv_heads * config.head_dim *
         static_cast<std::int64_t>(c10::elementSize(dtype));
}

std::int64_t state_bytes(const model::ModelConfig& config, at::ScalarType dtype) {
  const std::int64_t inputs = config.gated_delta.qkv_width() * (config.convolution_taps - 1);
  return config.num_layers_of(model::LayerKind::kGatedDelta) *
         (inputs * static_cast<std::int64_t>(c10::elementSize(dtype)) +
          config.gated_delta.state_elements() * static_cast<std::int64_t>(sizeof(float)));
}

}  // namespace lora_train::generate
