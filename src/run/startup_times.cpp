#include "lora_train/run/startup_times.h"

#include <algorithm>
#include <cstdio>

namespace lora_train::run {
namespace {

std::string one_digit(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", seconds);
  return text;
}

}  // namespace

void StartupTimes::add(const std::string& phase, double seconds) {
  const auto found = std::ranges::find(phases_, phase, &std::pair<std::string, double>::first);
  if (found == phases_.end()) {
    phases_.emplace_back(phase, seconds);
  } else {
    found->second += seconds;
  }
}

double StartupTimes::total_s() const {
  double sum = 0;
  for (const auto& [phase, seconds] : phases_) sum += seconds;
  return sum;
}

std::string StartupTimes::in_words() const {
  std::string words;
  for (const auto& [phase, seconds] : phases_) words += (words.empty() ? "" : ", ") + phase + " " + one_digit(seconds);
  return one_digit(total_s()) + " s (" + words + ")";
}

}  // namespace lora_train::run
