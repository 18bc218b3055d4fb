// Generator::serve(): sequences join and leave between two passes.
#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "generator_parts.h"
#include "lora_train/base/error.h"
#include "lora_train/kernels/launch/parallel.h"

namespace lora_train::generate {
namespace {

using serve::RequestQueue;
using serve::ServedRequest;
using serve::ServedToken;

/// A request with a range of the cache.
struct ServedSequence {
  ServedRequest request;
  std::int64_t cache_begin = 0;
  std::int64_t num_cached = 0, num_new = 0;
  std::int32_t last = 0;  ///< the newest token, which has not gone through the model
};

/// The outcome of a row of logits.
struct Choice {
  ServedToken token;
  std::string failure;
};

std::vector<std::pair<std::int32_t, double>> most_likely(std::span<const float> logits, std::int64_t count) {
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

Choice choose_next(std::span<const float> logits, const ServedSequence& sequence) {
  const ServedRequest& request = sequence.request;
  Choice choice;
  try {
    check_logits(logits, "request", sequence.num_cached);
  } catch (const NumericError& error) {
    choice.failure = error.message();
    return choice;
  }
  choice.token.id = choose_token(logits, request.sampling, request.index, sequence.num_new);
  if (!request.num_top) return choice;
  choice.token.log_probability = log_probability(logits, choice.token.id);
  choice.token.top = most_likely(logits, *request.num_top);
  return choice;
}

class ContinuousRun {
 public:
  ContinuousRun(GeneratorParts& parts, serve::RequestQueue& queue)
      : parts_(parts), queue_(queue), allocator_(parts.decoder.cache().capacity) {}

  /// Alternates passes over prompts and over answers: a long prompt delays other answers, but does not stop them.
  void run() {
    while (true) {
      admit();
      if (is_idle()) return;
      if (!reading_.empty()) prefill();
      if (!writing_.empty()) decode();
    }
  }

 private:
  bool is_idle() const { return reading_.empty() && writing_.empty(); }
  void admit();
  std::string problem_of(const ServedRequest& request) const;
  void drop_unwanted();
  void prefill();
  void decode();
  at::Tensor forward(const std::vector<Piece>& pieces);
  void take(const at::Tensor& hidden, const std::vector<std::int64_t>& rows, std::vector<ServedSequence> sequences);
  bool deliver(ServedSequence& sequence, const Choice& choice);

  GeneratorParts& parts_;
  RequestQueue& queue_;
  CacheAllocator allocator_;
  std::optional<ServedRequest> waiting_;  ///< the next one, if there was no room for it yet
  std::vector<ServedSequence> reading_, writing_;
  bool uses_adapter_ = true;  ///< in the current pass
};

/// Admits requests in order: none overtakes a long one.
void ContinuousRun::admit() {
  const auto most = static_cast<std::size_t>(parts_.limits.max_sequences);
  while (reading_.size() + writing_.size() < most) {
    if (!waiting_) waiting_ = queue_.next(is_idle());
    if (!waiting_) return;
    const std::int64_t id = waiting_->id;
    if (const std::string problem = problem_of(*waiting_); !problem.empty()) {
      queue_.on_failure(id, problem);
    } else if (queue_.is_wanted(id)) {
      const std::int64_t length = std::ssize(waiting_->ids) + waiting_->max_new_tokens;
      const auto room = allocator_.allocate(length);
      if (!room) return;
      reading_.push_back({std::move(*waiting_), *room});
    }
    waiting_.reset();
  }
}

/// Why the request cannot be computed; empty if it can.
std::string ContinuousRun::problem_of(const ServedRequest& request) const {
  const std::int64_t length = std::ssize(request.ids) + request.max_new_tokens;
  try {
    check_sequence(parts_.config, {request.ids, request.max_new_tokens, "the request"});
  } catch (const DataError& error) {
    return error.what();
  }
  const bool fits = room_for(length) <= parts_.decoder.cache().capacity && length <= parts_.decoder.max_positions();
  return fits ? "" : fmt::format("the cache has no room for {} tokens", length);
}

void ContinuousRun::drop_unwanted() {
  std::erase_if(reading_, [&](const ServedSequence& sequence) {
    const bool is_wanted = queue_.is_wanted(sequence.request.id);
    if (!is_wanted) allocator_.free(sequence.cache_begin);
    return !is_wanted;
  });
}

at::Tensor ContinuousRun::forward(const std::vector<Piece>& pieces) {
  uses_adapter_ = std::any_of(pieces.begin(), pieces.end(),
                              [](const Piece& piece) { return piece.owner.value_or(0) != model::kNoOwner; });
  return parts_.decoder.forward(pieces, uses_adapter_);
}

/// On a CPU, a pass holds tokens of one prompt only, since the last bits of a product may depend on its number of rows.
void ContinuousRun::prefill() {
  drop_unwanted();
  if (reading_.empty()) return;
  const Stopwatch watch(parts_.stats.prompt_s);
  std::vector<Piece> pieces;
  std::vector<ServedSequence> read;
  std::vector<std::int64_t> last_rows;
  auto left = static_cast<std::size_t>(parts_.limits.max_pass_tokens);
  std::int64_t row = 0;
  for (ServedSequence& sequence : reading_) {
    const auto rest =
        std::span<const std::int32_t>(sequence.request.ids).subspan(static_cast<std::size_t>(sequence.num_cached));
    pieces.push_back(
        {sequence.cache_begin, sequence.num_cached, rest.first(std::min(left, rest.size())), sequence.request.owner});
    left -= pieces.back().ids.size();
    if (left == 0 || parts_.decoder.device().is_cpu()) break;
  }
  const at::Tensor hidden = forward(pieces);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto count = static_cast<std::int64_t>(pieces[i].ids.size());
    row += count;
    reading_[i].num_cached += count;
    parts_.stats.prompt_tokens += count;
    if (reading_[i].num_cached < std::ssize(reading_[i].request.ids)) continue;
    last_rows.push_back(row - 1);
    read.push_back(std::move(reading_[i]));
  }
  // Only the last piece can be incomplete, so the finished sequences come first.
  reading_.erase(reading_.begin(), reading_.begin() + std::ssize(read));
  if (!read.empty()) take(hidden, last_rows, std::move(read));
}

void ContinuousRun::decode() {
  const Stopwatch watch(parts_.stats.decode_s);
  std::vector<Piece> pieces;
  std::vector<std::int64_t> rows;
  for (ServedSequence& sequence : writing_) {
    rows.push_back(std::ssize(pieces));
    pieces.push_back(
        {sequence.cache_begin, sequence.num_cached++, std::span(&sequence.last, 1), sequence.request.owner});
  }
  const at::Tensor hidden = forward(pieces);
  parts_.stats.decoded_tokens += std::ssize(writing_);
  std::vector<ServedSequence> sequences;
  sequences.swap(writing_);
  take(hidden, rows, std::move(sequences));
}

/// Chooses the next token of sequences[i] from its row of `hidden`. Unfinished sequences stay in decoding.
void ContinuousRun::take(const at::Tensor& hidden, const std::vector<std::int64_t>& rows,
                         std::vector<ServedSequence> sequences) {
  const at::Tensor logits = parts_.decoder.logits(hidden, rows, uses_adapter_).to(at::kCPU);
  std::vector<Choice> choices(sequences.size());
  kernels::parallel_ranges(std::ssize(choices), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto index = static_cast<std::size_t>(i);
      choices[index] = choose_next(logits_row(logits, i), sequences[index]);
    }
  });
  for (std::size_t i = 0; i < choices.size(); ++i) {
    if (deliver(sequences[i], choices[i])) {
      writing_.push_back(std::move(sequences[i]));
    } else {
      allocator_.free(sequences[i].cache_begin);
    }
  }
}

/// Returns false if the answer has ended.
bool ContinuousRun::deliver(ServedSequence& sequence, const Choice& choice) {
  const ServedRequest& request = sequence.request;
  if (!choice.failure.empty()) {
    queue_.on_failure(request.id, choice.failure);
    return false;
  }
  sequence.last = choice.token.id;
  ++sequence.num_new;
  ++parts_.stats.new_tokens;
  const bool wants_more = queue_.on_token(request.id, choice.token);
  const bool is_stop =
      std::find(request.stop_ids.begin(), request.stop_ids.end(), choice.token.id) != request.stop_ids.end();
  const bool is_full = sequence.num_new >= request.max_new_tokens;
  if (wants_more && !is_stop && !is_full) return true;
  queue_.on_done(request.id, /*is_cut=*/wants_more && !is_stop);
  return false;
}

}  // namespace

void serve_requests(GeneratorParts& parts, serve::RequestQueue& queue) { ContinuousRun(parts, queue).run(); }

}  // namespace lora_train::generate
