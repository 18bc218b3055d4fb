#include "lora_train/report/comparison.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "figures.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/config/check.h"
#include "lora_train/config/keys/metric_names.h"

namespace lora_train::report {
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

/// The column that a name stands for. `flag` is in the message about one that there is not.
std::string column_named(const Comparison& comparison, const std::string& flag, const std::string& name) {
  std::vector<std::string> known = column_names(comparison);
  known.emplace_back("reason");
  // A key that does not differ says little, but is no error.
  for (const auto& key : profile_keys()) known.push_back(key);
  if (std::ranges::count(known, name) > 0) return name;
  if (const std::string ours = metric_from(name); std::ranges::count(known, ours) > 0) return ours;
  throw ConfigError(flag, "no column \"" + name + "\"." + did_you_mean(nearest_names(name, known)) +
                              " There are: " + join(column_names(comparison)) + ", and the keys of a profile.");
}

SortKey sort_key(const RunRecord& run, const std::string& column) {
  if (column == "run") return key_of_text(run.name);
  if (column == "folder") return key_of_text(run.folder.string());
  if (column == "status") return key_of_text(run.status);
  if (column == "reason") return key_of_text(run.reason);
  if (const Figure* const figure = find_figure(column)) {
    const auto value = run.figures.*figure->value;
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

void choose_columns(Comparison& comparison, const std::vector<std::string>& names) {
  std::vector<std::string> columns;
  for (const auto& name : names) {
    const std::string column = column_named(comparison, "--columns", trimmed(name));
    if (column != "run" && std::ranges::count(columns, column) == 0) columns.push_back(column);
  }
  comparison.columns = std::move(columns);
}

void sort_runs(Comparison& comparison, const std::string& column) {
  const bool is_descending = column.starts_with('-');
  const std::string name = column_named(comparison, "--sort", column.substr(is_descending ? 1 : 0));
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

}  // namespace lora_train::report
