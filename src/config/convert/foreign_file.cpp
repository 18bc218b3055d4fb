#include "foreign_file.h"

#include <algorithm>

#include "keys/field.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/shell_line.h"
#include "lora_train/base/text.h"
#include "merge.h"
#include "value/parse_yaml.h"

namespace lora_train {
namespace {

constexpr ForeignTool kAllTools[] = {ForeignTool::kAxolotl, ForeignTool::kLlamaFactory, ForeignTool::kTrl};

bool is_key_of(ForeignTool tool, const std::string& name) {
  return std::ranges::binary_search(foreign_keys_of(tool), name);
}

/// The first of `keys` that has a text; else `otherwise`.
std::string text_of(const Value& source, const std::vector<const char*>& keys, const std::string& otherwise) {
  for (const char* key : keys) {
    const Value* value = source.is_map() ? source.find(key) : nullptr;
    if (value && value->is_scalar() && !value->text.empty()) return value->text;
  }
  return otherwise;
}

std::string model_in(const Value& source) {
  return text_of(source, {"model_name_or_path", "base_model", "model"}, "MODEL");
}

/// A file that trains names the folder in which its adapter will be.
std::string adapter_in(const Value& source) {
  return text_of(source, {"adapter_name_or_path", "lora_model_dir", "output_dir"}, "ADAPTER");
}

/// Whether most names are the tool's and none of ours: a profile may have one or two of them by mistake.
bool is_mostly_of(ForeignTool tool, const Value& source) {
  constexpr int kLeast = 3;
  int theirs = 0, ours = 0;
  for (const auto& [name, value] : source.members) {
    const bool is_field = find_field(name) != nullptr, is_theirs = is_key_of(tool, name);
    theirs += is_theirs && !is_field;
    ours += is_field && !is_theirs;
  }
  return theirs >= kLeast && theirs > ours;
}

bool is_accepted(const Value& source) {
  Mistakes mistakes;
  Findings findings(mistakes);
  Merger(findings).add_layer(source);
  return !mistakes.has_any();
}

}  // namespace

std::string product_name(ForeignTool tool) {
  const std::string title = title_of(tool);
  return title.substr(0, title.rfind(' '));
}

std::vector<std::string> evidence_for(ForeignTool tool, const Value& source) {
  std::vector<std::string> found;
  for (const auto& member : source.members) {
    const bool is_only_there = std::ranges::all_of(
        kAllTools, [&](ForeignTool each) { return is_key_of(each, member.name) == (each == tool); });
    if (is_only_there) found.push_back(member.name);
  }
  return found;
}

std::vector<std::pair<ForeignTool, std::vector<std::string>>> possible_tools(const Value& source) {
  std::vector<std::pair<ForeignTool, std::vector<std::string>>> found;
  for (const ForeignTool tool : kAllTools) {
    if (auto evidence = evidence_for(tool, source); !evidence.empty()) found.emplace_back(tool, std::move(evidence));
  }
  std::ranges::stable_sort(found, [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  return found;
}

bool is_export(const Value& source) {
  const auto has = [&](const char* key) {
    const Value* value = source.find(key);
    return value && !value->is_null();
  };
  return has("export_dir") && !has("stage") && !has("dataset") && !has("eval_dataset");
}

std::string merge_line(const Value& source) {
  const std::string run = text_of(source, {"output_dir"}, "");
  const std::string output = text_of(source, {"export_dir"}, run.empty() ? "MERGED" : run + "-merged");
  return shell_line(
      {"lora-train", "merge", "--model", model_in(source), "--adapter", adapter_in(source), "--output-dir", output});
}

std::string merge_line(const std::filesystem::path& file) {
  try {
    return merge_line(parse_yaml(read_file(file), {file.string(), 0}));
  } catch (const Error&) {  // it is not there, or no YAML
    return merge_line(null_value());
  }
}

std::optional<std::string> instead_of_file(const Value& source) {
  constexpr std::size_t kShown = 4;
  if (!source.is_map()) return std::nullopt;
  auto tools = possible_tools(source);
  if (tools.empty() || !is_mostly_of(tools.front().first, source)) return std::nullopt;
  auto& [tool, evidence] = tools.front();
  if (evidence.size() > kShown) evidence.resize(kShown);
  const std::string what = "is a file of " + product_name(tool) + " (" + join(evidence) + ")";
  if (is_export(source)) {
    return what + " that trains nothing. To merge: " + merge_line(source) + "; to talk to it: " +
           shell_line({"lora-train", "chat", "--model", model_in(source), "--adapter", adapter_in(source)}) + ".";
  }
  if (is_accepted(source)) return std::nullopt;
  const std::string& file = source.place.file;
  return what + ", not a profile. Make one of it: " +
         shell_line({"lora-train", "convert", file, "--output", file == "my.yaml" ? "profile.yaml" : "my.yaml"}) + ".";
}

}  // namespace lora_train
