// A micro-batch on the device: N token slots, documents side by side.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <vector>

#include "lora_train/kernels/attention/attention.h"
#include "lora_train/kernels/cross_entropy/cross_entropy.h"
#include "lora_train/kernels/sequences.h"
#include "lora_train/model/projection.h"

namespace lora_train::model {

struct Batch {
  at::Tensor ids;        ///< [N] int32
  at::Tensor positions;  ///< [N] int32, from 0 in each document
  at::Tensor
      supervised;  ///< [M] int64: slots whose next token is trained, ascending; a batch class pads it with values >= N
  at::Tensor targets;               ///< [M] int32: that next token; kernels::kNoTarget in the padding
  at::Tensor weights;               ///< [M] fp32: its weight in the loss; undefined: 1
  kernels::SoftTargets soft;        ///< [M, K] from a teacher; undefined: no teacher
  int64_t num_supervised = -1;      ///< how many of the M entries are not padding; -1: all
  std::vector<int64_t> cu_seqlens;  ///< num_docs + 1
  at::Tensor cu_seqlens_device;     ///< the same as int32 on the device; undefined: copied when a GPU needs it
  int64_t max_document_tokens = 0;  ///< tokens of the longest document; 0: computed from cu_seqlens
  at::Tensor order;  ///< [N] int32: tokens sorted by id (kernels::order_by_id); set when the embedding is trained
  DropoutContext dropout;
  std::shared_ptr<const kernels::AttentionCalls> attention_calls;  ///< for layout()

  int64_t num_tokens() const { return ids.size(0); }
  int64_t num_trained_tokens() const { return num_supervised < 0 ? supervised.size(0) : num_supervised; }

  /// The attention layout of layers with this window, created once. Backends cache what they derive from it in it.
  const kernels::AttentionLayout& layout(int64_t window, double scale, kernels::AttentionBackend backend) const {
    const auto [entry, is_new] = layouts.try_emplace(window);
    if (is_new) {
      entry->second = {
          cu_seqlens,          cu_seqlens,          window, scale, backend, cu_seqlens_device, cu_seqlens_device,
          max_document_tokens, max_document_tokens, {}};
      entry->second.calls = attention_calls;
    }
    return entry->second;
  }
  /// The documents as sequences of recurrent layers, created once.
  const kernels::Sequences& sequences() const {
    if (documents.cu_seqlens.empty()) documents = kernels::make_sequences(cu_seqlens, ids.device());
    return documents;
  }
  mutable std::map<int64_t, kernels::AttentionLayout> layouts;
  mutable kernels::Sequences documents;
};

}  // namespace lora_train::model
