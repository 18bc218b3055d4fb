#include "batch_feed.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstring>

#include "lora_train/base/error.h"
#include "lora_train/kernels/embedding.h"

namespace lora_train::train {
namespace {

constexpr std::int64_t kAlignment = 64;

/// supervised 8, ids, positions, targets 4 each, cu_seqlens at most 4 + 4, document and order 4 each; 7 parts aligned.
std::int64_t slot_bytes(std::int64_t max_tokens) { return max_tokens * 32 + 8 * kAlignment; }

template <class T>
void put_part(const at::Tensor& host, std::int64_t begin, std::span<const T> values) {
  std::memcpy(static_cast<char*>(host.data_ptr()) + begin, values.data(), values.size_bytes());
}

at::Tensor part_of(const at::Tensor& buffer, std::int64_t begin, std::int64_t count, at::ScalarType type) {
  const auto bytes = count * static_cast<std::int64_t>(c10::elementSize(type));
  return buffer.narrow(0, begin, bytes).view(type);
}

}  // namespace

BatchFeed::BatchFeed(const RunDevice& device, const BatchFeedOptions& options)
    : device_(device), options_(options), slots_(device.is_cuda() ? kNumSlots : 1) {
  const std::int64_t bytes = slot_bytes(options.max_tokens);
  for (auto& slot : slots_) {
    slot.host = at::empty({bytes}, at::TensorOptions(at::kByte).pinned_memory(device.is_cuda() && options.is_pinned));
    slot.device = device.is_cuda() ? at::empty({bytes}, at::TensorOptions(at::kByte).device(device.device)) : slot.host;
    if (!device.is_cuda()) continue;
    slot.copied.emplace(at::kCUDA);
    slot.used.emplace(at::kCUDA);
    // The memory may have been another tensor's, which kernels that wait in the stream still read.
    slot.used->record(compute_stream(device));
  }
  if (device.is_cuda()) stream_ = c10::impl::VirtualGuardImpl(at::kCUDA).getNewStream(device.device);
}

BatchFeed::~BatchFeed() {
  if (is_done(device_)) return;
  for (auto& slot : slots_) keep_forever(slot.host);
}

std::int64_t BatchFeed::device_bytes(std::int64_t max_tokens) {
  return static_cast<std::int64_t>(kNumSlots) * slot_bytes(max_tokens);
}

BatchFeed::Parts BatchFeed::cut(const data::MicroBatch& micro_batch) const {
  const auto N = static_cast<std::int64_t>(micro_batch.ids.size());
  Parts parts;
  const auto add = [&](Part& part, std::int64_t count, std::int64_t element_bytes) {
    part = {parts.bytes, count};
    parts.bytes += (count * element_bytes + kAlignment - 1) / kAlignment * kAlignment;
  };
  add(parts.supervised, micro_batch.num_supervised, sizeof(std::int64_t));
  add(parts.ids, N, sizeof(std::int32_t));
  add(parts.positions, N, sizeof(std::int32_t));
  add(parts.targets, micro_batch.num_supervised, sizeof(std::int32_t));
  add(parts.cu_seqlens, static_cast<std::int64_t>(micro_batch.cu_seqlens.size()), sizeof(std::int32_t));
  add(parts.token_document, options_.has_dropout ? N : 0, sizeof(std::int32_t));
  add(parts.order, options_.trains_embedding ? N : 0, sizeof(std::int32_t));
  if (N > options_.max_tokens || parts.bytes > slots_.front().host.numel()) {
    throw ShapeError("BatchFeed", std::to_string(N) + " tokens, planned for " + std::to_string(options_.max_tokens));
  }
  return parts;
}

void BatchFeed::fill(const data::MicroBatch& micro_batch, const Parts& parts, const at::Tensor& host) const {
  put_part(host, parts.ids.begin, micro_batch.ids);
  put_part(host, parts.positions.begin, micro_batch.positions);
  put_part(host, parts.cu_seqlens.begin, micro_batch.cu_seqlens);
  auto* slots = part_of(host, parts.supervised.begin, parts.supervised.count, at::kLong).mutable_data_ptr<std::int64_t>();
  auto* targets = part_of(host, parts.targets.begin, parts.targets.count, at::kInt).mutable_data_ptr<std::int32_t>();
  for (std::size_t i = 0; i < micro_batch.labels.size(); ++i) {
    if (micro_batch.labels[i] == data::kIgnoredLabel) continue;
    *slots++ = static_cast<std::int64_t>(i);
    *targets++ = micro_batch.labels[i];
  }
  if (options_.has_dropout) {
    auto* documents =
        part_of(host, parts.token_document.begin, parts.token_document.count, at::kInt).mutable_data_ptr<std::int32_t>();
    for (std::size_t d = 0; d + 1 < micro_batch.cu_seqlens.size(); ++d) {
      const auto length = micro_batch.cu_seqlens[d + 1] - micro_batch.cu_seqlens[d];
      documents = std::fill_n(documents, length, micro_batch.document_in_step[d]);
    }
  }
  if (options_.trains_embedding) {
    put_part<std::int32_t>(host, parts.order.begin, kernels::order_by_id(micro_batch.ids));
  }
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

model::Batch BatchFeed::put(const data::MicroBatch& micro_batch) {
  const Parts parts = cut(micro_batch);
  if (device_.is_cuda()) {  // all that has been asked of the last one comes before this point of the stream
    Slot& last = slots_[(next_ + kNumSlots - 1) % kNumSlots];
    last.used->record(compute_stream(device_));
  }
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % slots_.size();
  if (slot.copied && slot.copied->was_marked_for_recording()) slot.copied->synchronize();
  fill(micro_batch, parts, slot.host);
  send(slot, parts.bytes);
  const auto view = [&](const Part& part, at::ScalarType type) {
    return part_of(slot.device, part.begin, part.count, type);
  };
  model::Batch batch;
  batch.ids = view(parts.ids, at::kInt);
  batch.positions = view(parts.positions, at::kInt);
  batch.supervised = view(parts.supervised, at::kLong);
  batch.targets = view(parts.targets, at::kInt);
  batch.cu_seqlens.assign(micro_batch.cu_seqlens.begin(), micro_batch.cu_seqlens.end());
  batch.max_document_tokens = micro_batch.max_document_tokens;
  if (device_.is_cuda()) batch.cu_seqlens_device = view(parts.cu_seqlens, at::kInt);
  if (options_.trains_embedding) batch.order = view(parts.order, at::kInt);
  batch.dropout.enabled = options_.has_dropout;
  batch.dropout.token_position = batch.positions;
  if (options_.has_dropout) batch.dropout.token_document = view(parts.token_document, at::kInt);
  return batch;
}

}  // namespace lora_train::train
