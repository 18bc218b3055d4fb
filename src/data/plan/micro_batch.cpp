#include "lora_train/data/plan/micro_batch.h"

#include <algorithm>
#include <numeric>

#include "lora_train/base/error.h"

namespace lora_train::data {
namespace {

constexpr std::size_t kPartAlignment = 64 / sizeof(std::int32_t);

// Writable parts of a micro-batch, cut from one buffer.
struct Parts {
  std::span<std::int32_t> ids, labels, positions, cu_seqlens, document_in_step, storage;
  std::span<float> weights;
  std::span<std::int32_t> soft_ids;
  std::span<float> soft_log_probs;
};

struct PartSizes {
  std::size_t num_tokens = 0, num_sequences = 0, num_soft = 0;
  bool has_weights = false;
};

static_assert(sizeof(float) == sizeof(std::int32_t));

/// The one place where a document is cut into sequences: attention stays within a sequence, and its positions start at 0.
/// Calls visit(begin, num_tokens) for each; so far a document is one sequence.
template <class Visit>
void for_each_sequence(const DocumentStore& store, std::uint32_t document, const Visit& visit) {
  visit(std::size_t{0}, static_cast<std::size_t>(store.num_tokens(document)));
}

Parts cut(HostBuffer& buffer, const PartSizes& sizes) {
  const auto [num_tokens, num_sequences, num_soft, has_weights] = sizes;
  const auto aligned = [](std::size_t count) { return (count + kPartAlignment - 1) / kPartAlignment * kPartAlignment; };
  const std::size_t token_part = aligned(num_tokens), offset_part = aligned(num_sequences + 1);
  const std::size_t document_part = has_weights || num_soft > 0 ? aligned(num_sequences) : num_sequences;
  const std::size_t num_weights = has_weights ? num_tokens : 0;
  const std::size_t weights_begin = 3 * token_part + offset_part + document_part;
  const std::size_t soft_begin = weights_begin + (num_soft > 0 ? aligned(num_weights) : num_weights);
  const std::size_t log_probs_begin = soft_begin + aligned(num_soft);
  Parts parts;
  parts.storage = buffer.resize(num_soft > 0 ? log_probs_begin + num_soft : soft_begin);
  const auto floats = [&](std::size_t begin, std::size_t count) {
    return std::span(reinterpret_cast<float*>(parts.storage.data() + begin), count);
  };
  parts.weights = floats(weights_begin, num_weights);
  if (num_soft > 0) {
    parts.soft_ids = parts.storage.subspan(soft_begin, num_soft);
    parts.soft_log_probs = floats(log_probs_begin, num_soft);
  }
  parts.ids = parts.storage.subspan(0, num_tokens);
  parts.labels = parts.storage.subspan(token_part, num_tokens);
  parts.positions = parts.storage.subspan(2 * token_part, num_tokens);
  parts.cu_seqlens = parts.storage.subspan(3 * token_part, num_sequences + 1);
  parts.document_in_step = parts.storage.subspan(3 * token_part + offset_part, num_sequences);
  return parts;
}

// Documents lie all over the store: brings one into the cache while another is copied.
void prefetch(std::span<const std::int32_t> values) {
  constexpr std::size_t kMaxValues = 1024;  // of longer ones the processor sees by itself how it goes on
  for (std::size_t i = 0; i < std::min(values.size(), kMaxValues); i += kPartAlignment) {
    __builtin_prefetch(&values[i]);
  }
}

void put_sequence(const Parts& parts, std::size_t at, std::span<const std::int32_t> ids,
                  std::span<const std::int32_t> labels) {
  std::copy(ids.begin(), ids.end(), parts.ids.begin() + static_cast<std::ptrdiff_t>(at));
  std::copy(labels.begin() + 1, labels.end(), parts.labels.begin() + static_cast<std::ptrdiff_t>(at));
  parts.labels[at + ids.size() - 1] = kIgnoredLabel;
  const auto positions = parts.positions.subspan(at, ids.size());
  std::iota(positions.begin(), positions.end(), 0);
}

/// `weights` may be empty: all 1.
void put_weights(std::span<float> part, std::span<const float> weights) {
  const std::size_t num_shifted = part.size() - 1;
  if (weights.empty()) {
    std::fill_n(part.begin(), num_shifted, 1.0F);
  } else {
    std::copy_n(weights.begin() + 1, num_shifted, part.begin());
  }
  part.back() = 0;
}

/// `from` may be narrower than the parts, or have nothing.
void put_soft_labels(const Parts& parts, std::size_t begin, std::size_t num_supervised, const SoftLabels& from,
                     std::int64_t width) {
  const auto wide = static_cast<std::size_t>(width), narrow = static_cast<std::size_t>(from.width);
  const auto ids = parts.soft_ids.subspan(begin * wide, num_supervised * wide);
  const auto log_probs = parts.soft_log_probs.subspan(begin * wide, num_supervised * wide);
  std::ranges::fill(ids, SoftLabels::kNone);
  std::ranges::fill(log_probs, 0.0F);
  for (std::size_t s = 0; narrow > 0 && s < num_supervised; ++s) {
    std::ranges::copy(from.ids.subspan(s * narrow, narrow), ids.subspan(s * wide).begin());
    std::ranges::copy(from.log_probs.subspan(s * narrow, narrow), log_probs.subspan(s * wide).begin());
  }
}

}  // namespace

BatchShape shape_of(const DocumentStore& store, const MicroBatchPlan& plan) {
  BatchShape shape;
  for (const std::uint32_t document : plan.documents) {
    for_each_sequence(store, document, [&](std::size_t, std::size_t num_tokens) {
      const auto length = static_cast<std::int64_t>(num_tokens);
      ++shape.num_docs;
      shape.num_tokens += length;
      shape.longest = std::max(shape.longest, length);
    });
  }
  return shape;
}

MicroBatch build_micro_batch(const DocumentStore& store, const MicroBatchPlan& plan, HostBuffer& buffer) {
  const BatchShape shape = shape_of(store, plan);
  if (shape.num_tokens > INT32_MAX) {
    throw ConfigError("micro_batch_size", "a micro-batch has " + std::to_string(shape.num_tokens) +
                                              " tokens; expected at most 2147483647: lower it, or max_seq_len");
  }
  const bool has_weights = std::any_of(plan.documents.begin(), plan.documents.end(),
                                       [&](std::uint32_t document) { return !store.weights(document).empty(); });
  std::int64_t num_supervised = 0;
  for (const std::uint32_t document : plan.documents) num_supervised += store.num_supervised(document);
  const std::int64_t width = store.soft_width();
  const Parts parts = cut(buffer, {static_cast<std::size_t>(shape.num_tokens), static_cast<std::size_t>(shape.num_docs),
                                   static_cast<std::size_t>(num_supervised * width), has_weights});
  MicroBatch batch{parts.ids, parts.labels, parts.positions, parts.cu_seqlens, parts.document_in_step, parts.storage};
  batch.weights = parts.weights;
  batch.soft = {width, parts.soft_ids, parts.soft_log_probs};
  batch.max_document_tokens = shape.longest;
  std::size_t at = 0, sequence = 0;
  parts.cu_seqlens[0] = 0;
  for (std::size_t i = 0; i < plan.documents.size(); ++i) {
    const std::uint32_t document = plan.documents[i];
    const auto ids = store.ids(document), labels = store.labels(document);
    const auto weights = store.weights(document);
    if (i + 1 < plan.documents.size()) {
      prefetch(store.ids(plan.documents[i + 1]));
      prefetch(store.labels(plan.documents[i + 1]));
    }
    for_each_sequence(store, document, [&](std::size_t begin, std::size_t length) {
      put_sequence(parts, at, ids.subspan(begin, length), labels.subspan(begin, length));
      if (has_weights) {
        put_weights(parts.weights.subspan(at, length), weights.empty() ? weights : weights.subspan(begin, length));
      }
      at += length;
      parts.document_in_step[sequence] = static_cast<std::int32_t>(plan.document_in_step[i]);
      parts.cu_seqlens[++sequence] = static_cast<std::int32_t>(at);
    });
    if (width > 0) {
      put_soft_labels(parts, static_cast<std::size_t>(batch.num_supervised),
                      static_cast<std::size_t>(store.num_supervised(document)), store.soft_labels(document), width);
    }
    batch.num_supervised += store.num_supervised(document);
    batch.weight_sum += store.weight_sum(document);
  }
  return batch;
}

}  // namespace lora_train::data
