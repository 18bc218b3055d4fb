#include "lora_train/device/gpu_table.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"

namespace lora_train::device {
namespace {

using nlohmann::json;

constexpr double kLargest = 1e9;

constexpr const char *kMultiprocessors = "num_multiprocessors", *kPrice = "price_per_hour";
constexpr std::pair<std::string_view, std::string GpuFacts::*> kTexts[] = {{"name", &GpuFacts::name},
                                                                           {"device_name", &GpuFacts::device_name}};
constexpr std::pair<std::string_view, double GpuFacts::*> kNumbers[] = {{"memory_gib", &GpuFacts::memory_gib},
                                                                        {"gemm_tflops", &GpuFacts::gemm_tflops},
                                                                        {"bandwidth_gb_s", &GpuFacts::bandwidth_gb_s},
                                                                        {"link_gb_s", &GpuFacts::link_gb_s},
                                                                        {kPrice, &GpuFacts::price_per_hour}};

/// Refuses unknown members.
GpuFacts read_entry(const json& object, const std::string& where) {
  if (!object.is_object()) throw FormatError(where, "is not an object");
  const auto member = [&](std::string_view key) -> const json& {
    const auto found = object.find(key);
    if (found == object.end()) throw FormatError(where, "{}: missing", key);
    return *found;
  };
  const auto number = [&](std::string_view key) {
    const json& value = member(key);
    const double found = value.is_number() ? value.get<double>() : -1;
    const bool may_be_zero = key == kPrice;
    if (!(found > 0 || (may_be_zero && found == 0)) || found > kLargest)
      throw FormatError(where, "{}: is {}, expected a number {}", key,
                        value.dump(-1, ' ', false, json::error_handler_t::replace), may_be_zero ? "from 0" : "above 0");
    return found;
  };
  GpuFacts gpu;
  for (const auto& [key, text] : kTexts) {
    const json& value = member(key);
    if (!value.is_string() || value.get_ref<const std::string&>().empty())
      throw FormatError(where, "{}: expected text", key);
    gpu.*text = value;
  }
  for (const auto& [key, figure] : kNumbers) gpu.*figure = number(key);
  gpu.num_multiprocessors = static_cast<int>(std::lround(number(kMultiprocessors)));
  for (const auto& [key, value] : object.items()) {
    const auto is_key = [&name = key](const auto& row) { return row.first == name; };
    if (key != kMultiprocessors && std::ranges::none_of(kTexts, is_key) && std::ranges::none_of(kNumbers, is_key))
      throw FormatError(where, "unknown member \"{}\"", key);
  }
  return gpu;
}

/// "a100" and 40 of "NVIDIA A100-SXM4-40GB".
struct SpokenName {
  std::string model;
  double memory_gb = 0;  ///< 0 if not given
};

SpokenName spoken_name(const std::string& name) {
  constexpr std::array kMakers = {"nvidia", "geforce", "tesla", "rtx"};
  constexpr std::array kForms = {"gb", "gib", "sxm", "sxm4", "sxm5", "hbm2", "hbm2e", "hbm3", "hbm3e"};
  SpokenName spoken;
  std::string word;
  const auto end_word = [&] {
    const std::size_t digits = std::min(word.find_first_not_of("0123456789"), word.size());
    const std::string unit = word.substr(digits);
    const bool is_size = digits > 0 && digits < 4 && (unit.empty() || unit == "g" || unit == "gb" || unit == "gib");
    if (is_size && !spoken.model.empty()) {
      spoken.memory_gb = std::stod(word.substr(0, digits));
    } else if (std::ranges::count(kForms, word) == 0) {
      for (const std::string maker : kMakers) {
        if (word.starts_with(maker)) word.erase(0, maker.size());
      }
      spoken.model += word;
    }
    word.clear();
  };
  for (const char c : lower_case(name)) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      word += c;
    } else {
      end_word();
    }
  }
  end_word();
  return spoken;
}

/// A GPU sold with 80 GB has 79.3 GiB.
bool has_memory(const GpuFacts& gpu, const SpokenName& spoken) {
  constexpr double kMostMissing = 1.12;
  return spoken.memory_gb == 0 ||
         (spoken.memory_gb >= std::floor(gpu.memory_gib) && spoken.memory_gb <= kMostMissing * gpu.memory_gib);
}

std::vector<std::string> names_of(const std::vector<GpuFacts>& table) {
  std::vector<std::string> names;
  for (const GpuFacts& gpu : table) names.push_back(gpu.name);
  return names;
}

}  // namespace

std::vector<GpuFacts> read_gpu_table(const std::filesystem::path& file) {
  json list;
  try {
    list = json::parse(read_file(file));
  } catch (const json::exception& error) {
    throw FormatError(file.string(), std::string("is not valid JSON: ") + error.what());
  }
  if (!list.is_array() || list.empty()) throw FormatError(file.string(), "expected a list of GPUs, [{\"name\": ...}]");
  std::vector<GpuFacts> table;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string where = fmt::format("{}: GPU {}", file.string(), i + 1);
    const GpuFacts gpu = read_entry(list[i], where);
    if (std::ranges::count(table, gpu.name, &GpuFacts::name) > 0)
      throw FormatError(where, "duplicate name \"{}\"", gpu.name);
    table.push_back(gpu);
  }
  return table;
}

std::vector<GpuFacts> find_gpus(const std::vector<GpuFacts>& table, const std::string& name) {
  const std::string lower = lower_case(name);
  for (const GpuFacts& gpu : table) {
    if (lower_case(gpu.name) == lower || lower_case(gpu.device_name) == lower) return {gpu};
  }
  const SpokenName wanted = spoken_name(name);
  std::vector<GpuFacts> found;
  for (const GpuFacts& gpu : table) {
    if (!wanted.model.empty() && spoken_name(gpu.name).model == wanted.model && has_memory(gpu, wanted))
      found.push_back(gpu);
  }
  return found;
}

std::string why_not_one_gpu(const std::vector<GpuFacts>& table, const std::string& name) {
  const std::vector<GpuFacts> found = find_gpus(table, name);
  if (found.size() == 1) return {};
  if (found.size() > 1) return "\"" + name + "\" may be " + join(names_of(found), " or ") + "; expected one of them.";
  return fmt::format("\"{}\" is not a GPU of configs/gpus.json; expected one of {}.{}", name, join(names_of(table)),
                     did_you_mean(name, names_of(table)));
}

std::vector<GpuFacts> merge_gpu_tables(std::vector<GpuFacts> table, const std::vector<GpuFacts>& more) {
  for (const GpuFacts& gpu : more) {
    const auto old = std::ranges::find(table, gpu.name, &GpuFacts::name);
    if (old == table.end()) {
      table.push_back(gpu);
    } else {
      *old = gpu;
    }
  }
  return table;
}

}  // namespace lora_train::device
