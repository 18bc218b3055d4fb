#include "lora_train/generate/generator.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "generator_parts.h"
#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/kernels/launch/parallel.h"

namespace lora_train::generate {
namespace {

void check(const char* option, double value, const SamplingRange& range) {
  if (!range.holds(value)) throw ConfigError(option, "is {}; expected {}", value, range.expected);
}

// A decoding pass of this many rows costs little more than one row (kernels/gemm/gemm.h): guesses fill them up.
constexpr std::size_t kCheapRows = 4;

/// A prompt with a range of the cache.
struct Sequence {
  std::size_t prompt = 0;
  std::int64_t cache_begin = 0;
  std::int64_t num_cached = 0;  ///< tokens whose keys and values are in the cache
  DraftLength draft_length = {};
  std::vector<std::int32_t> draft = {};  ///< guesses that the pass checks
};

/// The next token that a row of logits predicts.
struct NextToken {
  std::int32_t id = 0;
  double log_probability = 0;
  bool is_finite = true;  ///< true if the logits are finite
};

/// A run with tokens chosen on the host: prompts wait, are prefilled, and are decoded until they end.
class Batcher {
 public:
  Batcher(GeneratorParts& parts, const RunRequest& request)
      : parts_(parts),
        prompts_(request.prompts),
        options_(request.options),
        callbacks_(request.callbacks),
        num_cached_(request.num_cached),
        allocator_(parts.decoder.cache().capacity),
        completions_(request) {}

  std::vector<Completion> run() {
    while (next_ < prompts_.size() || !reading_.empty() || !writing_.empty()) {
      throw_if_stop_requested();
      admit();
      if (!reading_.empty()) {
        prefill();
      } else {
        decode();
      }
    }
    return completions_.take();
  }

 private:
  void admit();
  void prefill();
  void decode();
  std::vector<Piece> pieces_to_read() const;
  std::size_t drafts_of_a_sequence() const;
  void guess(Sequence& sequence, std::size_t most);
  std::vector<NextToken> choose(const at::Tensor& logits, std::span<const Sequence> sequences) const;
  void take(const at::Tensor& hidden, const std::vector<std::int64_t>& rows, std::vector<Sequence> sequences);
  bool take_token(const Sequence& sequence, const NextToken& choice, std::span<const float> logits);

