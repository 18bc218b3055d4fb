// The sequences that are decoded together on a device. Their tokens, positions and lengths stay there and advance there, so
// that a pass needs nothing from the host and can be replayed. W rows of a pass, V vocabulary.
#pragma once

#include <compare>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "cached_decoder.h"
#include "lora_train/kernels/launch/graph.h"
#include "lora_train/kernels/sampling/sampling.h"

namespace lora_train::generate {

/// What a row decodes. An idle row computes a token that is not kept.
struct DecodeRow {
  bool is_idle = true;
  std::int64_t cache_begin = 0, num_cached = 0;
  std::int64_t num_new = 0;  ///< new tokens so far; the last one is the next to go in
  std::int64_t key = 0;      ///< of its draws: kernels::packed_key
};

/// Not thread-safe. `decoder` must outlive it.
class DecodeBatch {
 public:
  DecodeBatch(CachedDecoder& decoder, std::int64_t max_rows, bool use_graphs);

  /// What the next passes compute. Forgets the graphs if the cache or the RoPE tables have grown, and so moved.
  void set_options(const kernels::SamplingFilter& filter, bool use_adapter);

  /// The rows of the next passes: as many as a captured pass has, 1, 2, 4, ... or max_rows. Enqueues their upload.
  void set_rows(std::vector<DecodeRow> rows);

  /// Chooses the first new token of sequences from these rows of a prefill's result, for rows[i] of the passes to come. Returns the
  /// tokens [n] int32 on the device; -1 where a logit is not finite.
  at::Tensor choose_first(const at::Tensor& hidden, const std::vector<std::int64_t>& hidden_rows,
                          const std::vector<std::int64_t>& rows, const std::vector<std::int64_t>& keys);

  /// Enqueues a pass: every row takes its last token, and gets its next one. Returns those, [W] int32 on the device, until the
  /// next pass; -1 where a logit is not finite.
  at::Tensor decode();

  std::int64_t num_replays() const { return num_replays_; }

 private:
  /// What a graph has captured by value.
  struct Captured {
    std::int64_t num_rows = 0;
    bool use_adapter = true;
    double temperature = 0, top_p = 1, min_p = 0;
    std::int64_t top_k = 0;
    auto operator<=>(const Captured&) const = default;
  };
  void enqueue();
  PassTokens tokens() const;
  void advance_host();
  kernels::Graph* graph();

  CachedDecoder& decoder_;
  std::int64_t max_rows_;
  bool uses_graphs_;
  kernels::SamplingFilter filter_;
  bool use_adapter_ = true;
  std::vector<DecodeRow> rows_;
  at::Tensor ids_, chosen_;  ///< [max_rows] int32: the next token to go in; what the last pass chose
  at::Tensor int64s_;        ///< [4, max_rows]: slots, positions of draws, keys, advance (0 or 1)
  at::Tensor int32s_;        ///< [4, max_rows + 1]: positions, numbers of keys, first slots, advance
  at::Tensor cu_seqlens_;    ///< [max_rows + 1] int32: 0, 1, 2, ...
  model::LmHeadRows head_;   ///< of max_rows
  std::map<Captured, std::unique_ptr<kernels::Graph>> graphs_;
  std::set<Captured> has_run_;
  std::int64_t cache_capacity_ = 0, max_positions_ = 0;  ///< of the captured addresses: both only grow
  std::int64_t num_replays_ = 0;
};

}  // namespace lora_train::generate
