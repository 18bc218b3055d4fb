#include "measured_rates.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/plan/tuning/tuning.h"

namespace lora_train::bench {
namespace {

constexpr double kMarginOfOneRun = 0.15, kLeastMargin = 0.05;

double median(const std::vector<double>& sorted) {
  const std::size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kKind = "lora-train rates 1";

constexpr std::pair<const char*, std::string BenchRates::*> kTexts[] = {{"gpu", &BenchRates::gpu},
                                                                        {"shape", &BenchRates::shape},
                                                                        {"precision", &BenchRates::precision},
                                                                        {"date", &BenchRates::date}};
constexpr std::pair<const char*, double plan::Rates::*> kRates[] = {
    {"gemm_flops_per_s", &plan::Rates::gemm_flops_per_s},
    {"copy_bytes_per_s", &plan::Rates::copy_bytes_per_s},
    {"attention_forward_flops_per_s", &plan::Rates::attention_forward_flops_per_s},
    {"attention_backward_flops_per_s", &plan::Rates::attention_backward_flops_per_s}};

}  // namespace

std::optional<Calibration> calibration_of(const PastRatios& past, const std::string& gpu, Precision precision) {
  const auto found = past.find({gpu, precision});
  if (found == past.end()) return std::nullopt;
  std::vector<double> ratios = found->second;
  std::ranges::sort(ratios);
  const double middle = median(ratios);
  const double margin = ratios.size() == 1 ? kMarginOfOneRun : kLeastMargin;
  return Calibration{middle, std::min(ratios.front(), (1 - margin) * middle),
                     std::max(ratios.back(), (1 + margin) * middle), static_cast<int>(ratios.size())};
}

BenchRates rates_of(const device::GpuFacts& gpu, const Profile& profile) {
  const std::string precision = to_string(profile.model.precision);
  if (profile.model.precision != Precision::kFp32 || gpu.is_cpu) {
    const BenchRates found = find_rates({}, gpu.device_name, precision);
    if (!found.is_assumed()) return found;
  }
  if (gpu.is_cpu) {
    throw ConfigError("--gpu cpu",
                      "the rates of this CPU in {} are unknown; measure them once with: lora-train bench "
                      "--measure-rates --shape qwen2.5-0.5b device=cpu max_seq_len=2048 micro_batch_size=1 "
                      "precision={}",
                      precision, precision);
  }
  BenchRates rates{plan::rates_in(profile, gpu.gemm_tflops * 1e12, gpu.bandwidth_gb_s * 1e9)};
  rates.gpu = gpu.device_name;
  return rates;
}

BenchRates assumed_rates() {
  BenchRates rates;
  rates.gemm_flops_per_s = 790e12;
  rates.copy_bytes_per_s = 4.3e12;
  rates.attention_forward_flops_per_s = 298e12;
  rates.attention_backward_flops_per_s = 291e12;
  rates.gpu = "NVIDIA H200";
  return rates;
}

fs::path rates_cache_file(const std::string& gpu, const std::string& precision) {
  const fs::path folder = plan::cache_folder();
  return folder.empty() ? fs::path() : folder / (fmt::format("rates-{}-{}.json", plan::name_in_file(gpu), precision));
}

void write_rates(const fs::path& file, const BenchRates& rates) {
  if (!file.parent_path().empty()) make_folders(file.parent_path());
  json object = {{"kind", kKind}};
  for (const auto& [key, text] : kTexts) object[key] = rates.*text;
  for (const auto& [key, rate] : kRates) object[key] = rates.*rate;
  write_file_atomic(file, object.dump(1) + "\n");
}

BenchRates read_rates(const fs::path& file) {
  try {
    const json object = json::parse(read_file(file));
    if (object.at("kind") != kKind) throw FormatError(file.string(), "is not a file of measured rates");
    BenchRates rates;
    rates.source = file.string();
    for (const auto& [key, text] : kTexts) rates.*text = object.at(key);
    for (const auto& [key, rate] : kRates) {
      rates.*rate = object.at(key).get<double>();
      if (!(rates.*rate > 0)) throw FormatError(file.string(), "{} is not positive; measure again", key);
    }
    return rates;
  } catch (const json::exception& error) {
    throw FormatError(file.string(),
                      "is not a file of measured rates: {}. Delete it, or measure again with bench --measure-rates",
                      error.what());
  }
}

BenchRates find_rates(const fs::path& requested, const std::string& gpu, const std::string& precision) {
  if (!requested.empty()) {
    BenchRates rates = read_rates(requested);
    if (rates.precision == precision) return rates;
    throw ConfigError("--rates", "{} has rates in {}, but the step is in {}; expected a file of the same precision",
                      requested.string(), rates.precision, precision);
  }
  const fs::path cached = gpu.empty() ? fs::path() : rates_cache_file(gpu, precision);
  if (!cached.empty() && path_kind(cached) != PathKind::kNone) return read_rates(cached);
  return assumed_rates();
}

}  // namespace lora_train::bench