  GeneratorParts& parts_;
  std::span<const Prompt> prompts_;
  const GenerateOptions& options_;
  const GenerateCallbacks& callbacks_;
  std::int64_t num_cached_;
  CacheAllocator allocator_;
  std::size_t next_ = 0;                     ///< the first waiting prompt
  std::vector<Sequence> reading_, writing_;  ///< in prefill; in decoding
  Completions completions_;
};

/// Admits prompts in order: no later prompt overtakes a long one.
void Batcher::admit() {
  const auto most = static_cast<std::size_t>(parts_.limits.max_sequences);
  while (next_ < prompts_.size() && reading_.size() + writing_.size() < most) {
    const auto room = allocator_.allocate(length_of(prompts_[next_]));
    if (!room) return;
    reading_.push_back({.prompt = next_, .cache_begin = *room, .num_cached = next_ == 0 ? num_cached_ : 0});
    ++next_;
  }
}

/// On a CPU, a pass holds tokens of one prompt only, since the last bits of a product may depend on its number of rows.
std::vector<Piece> Batcher::pieces_to_read() const {
  std::vector<Piece> pieces;
  auto left = static_cast<std::size_t>(parts_.limits.max_pass_tokens);
  for (const Sequence& sequence : reading_) {
    const std::span<const std::int32_t> rest =
        std::span(prompts_[sequence.prompt].ids).subspan(static_cast<std::size_t>(sequence.num_cached));
    pieces.push_back({sequence.cache_begin, sequence.num_cached, rest.first(std::min(left, rest.size()))});
    left -= pieces.back().ids.size();
    if (left == 0 || parts_.decoder.device().is_cpu()) break;
  }
  return pieces;
}

void Batcher::prefill() {
  const Stopwatch watch(parts_.stats.prompt_s);
  const std::vector<Piece> pieces = pieces_to_read();
  const at::Tensor hidden = parts_.decoder.forward(pieces, options_.use_adapter);
  std::vector<Sequence> read;
  std::vector<std::int64_t> last_rows;
  std::int64_t row = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto count = static_cast<std::int64_t>(pieces[i].ids.size());
    row += count;
    reading_[i].num_cached += count;
    parts_.stats.prompt_tokens += count;
    if (reading_[i].num_cached < static_cast<std::int64_t>(prompts_[reading_[i].prompt].ids.size())) continue;
    read.push_back(reading_[i]);
    last_rows.push_back(row - 1);
  }
  // Only the last piece can be incomplete, so the finished sequences come first.
  reading_.erase(reading_.begin(), reading_.begin() + static_cast<std::ptrdiff_t>(read.size()));
  if (!read.empty()) take(hidden, last_rows, std::move(read));
}

/// On a CPU a pass of few sequences has spare rows.
std::size_t Batcher::drafts_of_a_sequence() const {
  const auto rows = std::min(kCheapRows, static_cast<std::size_t>(parts_.limits.max_pass_tokens));
  if (!parts_.limits.drafts || !parts_.decoder.device().is_cpu() || writing_.size() > rows) return 0;
  return (rows - writing_.size()) / writing_.size();
}

void Batcher::guess(Sequence& sequence, std::size_t most) {
  const Prompt& prompt = prompts_[sequence.prompt];
  const std::vector<std::int32_t>& answer = completions_[sequence.prompt].ids;
  const auto left = static_cast<std::size_t>(prompt.max_new_tokens) - answer.size();  // at least 1
  sequence.draft = draft_of(prompt.ids, answer, sequence.draft_length.next(std::min(most, left - 1)));
}

/// Each guess is its own piece, which sees the keys of those before it: its row has the bits that it would have alone.
void Batcher::decode() {
  const Stopwatch watch(parts_.stats.decode_s);
  const std::size_t most = drafts_of_a_sequence();
  std::vector<Piece> pieces;
  std::vector<std::int64_t> rows;
  for (Sequence& sequence : writing_) {
    guess(sequence, most);
    const std::int64_t position = sequence.num_cached++;
    pieces.push_back({sequence.cache_begin, position, std::span(completions_[sequence.prompt].ids).last(1)});
    for (std::size_t i = 0; i < sequence.draft.size(); ++i) {
      pieces.push_back(
          {sequence.cache_begin, position + 1 + static_cast<std::int64_t>(i), std::span(sequence.draft).subspan(i, 1)});
    }
  }
  for (std::size_t i = 0; i < pieces.size(); ++i) rows.push_back(static_cast<std::int64_t>(i));
  const at::Tensor hidden = parts_.decoder.forward(pieces, options_.use_adapter);
  ++parts_.stats.decode_passes;
  const std::int64_t num_before = parts_.stats.new_tokens;
  take(hidden, rows, std::exchange(writing_, {}));
  parts_.stats.decoded_tokens += parts_.stats.new_tokens - num_before;
}

/// Chooses the next token of every sequence, and the one after each of its guesses, from the rows of `logits` [rows,
/// V].
std::vector<NextToken> Batcher::choose(const at::Tensor& logits, std::span<const Sequence> sequences) const {
  struct Place {
    std::size_t prompt, position;
  };
  std::vector<Place> places;
  for (const Sequence& sequence : sequences) {
    const std::size_t position = completions_[sequence.prompt].ids.size();
    for (std::size_t i = 0; i <= sequence.draft.size(); ++i) places.push_back({sequence.prompt, position + i});
  }
  std::vector<NextToken> choices(places.size());
  kernels::parallel_ranges(std::ssize(places), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const auto [prompt, position] = places[static_cast<std::size_t>(row)];
      const std::span<const float> values = logits_row(logits, row);
      NextToken& choice = choices[static_cast<std::size_t>(row)];
      choice.is_finite = are_finite(values);
      if (!choice.is_finite) continue;
      choice.id = choose_token(values, options_.sampling, prompts_[prompt].index, static_cast<std::int64_t>(position));
      if (options_.log_probabilities) choice.log_probability = log_probability(values, choice.id);
    }
  });
  return choices;
}

/// Returns false if the completion has ended.
bool Batcher::take_token(const Sequence& sequence, const NextToken& choice, std::span<const float> logits) {
  if (!choice.is_finite) refuse_logits(name_of(prompts_[sequence.prompt]), sequence.num_cached);
  Completion& completion = completions_[sequence.prompt];
  if (callbacks_.on_logits) callbacks_.on_logits(sequence.prompt, std::ssize(completion.ids), logits);
  completion.log_probability += choice.log_probability;
  ++parts_.stats.new_tokens;
  return completions_.append(sequence.prompt, choice.id);
}

