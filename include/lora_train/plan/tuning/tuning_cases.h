// Measurements besides GEMMs: the row pitch, attention backends and the rows of a loss chunk. All allocate temporary
// buffers and throw c10::OutOfMemoryError if memory is too small.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "lora_train/kernels/attention/attention.h"
#include "lora_train/kernels/dispatch/tuning.h"
#include "lora_train/model/decoder.h"

namespace lora_train::plan {

struct AttentionBackends {
  kernels::AttentionBackend full = kernels::AttentionBackend::kAuto;
  kernels::AttentionBackend windowed = kernels::AttentionBackend::kAuto;  ///< for layers with a sliding window
};

/// Chooses the faster row pitch for the linears of a layer, adapters included, and `num_tokens` tokens. Call it before
/// loading the weights. Also chooses algorithms for their GEMMs, like tune_products(). kExact without adapters.
model::RowPitch tune_row_pitch(kernels::Tuner& tuner, const model::ModelConfig& config,
                               const std::vector<model::AdapterSpec>& adapters, std::int64_t num_tokens,
                               at::ScalarType dtype, at::Device device);

/// Chooses the fastest backends for documents of these lengths (those of the largest micro-batch).
AttentionBackends tune_attention(kernels::Tuner& tuner, const model::Decoder& decoder,
                                 const std::vector<std::int64_t>& lengths, at::Device device);

/// LossHeadOptions::chunk_bytes for chunks of `rows` rows, as before the resume. Nothing if rows is 0 (not stored) or
/// the chunk does not fit. head [V, D]; spare_bytes: device memory that the plan leaves free.
std::optional<std::int64_t> kept_loss_chunk(const at::Tensor& head, std::int64_t rows, std::int64_t spare_bytes);

/// LossHeadOptions::chunk_bytes for a GPU: the default, or a chunk of up to 8192 rows that fits, whichever needs fewer
/// rounds of GEMM tiles over the multiprocessors for `supervised` tokens, the average per micro-batch.
std::int64_t loss_chunk_by_count(const at::Tensor& head, std::int64_t supervised, std::int64_t spare_bytes,
                                 int num_multiprocessors);

/// The same by measuring; nothing if there is nothing to choose.
std::optional<std::int64_t> tune_loss_chunk(kernels::Tuner& tuner, const at::Tensor& head, std::int64_t supervised,
                                            std::int64_t spare_bytes);

}  // namespace lora_train::plan
