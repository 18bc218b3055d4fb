#include "generation_speed.h"

#include <algorithm>

#include "lora_train/base/text.h"

namespace lora_train::cli {
namespace {

/// "in 0.52 s (241.3 tok/s)"
std::string rate(std::int64_t tokens, double seconds) {
  return string_printf("in %.2f s (%.1f tok/s)", seconds, static_cast<double>(tokens) / std::max(seconds, 1e-9));
}

}  // namespace

std::string describe(const evaluate::GenerateTotals& totals) {
  std::string text = format_count(totals.prompt_tokens) + " prompt tokens " +
                     rate(totals.prompt_tokens, totals.prompt_s) + "; " + format_count(totals.new_tokens) +
                     " new tokens";
  if (totals.decoded_tokens == 0) return text;
  return text + "; decoding, without the first of each answer: " + format_count(totals.decoded_tokens) + " " +
         rate(totals.decoded_tokens, totals.decode_s);
}

}  // namespace lora_train::cli
