// Whether the embedding of a token was ever trained.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>

namespace lora_train::train {

/// Looks at the length (L2 norm) of row `id` of an embedding [V, D]. It looks untrained when it is less than half of
/// what 95% of the tokens have; or, where rows from num_tokens on belong to no token, when it is no longer than the
/// longest of these and they are all shorter than 95% of the tokens. Published base models have such rows for chat
/// tokens. Returns what it saw, or nothing when the row looks trained. 0 <= id < num_tokens <= V.
std::optional<std::string> looks_untrained(const at::Tensor& embedding, std::int64_t id, std::int64_t num_tokens);

}  // namespace lora_train::train
