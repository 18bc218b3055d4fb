#include "lora_train/plan/setup/batch_feed.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <limits>
#include <span>

#include "lora_train/base/error.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/cross_entropy/cross_entropy.h"
#include "lora_train/kernels/embedding/embedding.h"

namespace lora_train::plan {
namespace {

constexpr std::int64_t kAlignment = 64;
constexpr std::int64_t kNoSlot =
    std::numeric_limits<std::int64_t>::max();  // after every token: kernels/embedding/embedding.h

/// Bytes per token: supervised 8, ids, positions, targets 4 each, cu_seqlens at most 4 + 4, document and order 4 each,
/// weights 4, lists of chunks at most 4 + 4 + 1. Plus alignment of each part.
std::int64_t slot_bytes(std::int64_t max_tokens, bool has_weights, std::int64_t soft_width, bool lists_chunks) {
  const std::int64_t soft_bytes = soft_width > 0 ? max_tokens * soft_width * 8 + 2 * kAlignment : 0;
  const std::int64_t chunk_bytes = lists_chunks ? max_tokens * 9 + 3 * kAlignment : 0;
  return soft_bytes + chunk_bytes + (has_weights ? max_tokens * 36 + 9 * kAlignment : max_tokens * 32 + 8 * kAlignment);
}

/// A part of a slot in host memory.
template <class T, class Part>
std::span<T> span_of(const at::Tensor& host, const Part& part) {
  return {reinterpret_cast<T*>(static_cast<char*>(host.data_ptr()) + part.begin), static_cast<std::size_t>(part.count)};
}

data::BatchShape shape_of(const data::MicroBatch& micro_batch) {
  return {std::ssize(micro_batch.ids), std::ssize(micro_batch.cu_seqlens) - 1, micro_batch.max_document_tokens};
}

/// The sizes of class `index`, or of the micro-batch if it is -1.
data::BatchClass size_in(const std::vector<data::BatchClass>& classes, int index, const data::MicroBatch& micro_batch) {
  if (index >= 0) return classes.at(static_cast<std::size_t>(index));
  const data::BatchShape own = shape_of(micro_batch);
  return {own.num_tokens, own.num_docs, own.longest};
}

std::shared_ptr<const kernels::AttentionCalls> attention_calls(std::int64_t max_tokens, bool has_backward,
                                                               const std::vector<data::BatchClass>& classes) {
  const auto calls = std::make_shared<kernels::AttentionCalls>(max_tokens, has_backward);
  for (const auto& c : classes) calls->sizes.push_back({c.num_docs, c.longest});
  return calls;
}

}  // namespace

BatchFeed::BatchFeed(const RunDevice& device, const BatchFeedOptions& options)
    : device_(device),
      options_(options),
      slots_(device.is_cuda() ? kNumSlots : 1),
      calls_(attention_calls(options.max_tokens, true, options.classes)),
      eval_calls_(attention_calls(options.max_tokens, false, options.eval_classes)) {
  std::int64_t bytes = slot_bytes(options.max_tokens, options.has_weights, options.soft_width, options.lists_chunks);
  for (const auto& batch_class : options.classes) bytes = std::max(bytes, cut(batch_class).bytes);
  const auto on_device = at::TensorOptions(at::kByte).device(device.device);
  for (auto& slot : slots_) {
    slot.host = at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(device.is_cuda() && options.is_pinned));
    slot.device = device.is_cuda() ? at::empty({bytes}, on_device) : slot.host;
    if (!device.is_cuda()) continue;
    slot.copied.emplace(at::kCUDA);
    slot.used.emplace(at::kCUDA);
    // The memory may have belonged to another tensor that enqueued kernels still read.
    slot.used->record(compute_stream(device));
  }
  if (device.is_cuda()) stream_ = c10::impl::VirtualGuardImpl(at::kCUDA).getNewStream(device.device);
  if (device.is_cuda() && !options.classes.empty()) settled_ = at::empty({bytes}, on_device);
}

BatchFeed::~BatchFeed() {
  if (is_done(device_)) return;
  for (auto& slot : slots_) keep_forever(slot.host);
}

std::int64_t BatchFeed::device_bytes(std::int64_t max_tokens, std::int64_t soft_width, bool lists_chunks) {
  return static_cast<std::int64_t>(kNumSlots + 1) * slot_bytes(max_tokens, true, soft_width, lists_chunks);
}

