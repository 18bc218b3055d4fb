// Finds out whether the embedding of a token was ever trained.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace lora_train::run {

/// Checks the L2 norm of row `id` of an embedding [V, D]. The row looks untrained if its norm is less than half of the norm
/// that 95% of the tokens exceed; or, if rows from num_tokens on belong to no token, if it is no longer than the longest of
/// these and all of them are shorter than 95% of the tokens. Published base models have such rows for chat tokens. Returns
/// what it found, or nothing if the row looks trained. 0 <= id < num_tokens <= V.
std::optional<std::string> looks_untrained(const at::Tensor& embedding, std::int64_t id, std::int64_t num_tokens);

}  // namespace lora_train::run
