#include "rates_file.h"

#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/plan/tuning/tuning_store.h"

namespace lora_train::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kKind = "lora-train rates 1";

double positive(const json& object, const char* key, const fs::path& file) {
  const double value = object.at(key).get<double>();
  if (!(value > 0)) throw FormatError(file.string(), std::string(key) + " is not positive; measure again");
  return value;
}

}  // namespace

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
  return folder.empty() ? fs::path() : folder / ("rates-" + plan::name_in_file(gpu) + "-" + precision + ".json");
}

void write_rates(const fs::path& file, const BenchRates& rates) {
  if (!file.parent_path().empty()) make_folders(file.parent_path());
  const json object = {{"kind", kKind},
                       {"gpu", rates.gpu},
                       {"shape", rates.shape},
                       {"precision", rates.precision},
                       {"date", rates.date},
                       {"gemm_flops_per_s", rates.gemm_flops_per_s},
                       {"copy_bytes_per_s", rates.copy_bytes_per_s},
                       {"attention_forward_flops_per_s", rates.attention_forward_flops_per_s},
                       {"attention_backward_flops_per_s", rates.attention_backward_flops_per_s}};
  write_file_atomic(file, object.dump(1) + "\n");
}

BenchRates read_rates(const fs::path& file) {
  try {
    const json object = json::parse(read_file(file));
    if (object.at("kind") != kKind) throw FormatError(file.string(), "is not a file of measured rates");
    BenchRates rates;
    rates.source = file.string();
    rates.gpu = object.at("gpu");
    rates.shape = object.at("shape");
    rates.precision = object.at("precision");
    rates.date = object.at("date");
    rates.gemm_flops_per_s = positive(object, "gemm_flops_per_s", file);
    rates.copy_bytes_per_s = positive(object, "copy_bytes_per_s", file);
    rates.attention_forward_flops_per_s = positive(object, "attention_forward_flops_per_s", file);
    rates.attention_backward_flops_per_s = positive(object, "attention_backward_flops_per_s", file);
    return rates;
  } catch (const json::exception& error) {
    throw FormatError(file.string(), std::string("is not a file of measured rates: ") + error.what() +
                                         ". Delete it, or measure again with bench --measure-rates");
  }
}

BenchRates find_rates(const fs::path& requested, const std::string& gpu, const std::string& precision) {
  if (!requested.empty()) {
    BenchRates rates = read_rates(requested);
    if (rates.precision == precision) return rates;
    throw ConfigError("--rates", requested.string() + " holds rates in " + rates.precision + ", but the step is in " +
                                     precision + "; expected a file of the same precision");
  }
  const fs::path cached = gpu.empty() ? fs::path() : rates_cache_file(gpu, precision);
  if (!cached.empty() && path_kind(cached) != PathKind::kNone) return read_rates(cached);
  return assumed_rates();
}

}  // namespace lora_train::bench
