// A run with tokens chosen on the host: sequences join and leave between two passes (generator_parts.h).

#include <algorithm>
#include <numeric>
#include <utility>

#include "generator_parts.h"
#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/launch/parallel.h"

namespace lora_train::generate {
namespace {

// A decoding pass of this many rows costs little more than one row (kernels/gemm/gemm.h): guesses fill them up.
constexpr std::size_t kCheapRows = 4;

/// A prompt with a range of the cache.
struct Sequence {
  Prompt prompt;
  CachePlace place = {};
  std::int64_t num_cached = 0;            ///< tokens whose keys and values are in the cache
  std::vector<std::int32_t> tokens = {};  ///< of the prompt and of the answer so far
  DraftLength draft_length = {};
  std::vector<std::int32_t> draft = {};  ///< guesses that the pass checks

  std::int64_t num_new() const { return std::ssize(tokens) - std::ssize(prompt.ids); }
};

/// The next token that a row of logits predicts.
struct NextToken {
  Token token;
  bool is_finite = true;  ///< true if the logits are finite
};

std::vector<std::pair<std::int32_t, double>> most_likely(std::span<const float> logits, std::int64_t count) {
  if (count == 0) return {};
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto kept = std::min(std::ssize(order), static_cast<std::ptrdiff_t>(count));
  const auto logit = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::partial_sort(order.begin(), order.begin() + kept, order.end(),
                    [&](std::int32_t a, std::int32_t b) { return logit(a) != logit(b) ? logit(a) > logit(b) : a < b; });
  std::vector<std::pair<std::int32_t, double>> top;
  for (auto id = order.begin(); id != order.begin() + kept; ++id) top.emplace_back(*id, log_probability(logits, *id));
  return top;
}

NextToken choose_next(std::span<const float> logits, const Prompt& prompt, std::int64_t num_new) {
  if (!are_finite(logits)) return {{}, false};
  NextToken next{{choose_token(logits, prompt.sampling, prompt.index, num_new)}};
  if (!prompt.num_top) return next;
  next.token.log_probability = log_probability(logits, next.token.id);
  next.token.top = most_likely(logits, *prompt.num_top);
  return next;
}

class HostRun {
 public:
  HostRun(GeneratorParts& parts, const HostRequest& request)
      : parts_(parts),
        request_(request),
        sink_(request.sink),
        wants_logits_(request.sink.wants_logits()),
        num_cached_(request.num_cached),
        allocator_(parts.decoder.cache().capacity) {}

  std::vector<std::int32_t> run() {
    while (true) {
      admit();
      if (is_idle()) return std::move(last_);
      if (!request_.is_served) throw_if_stop_requested();
      const bool has_read = !reading_.empty();
      if (has_read) prefill();
      if (!writing_.empty() && (request_.is_served || !has_read)) decode();
    }
  }

 private:
  bool is_idle() const { return reading_.empty() && writing_.empty(); }
  void admit();
  void check(const Prompt& prompt) const;
  void drop_unwanted();
  void prefill();
  void decode();
  std::size_t drafts_of_a_sequence() const;
  void guess(Sequence& sequence, std::size_t most) const;
  at::Tensor forward(const std::vector<Piece>& pieces);
  std::vector<NextToken> choose(const at::Tensor& logits, std::span<const Sequence> sequences) const;
  void take(const at::Tensor& hidden, const std::vector<std::int64_t>& rows, std::vector<Sequence> sequences);
  bool take_token(Sequence& sequence, const NextToken& next, std::span<const float> logits);