BatchFeed::Parts BatchFeed::cut(const data::BatchClass& sizes, std::int64_t num_supervised) const {
  const std::int64_t N = sizes.num_tokens;
  Parts parts;
  const auto add = [&](Part& part, std::int64_t count, std::int64_t element_bytes) {
    part = {parts.bytes, count};
    parts.bytes += (count * element_bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  add(parts.supervised, num_supervised, sizeof(std::int64_t));
  add(parts.targets, num_supervised, sizeof(std::int32_t));
  add(parts.weights, options_.has_weights ? num_supervised : 0, sizeof(float));
  add(parts.soft_ids, num_supervised * options_.soft_width, sizeof(std::int32_t));
  add(parts.soft_log_probs, num_supervised * options_.soft_width, sizeof(float));
  add(parts.ids, N, sizeof(std::int32_t));
  add(parts.positions, N, sizeof(std::int32_t));
  add(parts.cu_seqlens, sizes.num_docs + 1, sizeof(std::int32_t));
  add(parts.cu_chunks, options_.lists_chunks ? sizes.num_docs + 1 : 0, sizeof(std::int32_t));
  add(parts.chunk_sequence, options_.lists_chunks ? kernels::most_chunks(N, sizes.num_docs) : 0, sizeof(std::int32_t));
  add(parts.token_document, options_.has_dropout ? N : 0, sizeof(std::int32_t));
  add(parts.order, options_.trains_embedding ? N : 0, sizeof(std::int32_t));
  return parts;
}

BatchFeed::Parts BatchFeed::cut(const data::BatchClass& batch_class) const {
  const std::int64_t most = options_.classes.back().num_tokens;  // the lists are at the same place in all classes
  return cut(batch_class, (most + options_.chunk_rows - 1) / options_.chunk_rows * options_.chunk_rows);
}

void BatchFeed::fill(const data::MicroBatch& micro_batch, const Parts& parts, const at::Tensor& host) const {
  const auto copy = [&]<class T>(std::span<const T> values, const Part& part) {
    std::ranges::copy(values, span_of<T>(host, part).begin());
  };
  copy(micro_batch.ids, parts.ids);
  copy(micro_batch.positions, parts.positions);
  copy(micro_batch.cu_seqlens, parts.cu_seqlens);
  if (options_.soft_width > 0 && micro_batch.soft.width > 0) {
    copy(micro_batch.soft.ids, parts.soft_ids);
    copy(micro_batch.soft.log_probs, parts.soft_log_probs);
  }
  auto* slots = span_of<std::int64_t>(host, parts.supervised).data();
  auto* targets = span_of<std::int32_t>(host, parts.targets).data();
  auto* weights = span_of<float>(host, parts.weights).data();
  for (std::size_t i = 0; i < micro_batch.labels.size(); ++i) {
    if (micro_batch.labels[i] == data::kIgnoredLabel) continue;
    *slots++ = static_cast<std::int64_t>(i);
    *targets++ = micro_batch.labels[i];
    if (options_.has_weights) *weights++ = micro_batch.weights.empty() ? 1.0F : micro_batch.weights[i];
  }
  if (options_.has_dropout) {
    auto* documents = span_of<std::int32_t>(host, parts.token_document).data();
    for (std::size_t d = 0; d + 1 < micro_batch.cu_seqlens.size(); ++d) {
      const auto length = micro_batch.cu_seqlens[d + 1] - micro_batch.cu_seqlens[d];
      documents = std::fill_n(documents, length, micro_batch.document_in_step[d]);
    }
  }
}

void BatchFeed::fill_up(const data::MicroBatch& micro_batch, const Parts& parts, const at::Tensor& host) const {
  const auto N = static_cast<std::int64_t>(micro_batch.ids.size()), capacity = parts.ids.count;
  const auto begin = static_cast<std::size_t>(N);
  std::ranges::fill(span_of<std::int32_t>(host, parts.ids).subspan(begin), 0);
  std::ranges::fill(span_of<std::int32_t>(host, parts.positions).subspan(begin),
                    0);  // any position that has a rotation
  const auto cu_seqlens = span_of<std::int32_t>(host, parts.cu_seqlens);
  std::int64_t end = N;
  for (std::size_t d = micro_batch.cu_seqlens.size(); d < cu_seqlens.size(); ++d) {
    end = std::min(end + data::kFillerTokens, capacity);
    cu_seqlens[d] = static_cast<std::int32_t>(end);
  }
  if (options_.lists_chunks) {
    kernels::list_chunks(cu_seqlens, span_of<std::int32_t>(host, parts.cu_chunks),
                         span_of<std::int32_t>(host, parts.chunk_sequence));
  }
  const auto trained = static_cast<std::size_t>(micro_batch.num_supervised);
  std::ranges::fill(span_of<std::int64_t>(host, parts.supervised).subspan(trained), kNoSlot);
  std::ranges::fill(span_of<std::int32_t>(host, parts.targets).subspan(trained), kernels::kNoTarget);
  if (options_.has_weights) std::ranges::fill(span_of<float>(host, parts.weights).subspan(trained), 0.0F);
  if (options_.has_dropout) std::ranges::fill(span_of<std::int32_t>(host, parts.token_document).subspan(begin), 0);
  if (!options_.trains_embedding) return;
  const auto order = kernels::order_by_id(span_of<const std::int32_t>(host, parts.ids));
  std::ranges::copy(order, span_of<std::int32_t>(host, parts.order).begin());
}

void BatchFeed::send(Slot& slot, std::int64_t bytes) {
  if (!device_.is_cuda()) return;
  if (slot.used->was_marked_for_recording()) slot.used->block(*stream_);
  {
    const c10::StreamGuard in_stream(*stream_);
    slot.device.narrow(0, 0, bytes).copy_(slot.host.narrow(0, 0, bytes), /*non_blocking=*/true);
  }
  slot.copied->record(*stream_);
  slot.copied->block(compute_stream(device_));
}

int BatchFeed::class_of(const data::MicroBatch& micro_batch) const {
  return data::find_batch_class(options_.classes, shape_of(micro_batch));
}

model::Batch BatchFeed::put(const data::MicroBatch& micro_batch, int class_index) {
  const bool is_in_class = class_index >= 0;
  const data::BatchClass sizes = size_in(options_.classes, class_index, micro_batch);
  const Parts parts = is_in_class ? cut(sizes) : cut(sizes, micro_batch.num_supervised);
  const Slot& slot = put(micro_batch, sizes, parts);
  const bool settles = is_in_class && device_.is_cuda();
  if (settles) {
    const at::Tensor sent = slot.device.narrow(0, 0, parts.bytes);
    settled_.narrow(0, 0, parts.bytes).copy_(sent, /*non_blocking=*/true);
  }
  model::Batch batch =
      batch_of(settles ? settled_ : slot.device, slot.host, parts, sizes.longest, micro_batch.num_supervised);
  if (micro_batch.soft.width == 0) batch.soft = {};
  batch.attention_calls = calls_;
  return batch;
}

model::Batch BatchFeed::put_evaluation(const data::MicroBatch& micro_batch) {
  const int index = data::find_batch_class(options_.eval_classes, shape_of(micro_batch));
  const data::BatchClass sizes = size_in(options_.eval_classes, index, micro_batch);
  const Parts parts = cut(sizes, micro_batch.num_supervised);
  const Slot& slot = put(micro_batch, sizes, parts);
  model::Batch batch = batch_of(slot.device, slot.host, parts, sizes.longest, micro_batch.num_supervised);
  batch.soft = {};
  batch.dropout.enabled = false;
  batch.attention_calls = eval_calls_;
  return batch;
}

const BatchFeed::Slot& BatchFeed::put(const data::MicroBatch& micro_batch, const data::BatchClass& sizes,
                                      const Parts& parts) {
  if (!micro_batch.weights.empty() && !options_.has_weights)
    throw ShapeError("BatchFeed", "got weights that were not planned for");
  if (options_.soft_width > 0 && micro_batch.soft.ids.size() > 0 &&
      std::ssize(micro_batch.soft.ids) != parts.soft_ids.count)
    throw ShapeError("BatchFeed", "got soft labels that were not planned for");
  if (sizes.num_tokens > options_.max_tokens || parts.bytes > slots_.front().host.numel()) {
    throw ShapeError("BatchFeed", "{} tokens, planned for {}", sizes.num_tokens, options_.max_tokens);
  }
  if (device_.is_cuda()) {  // all work on the previous batch was enqueued before this point
    Slot& last = slots_[(next_ + kNumSlots - 1) % kNumSlots];
    last.used->record(compute_stream(device_));
  }
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % slots_.size();
  if (slot.copied && slot.copied->was_marked_for_recording()) slot.copied->synchronize();
  fill(micro_batch, parts, slot.host);
  fill_up(micro_batch, parts, slot.host);
  send(slot, parts.bytes);
  return slot;
}

model::Batch BatchFeed::batch_of(const at::Tensor& memory, const at::Tensor& host, const Parts& parts,
                                 std::int64_t longest, std::int64_t num_supervised) const {
  const auto view = [&](const Part& part, at::ScalarType type) {
    return memory.narrow(0, part.begin, part.count * static_cast<std::int64_t>(c10::elementSize(type))).view(type);
  };
  const auto ends = span_of<const std::int32_t>(host, parts.cu_seqlens);
  model::Batch batch;
  batch.ids = view(parts.ids, at::kInt);
  batch.positions = view(parts.positions, at::kInt);
  batch.supervised = view(parts.supervised, at::kLong);
  batch.targets = view(parts.targets, at::kInt);
  if (options_.has_weights) batch.weights = view(parts.weights, at::kFloat);
  if (options_.soft_width > 0) {
    batch.soft.ids = view(parts.soft_ids, at::kInt).view({-1, options_.soft_width});
    batch.soft.log_probs = view(parts.soft_log_probs, at::kFloat).view({-1, options_.soft_width});
  }
  batch.num_supervised = num_supervised;
  batch.cu_seqlens.assign(ends.begin(), ends.end());
  batch.cu_seqlens_device = view(parts.cu_seqlens, at::kInt);
  if (options_.lists_chunks) {
    batch.documents = {batch.cu_seqlens,
                       batch.cu_seqlens_device,
                       view(parts.cu_chunks, at::kInt),
                       view(parts.chunk_sequence, at::kInt),
                       {}};
  }
  batch.max_document_tokens = longest;
  if (options_.trains_embedding) batch.order = view(parts.order, at::kInt);
  batch.dropout.enabled = options_.has_dropout;
  batch.dropout.token_position = batch.positions;
  if (options_.has_dropout) batch.dropout.token_document = view(parts.token_document, at::kInt);
  return batch;
}

}  // namespace lora_train::plan
