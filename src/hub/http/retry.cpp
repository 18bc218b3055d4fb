#include "retry.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "lora_train/base/text.h"
#include "lora_train/hub/http/client.h"

namespace lora_train::hub {
namespace {

constexpr double kLongestDelayS = 30;

}  // namespace

int ClientOptions::retries_of_environment() {
  const char* text = std::getenv("LORA_TRAIN_HTTP_RETRIES");
  if (text == nullptr || *text == '\0') return 5;
  const auto number = whole_number<int>(text);
  if (!number || *number < 0 || *number > 100)
    throw ConfigError("LORA_TRAIN_HTTP_RETRIES", "got {}, expected a number from 0 to 100.", text);
  return *number;
}

bool is_transient(int status) {
  return status == 408 || status == 429 || (status >= 500 && status < 600 && status != 501 && status != 505);
}

double retry_delay(int number, double first_s, double random) {
  const double longest = std::min(first_s * std::exp2(std::min(number, 30)), kLongestDelayS);
  return longest * (0.5 + 0.5 * random);
}

std::optional<double> parse_retry_after(std::string_view text, std::time_t now) {
  const std::string value = trimmed(text);
  if (const auto seconds = whole_number<std::uint64_t>(value)) return static_cast<double>(*seconds);
  std::tm time{};
  const char* const end = ::strptime(value.c_str(), "%a, %d %b %Y %H:%M:%S GMT", &time);
  if (end == nullptr || *end != '\0') return std::nullopt;
  return std::max(0.0, std::difftime(::timegm(&time), now));
}

std::optional<std::uint64_t> content_range_begin(std::string_view text) {
  constexpr std::string_view kUnit = "bytes ";
  const std::string value = trimmed(text);
  const auto dash = value.find('-');
  if (!value.starts_with(kUnit) || dash == std::string::npos) return std::nullopt;
  return whole_number<std::uint64_t>(std::string_view(value).substr(kUnit.size(), dash - kUnit.size()));
}

std::string Answer::header(std::string_view name) const {
  const std::string wanted = lower_case(std::string(name));
  for (const Header& header : headers) {
    if (lower_case(header.name) == wanted) return header.value;
  }
  return {};
}

}  // namespace lora_train::hub
