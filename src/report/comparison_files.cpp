#include <algorithm>

#include "figures.h"
#include "lora_train/base/visible_text.h"
#include "lora_train/config/value/scalar.h"
#include "lora_train/report/comparison.h"
#include "times_json.h"

namespace lora_train::report {
namespace {

using Json = nlohmann::ordered_json;

/// A spreadsheet would compute a text that begins like a formula.
bool is_formula(const std::string& text) {
  return !text.empty() && std::string_view("=+-@").find(text.front()) != std::string_view::npos && !parse_number(text);
}

std::string csv_field(const std::string& raw) {
  const std::string text = (is_formula(raw) ? "'" : "") + visible_text(raw);  // a terminal may show the file
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

std::string csv_line(const std::vector<std::string>& fields) {
  std::string line;
  for (const auto& field : fields) line += (&field == &fields.front() ? "" : ",") + csv_field(field);
  return line + "\n";
}

/// Of CSV and JSON, behind run, folder and status.
std::vector<std::string> file_columns(const Comparison& comparison) {
  std::vector<std::string> names = comparison.columns;
  std::erase_if(names, [](const std::string& name) { return name == "folder" || name == "status"; });
  if (!comparison.columns.empty()) return names;
  names = comparison.differing;
  for (const auto& figure : figures()) names.emplace_back(figure.name);
  names.emplace_back("reason");
  return names;
}

std::string field_text(const RunRecord& run, const std::string& name) {
  if (name == "run") return run.name;
  if (name == "folder") return run.folder.string();
  if (name == "status") return run.status;
  if (name == "reason") return run.reason;
  const Figure* const figure = find_figure(name);
  if (figure == nullptr) return profile_text(run, name);
  const auto value = run.figures.*figure->value;
  return value ? whole_or_number(*value).dump() : "";
}

}  // namespace

bool is_comparison_csv(std::string_view start) { return start.starts_with("run,folder,status,"); }

std::string comparison_csv(const Comparison& comparison) {
  std::vector<std::string> names = {"run", "folder", "status"};
  for (const auto& name : file_columns(comparison)) names.push_back(name);
  std::string text = csv_line(names);
  for (const auto& run : comparison.runs) {
    std::vector<std::string> fields;
    for (const auto& name : names) fields.push_back(field_text(run, name));
    text += csv_line(fields);
  }
  return text;
}

std::string comparison_json(const Comparison& comparison) {
  std::string text;
  for (const auto& run : comparison.runs) {
    Json object = {
        {"run", run.name}, {"folder", run.folder.string()}, {"status", run.status}, {"reason", or_null(run.reason)}};
    object["profile"] = Json::object();
    const std::vector<std::string> columns = file_columns(comparison);
    for (const auto& [key, value] : run.profile) {
      if (std::ranges::count(columns, key) > 0) object["profile"][key] = Json::parse(value, nullptr, false);
    }
    for (const auto& name : columns) {
      const Figure* const figure = find_figure(name);
      if (figure == nullptr) continue;
      const auto value = run.figures.*figure->value;
      object[name] = value ? whole_or_number(*value) : Json(nullptr);
    }
    if (!comparison.columns.empty()) {
      text += to_line(object) + "\n";
      continue;
    }
    const auto difference = difference_to_baseline(comparison, run);
    object["eval_loss_difference"] =
        difference ? Json::parse(to_json(*difference, comparison.baseline)) : Json(nullptr);
    object["phases_s"] = run.phases_s.empty() ? Json(nullptr) : to_object(run.phases_s);
    text += to_line(object) + "\n";
  }
  return text;
}

}  // namespace lora_train::report