/// Appends the next tokens of every sequence, computed from its rows of `hidden`: one, plus one for each right guess.
/// Unfinished sequences stay in decoding.
void Batcher::take(const at::Tensor& hidden, const std::vector<std::int64_t>& rows, std::vector<Sequence> sequences) {
  const at::Tensor logits = parts_.decoder.logits(hidden, rows, options_.use_adapter).to(at::kCPU);
  const std::vector<NextToken> choices = choose(logits, sequences);
  std::size_t first = 0;
  for (Sequence& sequence : sequences) {
    const std::size_t num_drafted = sequence.draft.size();
    std::size_t num_right = 0;
    bool goes_on = true;
    while (true) {
      const std::size_t row = first + num_right;
      goes_on = take_token(sequence, choices[row], logits_row(logits, static_cast<std::int64_t>(row)));
      if (!goes_on || num_right == num_drafted || sequence.draft[num_right] != choices[row].id) break;
      ++num_right;
      ++sequence.num_cached;
    }
    first += num_drafted + 1;
    sequence.draft_length.record(num_drafted, num_right);
    sequence.draft.clear();
    if (goes_on) {
      writing_.push_back(std::move(sequence));
      continue;
    }
    allocator_.free(sequence.cache_begin);
    completions_.end(sequence.prompt);
  }
}

/// The tokens of a run of one prompt that are in the cache after it. The last new one has not gone through the model.
std::vector<std::int32_t> tokens_left(const Prompt& prompt, const Completion& completion) {
  std::vector<std::int32_t> ids = prompt.ids;
  if (!completion.ids.empty()) ids.insert(ids.end(), completion.ids.begin(), completion.ids.end() - 1);
  return ids;
}

}  // namespace

void check_sampling(const SamplingOptions& options) {
  check("temperature", options.temperature, kTemperatureRange);
  check("top_k", static_cast<double>(options.top_k), kTopKRange);
  check("top_p", options.top_p, kTopPRange);
  check("min_p", options.min_p, kMinPRange);
}

kernels::SamplingFilter filter_of(const SamplingOptions& options) {
  return {options.temperature, options.top_k, options.top_p, options.min_p};
}

PhiloxKey sampling_key(std::uint64_t seed, std::int64_t prompt_index) {
  return philox_key(seed, RandomPurpose::kSampling, "", static_cast<std::uint64_t>(prompt_index));
}

std::vector<Candidate> candidates(std::span<const float> logits, const SamplingOptions& options) {
  std::vector<Candidate> list = kernels::sampling_candidates(logits, filter_of(options));
  std::sort(list.begin(), list.end(), [](const Candidate& a, const Candidate& b) {
    return a.probability != b.probability ? a.probability > b.probability : a.id < b.id;
  });
  double sum = 0;
  for (const Candidate& c : list) sum += c.probability;
  for (Candidate& c : list) c.probability /= sum;
  return list;
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
  const std::int64_t most_rows = std::max(used.max_sequences, used.max_pass_tokens);
  state_ = std::make_unique<State>(State{{config, used, CachedDecoder(config, shape, weights, attention, most_rows)}});
}
Generator::~Generator() = default;

std::vector<Completion> Generator::run(std::span<const Prompt> prompts, const GenerateOptions& options,
                                       const GenerateCallbacks& callbacks) {
  check_sampling(options.sampling);
  std::vector<std::int64_t> lengths;
  for (const Prompt& prompt : prompts) {
    check_sequence(state_->config, {prompt.ids, prompt.max_new_tokens, name_of(prompt)});
    lengths.push_back(length_of(prompt));
  }
  RunRequest request{prompts, options, callbacks};
  const bool is_conversation = options.reuse_cache && prompts.size() == 1;
  if (is_conversation) {
    reserve_for_conversation(*state_, lengths.front());
    request.num_cached = num_reusable(std::exchange(state_->left, {}), prompts.front(), options.use_adapter);
  } else {
    reserve_cache(*state_, lengths);
  }
  const bool wants_logits = options.log_probabilities || callbacks.on_logits;
  const bool uses_host = prompts.empty() || wants_logits || !state_->decoder.samples_on_device();
  std::vector<Completion> completions = uses_host ? Batcher(*state_, request).run() : run_on_device(*state_, request);
  if (is_conversation) state_->left = {tokens_left(prompts.front(), completions.front()), options.use_adapter};
  return completions;
}

void Generator::serve(serve::RequestQueue& queue) {
  queue.on_start(reserve_for_requests(*state_));
  serve_requests(*state_, queue);
}

GenerateStats Generator::stats() const { return state_->stats; }

std::int64_t cache_bytes_per_token(const model::ModelConfig& config, at::ScalarType dtype) {
  return 2 * config.num_layers * config.num_kv_heads * config.head_dim *
         static_cast<std::int64_t>(c10::elementSize(dtype));
}

}  // namespace lora_train::generate