  GeneratorParts& parts_;
  const HostRequest& request_;
  AnswerSink& sink_;
  const bool wants_logits_;
  std::int64_t num_cached_;  ///< of the next sequence
  CacheAllocator allocator_;
  std::optional<Prompt> waiting_;            ///< the next one, if there was no room for it yet
  std::vector<Sequence> reading_, writing_;  ///< in prefill; in decoding
  bool uses_adapter_ = true;                 ///< in the current pass
  std::vector<std::int32_t> last_;           ///< all tokens of the sequence that ended last
};

/// Admits prompts in order: no later prompt overtakes a long one.
void HostRun::admit() {
  const auto most = static_cast<std::size_t>(parts_.limits.max_sequences);
  while (reading_.size() + writing_.size() < most) {
    if (!waiting_) waiting_ = request_.next(is_idle());
    if (!waiting_) return;
    try {
      check(*waiting_);
      if (sink_.is_wanted(waiting_->id)) {
        const auto room = allocator_.allocate(waiting_->length());
        if (!room) return;
        reading_.push_back({std::move(*waiting_), *room, std::exchange(num_cached_, 0)});
        reading_.back().tokens = reading_.back().prompt.ids;
      }
    } catch (const DataError& error) {
      sink_.on_failure(waiting_->id, error);
    }
    waiting_.reset();
  }
}

/// Throws DataError if the prompt cannot be computed.
void HostRun::check(const Prompt& prompt) const {
  const std::string name = name_of(prompt);
  const std::int64_t length = prompt.length();
  check_sequence(parts_.config, prompt.ids, prompt.max_new_tokens, name);
  if (room_for(length) > parts_.decoder.cache().capacity || length > parts_.decoder.max_positions()) {
    throw DataError(name, "the cache has no room for {} tokens", length);
  }
}

void HostRun::drop_unwanted() {
  std::erase_if(reading_, [&](const Sequence& sequence) {
    const bool is_wanted = sink_.is_wanted(sequence.prompt.id);
    if (!is_wanted) allocator_.free(sequence.place);
    return !is_wanted;
  });
}

at::Tensor HostRun::forward(const std::vector<Piece>& pieces) {
  uses_adapter_ = std::any_of(pieces.begin(), pieces.end(),
                              [](const Piece& piece) { return piece.owner.value_or(0) != model::kNoOwner; });
  return parts_.decoder.forward(pieces, uses_adapter_);
}

/// On a CPU, a pass holds tokens of one prompt only, since the last bits of a product may depend on its number of rows.
void HostRun::prefill() {
  drop_unwanted();
  if (reading_.empty()) return;
  const Stopwatch watch(parts_.totals.prompt_s);
  std::vector<Piece> pieces;
  auto left = static_cast<std::size_t>(parts_.limits.max_pass_tokens);
  for (const Sequence& sequence : reading_) {
    const auto rest = std::span(sequence.tokens).subspan(static_cast<std::size_t>(sequence.num_cached));
    pieces.push_back(
        {sequence.place, sequence.num_cached, rest.first(std::min(left, rest.size())), sequence.prompt.adapter});
    left -= pieces.back().ids.size();
    if (left == 0 || parts_.decoder.device().is_cpu()) break;
  }
  const at::Tensor hidden = forward(pieces);
  std::vector<Sequence> read;
  std::vector<std::int64_t> last_rows;
  std::int64_t row = 0;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::int64_t count = std::ssize(pieces[i].ids);
    row += count;
    reading_[i].num_cached += count;
    parts_.totals.prompt_tokens += count;
    if (reading_[i].num_cached < std::ssize(reading_[i].tokens)) continue;
    last_rows.push_back(row - 1);
    read.push_back(std::move(reading_[i]));
  }
  // Only the last piece can be incomplete, so the finished sequences come first.
  reading_.erase(reading_.begin(), reading_.begin() + std::ssize(read));
  if (!read.empty()) take(hidden, last_rows, std::move(read));
}

/// On a CPU a pass of few sequences has spare rows.
std::size_t HostRun::drafts_of_a_sequence() const {
  const auto rows = std::min(kCheapRows, static_cast<std::size_t>(parts_.limits.max_pass_tokens));
  if (!parts_.limits.drafts || !parts_.decoder.device().is_cpu() || writing_.size() > rows) return 0;
  return (rows - writing_.size()) / writing_.size();
}

void HostRun::guess(Sequence& sequence, std::size_t most) const {
  const auto left = static_cast<std::size_t>(sequence.prompt.max_new_tokens - sequence.num_new());  // at least 1
  sequence.draft = draft_of(sequence.tokens, sequence.draft_length.next(std::min(most, left - 1)));
}

/// Each guess is its own piece, which sees the keys of those before it: its row has the bits that it would have alone.
void HostRun::decode() {
  const Stopwatch watch(parts_.totals.decode_s);
  const std::size_t most = drafts_of_a_sequence();
  std::vector<Piece> pieces;
  for (Sequence& sequence : writing_) {
    guess(sequence, most);
    const std::int64_t position = sequence.num_cached++;
    const auto add = [&](std::int64_t at, std::span<const std::int32_t> token) {
      pieces.push_back({sequence.place, at, token, sequence.prompt.adapter});
    };
    add(position, std::span(sequence.tokens).last(1));
    for (std::size_t i = 0; i < sequence.draft.size(); ++i)
      add(position + 1 + static_cast<std::int64_t>(i), std::span(sequence.draft).subspan(i, 1));
  }
  std::vector<std::int64_t> rows(pieces.size());
  std::iota(rows.begin(), rows.end(), 0);
  const at::Tensor hidden = forward(pieces);
  ++parts_.totals.decode_passes;
  const std::int64_t num_before = parts_.totals.new_tokens;
  take(hidden, rows, std::exchange(writing_, {}));
  parts_.totals.decoded_tokens += parts_.totals.new_tokens - num_before;
}

/// Chooses the next token of every sequence, and the one after each of its guesses, from the rows of `logits` [rows,
/// V].
std::vector<NextToken> HostRun::choose(const at::Tensor& logits, std::span<const Sequence> sequences) const {
  struct Place {
    const Prompt& prompt;
    std::int64_t num_new;
  };
  std::vector<Place> places;
  for (const Sequence& sequence : sequences) {
    for (std::int64_t i = 0; i <= std::ssize(sequence.draft); ++i)
      places.push_back({sequence.prompt, sequence.num_new() + i});
  }
  std::vector<NextToken> choices(places.size());
  kernels::parallel_ranges(std::ssize(places), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const auto& [prompt, num_new] = places[static_cast<std::size_t>(row)];
      choices[static_cast<std::size_t>(row)] = choose_next(logits_row(logits, row), prompt, num_new);
    }
  });
  return choices;
}

