#include "lora_train/report/run_times.h"

#include <algorithm>
#include <ctime>
#include <fstream>
#include <iterator>
#include <numeric>

#include "json_fields.h"
#include "lora_train/base/text.h"

namespace lora_train::report {
namespace {

std::optional<double> sum(const std::optional<double>& one, const std::optional<double>& other) {
  return one && other ? std::optional(*one + *other) : std::nullopt;
}

constexpr std::array<const char*, kNumPhases> kPhaseNames = {"data",     "load", "tune",   "train",
                                                             "evaluate", "save", "result", "other"};

}  // namespace

std::optional<double> Usage::mean_gpu_utilization() const {
  return gpu_watched_s > 0 ? std::optional(100 * gpu_busy_s / gpu_watched_s) : std::nullopt;
}

Usage operator+(const Usage& one, const Usage& other) {
  return {sum(one.cpu_s, other.cpu_s), sum(one.energy_wh, other.energy_wh), one.gpu_watched_s + other.gpu_watched_s,
          one.gpu_busy_s + other.gpu_busy_s};
}

Usage process_usage() {
  timespec time{};
  if (::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) != 0) return {};
  return {.cpu_s = static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec)};
}

const char* name_of(Phase phase) { return kPhaseNames[static_cast<std::size_t>(phase)]; }

double RunTimes::wall_s() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

NamedSeconds RunTimes::named() const {
  NamedSeconds phases;
  for (std::size_t i = 0; i < kNumPhases; ++i) phases.emplace_back(kPhaseNames[i], seconds[i]);
  return phases;
}

RunTimes RunTimes::of(const NamedSeconds& phases, std::optional<double> cost_usd, const Usage& usage) {
  RunTimes times{.cost_usd = cost_usd, .usage = usage};
  for (const auto& [name, seconds] : phases) {
    const auto found = std::ranges::find(kPhaseNames, name);
    if (found != kPhaseNames.end()) times.seconds[static_cast<std::size_t>(found - kPhaseNames.begin())] = seconds;
  }
  return times;
}

std::string format_dollars(double amount) {
  if (amount > 0 && amount < 0.1) return fmt::format("${:.4f}", amount);
  return fmt::format("${:.{}f}", amount, amount < 100 ? 2 : 0);
}

std::string Price::in_words() const {
  return (num_gpus > 1 ? fmt::format("{} x ", num_gpus) : "") + format_dollars(of_gpu) + " an hour (" + source + ")";
}

void RunClock::add(Phase phase, double seconds) {
  const double now = elapsed_s();
  here_[phase] += seconds;
  if (!spans_.empty() && spans_.back().phase == phase) {
    spans_.back().to_s = now;
  } else {
    spans_.push_back({phase, std::max(0.0, now - seconds), now});
  }
}

void RunClock::stop() {
  stopped_s_ = elapsed_s();
  usage_ = [usage = usage_()] { return usage; };
}

double RunClock::elapsed_s() const {
  return stopped_s_.value_or(std::chrono::duration<double>(Clock::now() - start_).count());
}

RunTimes RunClock::total() const {
  const double elapsed = elapsed_s();
  RunTimes times = earlier_;
  for (std::size_t i = 0; i < kNumPhases; ++i) times.seconds[i] += here_.seconds[i];
  times[Phase::kOther] += std::max(0.0, elapsed - here_.wall_s());
  times.usage = earlier_.wall_s() > 0 ? earlier_.usage + usage_() : usage_();
  if (price_) {
    const double per_second = price_->per_hour() / 3600;
    times.cost_usd = earlier_.cost_usd.value_or(earlier_.wall_s() * per_second) + elapsed * per_second;
  }
  return times;
}

std::optional<RunTimes> logged_times(const std::filesystem::path& metrics_file, long long step) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(metrics_file, ignored)) return std::nullopt;
  std::ifstream file(metrics_file, std::ios::binary);
  std::optional<RunTimes> last;
  for (std::string line; std::getline(file, line);) {
    const auto object = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object() || whole_number_of(object, "step").value_or(step + 1) > step) continue;
    if (text_of(object, "event") != "end") continue;  // for a killed process, the start does not count either
    if (const auto times = times_of(object)) last = times;
  }
  return last;
}

}  // namespace lora_train::report
