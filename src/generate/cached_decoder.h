// The decoder for generation: forward only, with a key-value cache. N tokens of a pass, D hidden, V vocabulary.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/TensorOptions.h>

#include <algorithm>
#include <exception>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lora_train/kernels/attention/attention_cache.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/model/layer.h"
#include "lora_train/model/loss_head.h"

namespace lora_train::generate {

/// What a generation keeps of its sequences: room for the keys and values of `capacity` tokens in every layer with
/// attention, and for `num_states` states in every gated delta net.
struct KeyValueCache {
  KeyValueCache() = default;
  KeyValueCache(const model::ModelConfig& config, std::int64_t capacity, std::int64_t num_states,
                const at::TensorOptions& options);

  std::vector<at::Tensor> keys, values;        ///< per layer [capacity, K, E], or undefined
  std::vector<model::RecurrentStates> states;  ///< per layer, or undefined
  std::int64_t capacity = 0;
  std::int64_t bytes() const;
};

/// The place of a sequence in a cache: its first slot, and the row of its states.
struct CachePlace {
  std::int64_t begin = 0, state_row = 0;
};

/// Cache slots for a sequence of this length: whole blocks of 16, so that its first token has the same alignment
/// wherever it is placed, and its sums the same bits.
std::int64_t room_for(std::int64_t num_tokens);

/// A first-fit allocator of ranges of a cache, and of rows of states.
class CacheAllocator {
 public:
  explicit CacheAllocator(std::int64_t capacity) : capacity_(capacity) {}
  /// Allocates room_for(num_tokens) slots and the first free row, or nothing if no free range is long enough.
  std::optional<CachePlace> allocate(std::int64_t num_tokens);
  void free(const CachePlace& place);

 private:
  struct Taken {
    std::int64_t end = 0, state_row = 0;
  };
  std::int64_t capacity_;
  std::map<std::int64_t, Taken> taken_;  ///< by begin
};

/// The next tokens of the sequence at `place`, which already has `position` tokens in the cache.
struct Piece {
  CachePlace place = {};
  std::int64_t position = 0;
  std::span<const std::int32_t> ids;
  std::optional<std::int64_t> owner =
      {};  ///< index of the adapter to use, or model::kNoOwner; set for all pieces or none
};

/// The tokens of a pass, on the device.
struct PassTokens {
  at::Tensor ids, positions, slots;  ///< [N] int32, int32, int64; a slot outside the cache: not kept
  std::map<std::int64_t, kernels::CachedLayout> layouts;  ///< by window
  bool is_skinny = false;                                 ///< kernels::skinny_gemm is the faster product
  at::Tensor owners = {};                                 ///< [N, 1] int64: model::LinearPass::row_owners
  kernels::Sequences sequences = {};                      ///< for gated delta nets
};

/// Host memory for copies that no thread waits for: page-locked if `device` is a GPU. Freeing it would end the process
/// once the device has failed, so an exception leaves it allocated.
class TransferBuffer {
 public:
  TransferBuffer(at::IntArrayRef sizes, at::ScalarType type, at::Device device)
      : tensor(at::empty(sizes, at::TensorOptions(type).pinned_memory(!device.is_cpu()))) {}
  ~TransferBuffer() {
    if (std::uncaught_exceptions() > exceptions_) static_cast<void>(tensor.unsafeReleaseTensorImpl());
  }
  TransferBuffer(const TransferBuffer&) = delete;

  at::Tensor tensor;

 private:
  int exceptions_ = std::uncaught_exceptions();
};

/// Copies values to a new tensor on `device`, without waiting.
template <class T>
at::Tensor upload(const std::vector<T>& values, at::Device device) {
  TransferBuffer host({std::ssize(values)}, c10::CppTypeToScalarType<T>::value, device);
  std::copy(values.begin(), values.end(), host.tensor.mutable_data_ptr<T>());
  return host.tensor.to(device, /*non_blocking=*/true);
}

/// Its buffers have a fixed size. Not thread-safe.
class CachedDecoder {
 public:
  /// A pass takes at most max_tokens tokens, of at most max_sequences sequences. `weights` must outlive the decoder.
  CachedDecoder(const model::ModelConfig& config, const model::ModelShape& shape, model::BaseWeights& weights,
                kernels::AttentionBackend attention, std::int64_t max_tokens, std::int64_t max_sequences);

  /// Allocates a cache for cache_tokens tokens, unless it is already that large; this drops the old contents. Prepares
  /// RoPE for positions below max_positions.
  void reserve(std::int64_t cache_tokens, std::int64_t max_positions);

  /// Returns the last layer's output [N, D] for the tokens of all pieces, one piece after another; adds their keys and
  /// values to the cache. If every piece is one token, or all together are a handful, a row's bits depend only on its
  /// own sequence.
  at::Tensor forward(std::span<const Piece> pieces, bool use_adapter);
  at::Tensor forward(const PassTokens& tokens, bool use_adapter);

  /// Copies a sequence's states. There are max_sequences rows, and one more: spare_row().
  void copy_state(std::int64_t from_row, std::int64_t to_row);
  std::int64_t spare_row() const { return max_sequences_; }

  /// Logits [rows, V] fp32 for these rows of forward()'s result.
  at::Tensor logits(const at::Tensor& hidden, const std::vector<std::int64_t>& rows, bool use_adapter);
  /// The same for all rows of rows.hidden, into rows.logits.
  void logits(model::LmHeadRows& rows, bool use_adapter);

  /// The layout for each window of the model.
  std::map<std::int64_t, kernels::CachedLayout> by_window(kernels::CachedLayout layout) const;
  /// Empty if a pass can take sequence lengths from the device; otherwise the reason.
  std::string refuses_max_keys() const;
  /// True if tokens can be chosen and kept on the device.
  bool samples_on_device() const;

  const model::ModelConfig& config() const { return config_; }
  std::int64_t max_positions() const { return rope_.global.cos.size(0); }
  const KeyValueCache& cache() const { return cache_; }
  at::Device device() const { return options_.device(); }
  at::ScalarType dtype() const { return options_.dtype().toScalarType(); }

 private:
  class CachedAttention;
  PassTokens place(std::span<const Piece> pieces);
  void clear_states(const std::vector<std::int64_t>& rows);

  const model::ModelConfig config_;
  const model::ModelShape shape_;
  model::BaseWeights& weights_;
  kernels::AttentionBackend attention_;
  at::TensorOptions options_;
  double embedding_scale_;
  model::Activations activations_;
  std::int64_t max_sequences_;
  KeyValueCache cache_;
  model::RopeTables rope_;
};

}  // namespace lora_train::generate