/// Returns false if the answer has ended.
bool HostRun::take_token(Sequence& sequence, const NextToken& next, std::span<const float> logits) {
  const Prompt& prompt = sequence.prompt;
  if (!next.is_finite) {
    try {
      refuse_logits(name_of(prompt), sequence.num_cached);
    } catch (const NumericError& error) {
      sink_.on_failure(prompt.id, error);
      return false;
    }
  }
  if (wants_logits_) sink_.on_logits(prompt.id, logits);
  sequence.tokens.push_back(next.token.id);
  ++parts_.totals.new_tokens;
  return hand_over(sink_, prompt, sequence.num_new(), next.token);
}

/// Appends the next tokens of every sequence, computed from its rows of `hidden`: one, plus one for each right guess.
/// Unfinished sequences stay in decoding.
void HostRun::take(const at::Tensor& hidden, const std::vector<std::int64_t>& rows, std::vector<Sequence> sequences) {
  const at::Tensor logits = parts_.decoder.logits(hidden, rows, uses_adapter_).to(at::kCPU);
  const std::vector<NextToken> choices = choose(logits, sequences);
  std::size_t first = 0;
  for (Sequence& sequence : sequences) {
    const std::size_t num_drafted = sequence.draft.size();
    std::size_t num_right = 0;
    bool goes_on = true;
    while (true) {
      const std::size_t row = first + num_right;
      goes_on = take_token(sequence, choices[row], logits_row(logits, static_cast<std::int64_t>(row)));
      if (!goes_on || num_right == num_drafted || sequence.draft[num_right] != choices[row].token.id) break;
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
    allocator_.free(sequence.place);
    last_ = std::move(sequence.tokens);
  }
}

}  // namespace

std::vector<std::int32_t> run_on_host(GeneratorParts& parts, const HostRequest& request) {
  return HostRun(parts, request).run();
}

}  // namespace lora_train::generate
