// What is measured beside products: attention backends and the rows of a chunk of the loss head. Buffers of their own are given
// back; memory that is not there is a c10::OutOfMemoryError.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "lora_train/kernels/attention.h"
#include "lora_train/kernels/tuning.h"
#include "lora_train/model/decoder.h"

namespace lora_train::tuning {

struct AttentionBackends {
  kernels::AttentionBackend full = kernels::AttentionBackend::kAuto;
  kernels::AttentionBackend windowed = kernels::AttentionBackend::kAuto;  ///< of layers with a sliding window
};

/// The fastest for documents of these lengths, those of the largest micro-batch.
AttentionBackends tune_attention(kernels::Tuner& tuner, const model::Decoder& decoder,
                                 const std::vector<std::int64_t>& lengths, at::Device device);

/// LossHeadOptions::chunk_bytes for chunks of as many rows as the run had before; nothing where that was not kept or does not
/// fit. head [V, D]; spare_bytes: of the device, that no plan asks for.
std::optional<std::int64_t> kept_loss_chunk(const at::Tensor& head, std::int64_t rows, std::int64_t spare_bytes);

/// LossHeadOptions::chunk_bytes: as the rule has it, or of up to 8192 rows where that is faster for `supervised` tokens, as many
/// as a micro-batch has.
std::int64_t tune_loss_chunk(kernels::Tuner& tuner, const at::Tensor& head, std::int64_t supervised,
                             std::int64_t spare_bytes);

}  // namespace lora_train::tuning
