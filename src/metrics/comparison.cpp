#include "lora_train/metrics/comparison.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "figures.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/config/check.h"

namespace lora_train::metrics {
namespace {

using Json = nlohmann::ordered_json;

const std::string* find_setting(const RunRecord& run, const std::string& key) {
  for (const auto& [name, value] : run.profile) {
    if (name == key) return &value;
  }
  return nullptr;
}

void make_names_unique(std::vector<RunRecord>& runs) {
  std::map<std::string, int> counts;
  for (const auto& run : runs) ++counts[run.name];
  for (auto& run : runs) {
    if (counts[run.name] > 1) run.name = run.folder.lexically_normal().string();
  }
}

std::vector<std::string> differing_keys(const std::vector<RunRecord>& runs) {
  std::vector<std::string> keys;
  for (const auto& key : profile_keys()) {
    if (key == "output_dir" || key == "run_name") continue;
    std::set<std::string> values;
    for (const auto& run : runs) {
      if (const std::string* value = find_setting(run, key)) values.insert(*value);
    }
    if (values.size() > 1) keys.push_back(key);
  }
  return keys;
}

/// The value that a run is sorted by.
struct SortKey {
  bool is_known = false, is_number = false;
  double number = 0;
  std::string text = {};
};

SortKey key_of_text(std::string text) { return {!text.empty(), false, 0, std::move(text)}; }

SortKey sort_key(const RunRecord& run, const std::string& column) {
  if (column == "run") return key_of_text(run.name);
  if (column == "folder") return key_of_text(run.folder.string());
  if (column == "status") return key_of_text(run.status);
  for (const auto& figure : figures()) {
    if (column != figure.name) continue;
    const auto value = run.figures.*figure.value;
    return {value.has_value(), true, value.value_or(0)};
  }
  const std::string* setting = find_setting(run, column);
  const Json value = setting ? Json::parse(*setting, nullptr, false) : Json();
  if (value.is_null()) return {};
  if (value.is_number()) return {true, true, value.get<double>()};
  return key_of_text(profile_text(run, column));
}

bool is_before(const SortKey& a, const SortKey& b) {
  if (a.is_number != b.is_number) return a.is_number;
  return a.is_number ? a.number < b.number : a.text < b.text;
}

}  // namespace

Comparison compare_runs(const std::vector<std::filesystem::path>& folders) {
  Comparison comparison;
  for (const auto& folder : folders) comparison.runs.push_back(read_run(folder));
  make_names_unique(comparison.runs);
  comparison.differing = differing_keys(comparison.runs);
  if (!comparison.runs.empty()) comparison.baseline = comparison.runs.front().folder.string();
  return comparison;
}

std::optional<LossDifference> difference_to_baseline(const Comparison& comparison, const RunRecord& run) {
  const auto base = std::find_if(comparison.runs.begin(), comparison.runs.end(),
                                 [&](const RunRecord& other) { return other.folder == comparison.baseline; });
  if (base == comparison.runs.end() || &*base == &run) return std::nullopt;
  return difference_of(base->document_losses, run.document_losses);
}

std::vector<std::string> column_names(const Comparison& comparison) {
  std::vector<std::string> names = {"run", "folder", "status"};
  names.insert(names.end(), comparison.differing.begin(), comparison.differing.end());
  for (const auto& figure : figures()) names.emplace_back(figure.name);
  return names;
}

void sort_runs(Comparison& comparison, const std::string& column) {
  const bool is_descending = column.starts_with('-');
  const std::string name = column.substr(is_descending ? 1 : 0);
  std::vector<std::string> known = column_names(comparison);
  // Sorting by a key that does not differ changes nothing, but is not an error.
  for (const auto& key : profile_keys()) known.push_back(key);
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    const std::string nearest = nearest_name(name, known);
    throw ConfigError("--sort", "no column \"" + name + "\"." +
                                    (nearest.empty() ? "" : " Did you mean \"" + nearest + "\"?") +
                                    " There are: " + join(column_names(comparison)) + ".");
  }
  std::vector<std::pair<SortKey, std::size_t>> order;
  for (std::size_t i = 0; i < comparison.runs.size(); ++i) order.emplace_back(sort_key(comparison.runs[i], name), i);
  std::stable_sort(order.begin(), order.end(), [&](const auto& a, const auto& b) {
    if (a.first.is_known != b.first.is_known) return a.first.is_known;
    if (!a.first.is_known) return false;
    return is_descending ? is_before(b.first, a.first) : is_before(a.first, b.first);
  });
  std::vector<RunRecord> sorted;
  for (const auto& entry : order) sorted.push_back(std::move(comparison.runs[entry.second]));
  comparison.runs = std::move(sorted);
}

std::string profile_text(const RunRecord& run, const std::string& key) {
  const std::string* setting = find_setting(run, key);
  if (!setting) return "";
  const Json value = Json::parse(*setting, nullptr, false);
  if (value.is_string()) return value.get<std::string>();
  return value.is_null() ? "none" : *setting;
}

}  // namespace lora_train::metrics
