#include "untrained_row.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>

namespace lora_train::run {
namespace {

constexpr std::int64_t kMaxSamples = 4096;
constexpr std::int64_t kFewestSpareRows = 8;  // fewer say nothing

at::Tensor norms_of(const at::Tensor& rows) { return at::norm(rows.to(at::kFloat), 2, {1}); }

}  // namespace

std::optional<std::string> looks_untrained(const at::Tensor& embedding, std::int64_t id, std::int64_t num_tokens) {
  const std::int64_t step = std::max<std::int64_t>(1, num_tokens / kMaxSamples);
  const at::Tensor sorted = std::get<0>(norms_of(embedding.slice(0, 0, num_tokens, step)).sort());
  const double usual = sorted[sorted.numel() / 20].item<double>();
  const double norm = norms_of(embedding.slice(0, id, id + 1)).item<double>();
  const std::int64_t num_spare = embedding.size(0) - num_tokens;
  char text[200];
  if (num_spare >= kFewestSpareRows) {
    const double longest_spare = norms_of(embedding.slice(0, num_tokens)).max().item<double>();
    if (longest_spare < usual && norm <= longest_spare) {
      std::snprintf(
          text, sizeof text,
          "length %.3g, as the %lld rows that no token uses (at most %.3g; 95%% of the tokens have more than %.3g)",
          norm, static_cast<long long>(num_spare), longest_spare, usual);
      return text;
    }
  }
  if (norm < usual / 2) {
    std::snprintf(text, sizeof text, "length %.3g, where 95%% of the tokens have more than %.3g", norm, usual);
    return text;
  }
  return std::nullopt;
}

}  // namespace lora_train::run
