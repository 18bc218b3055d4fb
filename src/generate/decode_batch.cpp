#include "decode_batch.h"

#include <ATen/ATen.h>

#include <limits>
#include <numeric>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"

namespace lora_train::generate {
namespace {

constexpr std::int64_t kNoSlot =
    std::numeric_limits<std::int64_t>::max();  // behind every slot: kernels/gather/gather.h
enum Int64s { kSlot, kDraw, kKey, kAdvance };
enum Int32s { kPosition, kNumKeys, kKeyBegin, kAdvance32 };

/// `values` into `to`, on its device; nobody waits for the copy.
template <class T>
void upload_into(at::Tensor& to, const std::vector<T>& values) {
  TransferBuffer host(to.sizes(), to.scalar_type(), to.device());
  std::copy(values.begin(), values.end(), host.tensor.mutable_data_ptr<T>());
  to.copy_(host.tensor, /*non_blocking=*/true);
}

}  // namespace

DecodeBatch::DecodeBatch(CachedDecoder& decoder, std::int64_t max_rows, bool use_graphs)
    : decoder_(decoder), max_rows_(max_rows), uses_graphs_(use_graphs && kernels::can_capture()) {
  const model::ModelConfig& config = decoder.config();
  const auto on_device = at::TensorOptions(decoder.device());
  ids_ = at::zeros({max_rows}, on_device.dtype(at::kInt));
  chosen_ = at::zeros_like(ids_);
  int64s_ = at::zeros({4, max_rows}, on_device.dtype(at::kLong));
  int32s_ = at::zeros({4, max_rows + 1}, on_device.dtype(at::kInt));
  std::vector<std::int32_t> counted(static_cast<std::size_t>(max_rows) + 1);
  std::iota(counted.begin(), counted.end(), 0);
  cu_seqlens_ = upload(counted, decoder.device());
  const auto fp32 = on_device.dtype(at::kFloat);
  head_ = {{},
           at::empty({max_rows, config.hidden_size}, on_device.dtype(decoder.dtype())),
           at::empty({max_rows}, fp32),
           at::empty({max_rows, config.vocab_size}, fp32)};
  const std::string refusal = decoder.refuses_max_keys();
  if (!uses_graphs_ || refusal.empty()) return;
  uses_graphs_ = false;
  log_warning("cuda_graphs: decoding runs without graphs. " + refusal);
}

void DecodeBatch::set_options(const kernels::SamplingFilter& filter, bool use_adapter) {
  filter_ = filter;
  use_adapter_ = use_adapter;
  const std::int64_t capacity = decoder_.cache().capacity;
  if (cache_capacity_ == capacity && max_positions_ == decoder_.max_positions()) return;
  graphs_.clear();
  has_run_.clear();
  cache_capacity_ = capacity;
  max_positions_ = decoder_.max_positions();
}

void DecodeBatch::set_rows(std::vector<DecodeRow> rows) {
  std::size_t num_rows = 1;
  while (num_rows < rows.size()) num_rows *= 2;
  rows_ = std::move(rows);
  rows_.resize(std::min(num_rows, static_cast<std::size_t>(max_rows_)));
  const auto most = static_cast<std::size_t>(max_rows_);
  std::vector<std::int64_t> int64s(4 * most, 0);
  std::vector<std::int32_t> int32s(4 * (most + 1), 0);
  for (std::size_t i = 0; i < most; ++i) {
    const DecodeRow row = i < rows_.size() ? rows_[i] : DecodeRow{};
    const auto put = [&](Int32s what, std::int64_t value) {
      int32s[what * (most + 1) + i] = static_cast<std::int32_t>(value);
    };
    int64s[kSlot * most + i] = row.is_idle ? kNoSlot : row.cache_begin + row.num_cached;
    int64s[kDraw * most + i] = row.num_new;
    int64s[kKey * most + i] = row.key;
    int64s[kAdvance * most + i] = row.is_idle ? 0 : 1;
    put(kPosition, row.num_cached);
    put(kNumKeys, row.num_cached + 1);
    put(kKeyBegin, row.cache_begin);
    put(kAdvance32, row.is_idle ? 0 : 1);
  }
  upload_into(int64s_, int64s);
  upload_into(int32s_, int32s);
}

at::Tensor DecodeBatch::choose_first(const at::Tensor& hidden, const std::vector<std::int64_t>& hidden_rows,
                                     const std::vector<std::int64_t>& rows, const std::vector<std::int64_t>& keys) {
  const at::Tensor logits = decoder_.logits(hidden, hidden_rows, use_adapter_);
  const at::Tensor draws = at::zeros({std::ssize(rows)}, int64s_.options());
  at::Tensor chosen = at::empty(draws.sizes(), ids_.options());
  kernels::sample_tokens(logits, filter_, upload(keys, decoder_.device()), draws, chosen);
  ids_.index_copy_(0, upload(rows, decoder_.device()), chosen.clamp_min(0));
  return chosen;
}

PassTokens DecodeBatch::tokens() const {
  const std::int64_t W = std::ssize(rows_);
  const auto int32s = [&](Int32s what, std::int64_t count) { return int32s_[what].narrow(0, 0, count); };
  kernels::CachedLayout layout;
  layout.cu_seqlens_q.resize(rows_.size() + 1);
  std::iota(layout.cu_seqlens_q.begin(), layout.cu_seqlens_q.end(), 0);
  for (const DecodeRow& row : rows_) {
    layout.key_begin.push_back(row.cache_begin);
    layout.num_keys.push_back(row.num_cached + 1);
  }
  layout.cu_seqlens_q_device = cu_seqlens_.narrow(0, 0, W + 1);
  layout.key_begin_device = int32s(kKeyBegin, W + 1);
  layout.num_keys_device = int32s(kNumKeys, W);
  layout.max_keys = uses_graphs_ ? max_positions_ : 0;
  return {ids_.narrow(0, 0, W), int32s(kPosition, W), int64s_[kSlot].narrow(0, 0, W),
          decoder_.by_window(std::move(layout)), false};
}

void DecodeBatch::enqueue() {
  const std::int64_t W = std::ssize(rows_);
  model::LmHeadRows head{decoder_.forward(tokens(), use_adapter_), head_.normed.narrow(0, 0, W),
                         head_.rstd.narrow(0, 0, W), head_.logits.narrow(0, 0, W)};
  decoder_.logits(head, use_adapter_);
  at::Tensor chosen = chosen_.narrow(0, 0, W);
  kernels::sample_tokens(head.logits, filter_, int64s_[kKey].narrow(0, 0, W), int64s_[kDraw].narrow(0, 0, W), chosen);
  kernels::run_or_capture([ids = ids_.narrow(0, 0, W), chosen, int64s = int64s_, int32s = int32s_]() mutable {
    at::clamp_min_out(ids, chosen, 0);
    int64s.narrow(0, kSlot, kDraw + 1).add_(int64s.narrow(0, kAdvance, 1));
    int32s.narrow(0, kPosition, kNumKeys + 1).add_(int32s.narrow(0, kAdvance32, 1));
  });
}

void DecodeBatch::advance_host() {
  for (DecodeRow& row : rows_) {
    row.num_cached += row.is_idle ? 0 : 1;
    row.num_new += row.is_idle ? 0 : 1;
  }
}

/// Null: the pass is to be enqueued. The first pass of its kind is, so that everything created at first use exists.
kernels::Graph* DecodeBatch::graph() {
  if (!uses_graphs_) return nullptr;
  const Captured captured{std::ssize(rows_), use_adapter_,  filter_.temperature,
                          filter_.top_p,     filter_.min_p, filter_.top_k};
  if (has_run_.insert(captured).second) return nullptr;
  std::unique_ptr<kernels::Graph>& graph = graphs_[captured];
  if (graph != nullptr) return graph.get();
  const auto stop = [&](const std::string& reason) {
    uses_graphs_ = false;
    graphs_.clear();
    log_warning("cuda_graphs: decoding runs without graphs. " + reason);
    return nullptr;
  };
  try {
    graph = kernels::capture([&] { enqueue(); });
  } catch (const c10::OutOfMemoryError& error) {
    return stop(error.what_without_backtrace());
  } catch (const DeviceError& error) {
    return stop(error.what());
  }
  return graph.get();
}

at::Tensor DecodeBatch::decode() {
  if (kernels::Graph* const captured = graph()) {
    captured->replay();
    ++num_replays_;
  } else {
    enqueue();
  }
  advance_host();
  return chosen_.narrow(0, 0, std::ssize(rows_));
}

}  // namespace lora_train::generate
