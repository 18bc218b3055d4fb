// Finds the tool of a file or a key, and what to say about it; converts files; handles the header of a converted one.
#include "lora_train/convert/convert.h"

#include <algorithm>

#include "converter.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/hash.h"
#include "lora_train/base/text.h"
#include "lora_train/config/value/value.h"
#include "tool_keys.h"

namespace lora_train {
namespace {

constexpr const char* kMadeBy = "# Made by lora-train convert from ";
constexpr const char* kHash = "# Hash of the rest, by which convert knows a file that was edited: ";

std::string short_hash(std::string_view body) { return hash128_hex(body).substr(0, 16); }

/// The first of `keys` that has a text; else `otherwise`.
std::string text_of(const Value& source, const std::vector<const char*>& keys, const std::string& otherwise) {
  for (const char* key : keys) {
    if (const std::string text = source.text_of(key); !text.empty()) return text;
  }
  return otherwise;
}

bool has_value(const Value& source, const char* key) {
  const Value* value = source.find(key);
  return value && !value->is_null();
}

bool has_any(const Value& source, const std::vector<const char*>& keys) {
  return std::ranges::any_of(keys, [&](const char* key) { return has_value(source, key); });
}

bool is_true(const Value& source, const char* key) { return parse_bool(source.text_of(key)) == true; }

/// The keys of `source` that only `tool` has.
std::vector<std::string> evidence_for(const Tool& tool, const Value& source) {
  std::vector<std::string> found;
  for (const auto& member : source.members) {
    const auto has_key = [&](const Tool& each) { return each.find(member.name) != nullptr; };
    if (has_key(tool) && std::ranges::count_if(all_tools(), has_key) == 1) found.push_back(member.name);
  }
  return found;
}

/// The tools that have keys of their own in `source`, with these keys; the tool with most keys first.
std::vector<std::pair<const Tool*, std::vector<std::string>>> possible_tools(const Value& source) {
  std::vector<std::pair<const Tool*, std::vector<std::string>>> found;
  for (const Tool& tool : all_tools()) {
    if (auto evidence = evidence_for(tool, source); !evidence.empty()) found.emplace_back(&tool, std::move(evidence));
  }
  std::ranges::stable_sort(found, [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  return found;
}

/// `lora-train merge ...` with the folders that `source` names: one line for each adapter, as LLaMA-Factory merges
/// them. A file that trains names the folder in which its adapter will be.
std::string merge_line(const Value& source) {
  const Value* const given = source.find("adapter_name_or_path");
  std::vector<std::string> adapters = given ? names_in(*given) : std::vector<std::string>{};
  if (adapters.empty()) adapters = {text_of(source, {"lora_model_dir", "init_adapter", "output_dir"}, "ADAPTER")};
  const std::string run = text_of(source, {"output_dir"}, "");
  const std::string output = text_of(source, {"export_dir"}, run.empty() ? "MERGED" : run + "-merged");
  std::string lines, model = text_of(source, {"model_name_or_path", "base_model", "model"}, "MODEL");
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    const std::string folder = output + (i + 1 == adapters.size() ? "" : fmt::format("-{}", i + 1));
    lines += (i > 0 ? " && " : "") +
             shell_line({"lora-train", "merge", "--model", model, "--adapter", adapters[i], "--output-dir", folder});
    model = folder;
  }
  return lines;
}

/// For a LLaMA-Factory file that exports a model, answers with it or writes predictions: what to run instead. nullopt:
/// it trains.
std::optional<std::string> instead_of_training(const Value& source) {
  if (has_any(source, {"dataset"}) || is_true(source, "do_train")) return std::nullopt;
  if (!is_true(source, "do_predict")) {
    if (has_any(source, {"stage", "eval_dataset"})) return std::nullopt;
    const bool is_run = has_any(source, {"output_dir", "learning_rate", "num_train_epochs", "max_steps", "cutoff_len",
                                         "per_device_train_batch_size", "lora_rank", "lora_target"});
    const bool answers = has_value(source, "template") && has_any(source, {"infer_backend", "adapter_name_or_path"});
    if (!has_value(source, "export_dir") && (is_run || !answers)) return std::nullopt;
  }
  return fmt::format(
      "trains nothing. To answer, use lora-train chat, generate or eval with --model and --adapter; to merge: {}.",
      merge_line(source));
}

/// Names that only a Python script's own configuration has (PEFT's and transformers' arguments), as a list; empty if
/// there are none, or if a tool's own name for the model is there too.
std::string script_keys(const Value& source) {
  std::vector<std::string> found;
  if (source.find("base_model") || source.find("model_name_or_path")) return {};
  for (const char* key : {"r", "target_modules", "modules_to_save", "bias", "task_type", "train_dataset", "peft_config",
                          "lora_config", "training_args", "training_arguments", "sft_config"}) {
    if (source.find(key)) found.emplace_back(key);
  }
  return join(found);
}

/// True if it is a lora-train profile: it names its model as only a profile does, or extends one.
bool is_profile(const Value& source) {
  const bool is_named = source.find("model") || source.find("extends");
  return is_named && !source.find("base_model") && !source.find("model_name_or_path") && script_keys(source).empty();
}

[[noreturn]] void ask(const std::filesystem::path& file, const std::string& what) {
  throw ConfigError(file.string(),
                    what + " Which tool is it from? Pass --from axolotl, --from llamafactory or --from trl.");
}

/// The tool whose own keys are in `source`, and some of them.
std::pair<ForeignTool, std::string> recognise(const std::filesystem::path& file, const Value& source) {
  constexpr std::size_t kShown = 4;
  auto found = possible_tools(source);
  if (found.empty()) ask(file, "no key of this file belongs to only one tool.");
  if (found.size() > 1 && found[1].second.size() * 3 > found[0].second.size()) {
    for (auto& [tool, evidence] : found) evidence.resize(std::min(evidence.size(), kShown));
    ask(file, fmt::format("has keys of {} ({}) and of {} ({}).", title_of(found[0].first->id), join(found[0].second),
                          title_of(found[1].first->id), join(found[1].second)));
  }
  auto& [tool, evidence] = found.front();
  evidence.resize(std::min(evidence.size(), kShown));
  return {tool->id, join(evidence)};
}

/// Sets a value as the tool's own command line does: `learning_rate=1e-4`, `datasets[0].path=x`.
void set_in_source(Value& source, const Override& setting) {
  const auto steps = parse_setting_path(setting.path);
  if (!steps)
    throw ConfigError(setting.where, "is not a place in a file. Expected key=value, key.name=v or key[0].name=v.");
  const Value value = parse_yaml(setting.value, {setting.where, 0});
  const std::string problem = set_at(source, *steps, 0, value);
  if (!problem.empty()) throw ConfigError(setting.where, problem);
}

}  // namespace

std::string title_of(ForeignTool tool) { return fmt::format("{} {}", tool_of(tool).product, tool_of(tool).version); }

std::string with_conversion_header(const std::filesystem::path& source, const Tool& tool, const std::string& body) {
  return fmt::format("{}{} ({}).\n{}{}\n{}", kMadeBy, source.filename().string(), tool.product, kHash, short_hash(body),
                     body);
}

ConvertedFile kind_of_converted(std::string_view text) {
  if (!text.starts_with(kMadeBy)) return ConvertedFile::kForeign;
  const std::size_t hash = text.find('\n') + 1;  // of npos: 0, where there is no hash
  if (!text.substr(hash).starts_with(kHash)) return ConvertedFile::kEdited;
  const std::size_t body = text.find('\n', hash);
  if (body == text.npos) return ConvertedFile::kEdited;
  const std::size_t digits = hash + std::string_view(kHash).size();
  return text.substr(digits, body - digits) == short_hash(text.substr(body + 1)) ? ConvertedFile::kUnedited
                                                                                 : ConvertedFile::kEdited;
}

std::string source_of_converted(std::string_view text) {
  const std::string_view header = text.substr(0, text.find('\n'));
  const std::size_t end = header.rfind(" (");
  if (!header.starts_with(kMadeBy) || end == header.npos) return {};
  const std::size_t begin = std::string_view(kMadeBy).size();
  return std::string(header.substr(begin, end - begin));
}

Conversion convert_profile(const std::filesystem::path& file, std::optional<ForeignTool> tool,
                           const ConvertOptions& options) {
  if (lower_case(file.extension().string()) == ".py") {
    throw ConfigError(file.string(),
                      "is a Python script, and only configuration files can be converted. Write a profile with the "
                      "table \"From a Python script\" in docs/convert.md.");
  }
  const std::string text = read_file(file);
  Value source = parse_yaml(text, {file.string(), 0});
  if (!source.is_map()) throw ConfigError(file.string(), "is not a configuration file: expected keys and values.");
  if (kind_of_converted(text) != ConvertedFile::kForeign || is_profile(source)) {
    throw ConfigError(file.string(), "is already a lora-train profile. To look at it: {}.",
                      shell_line({"lora-train", "check", file.string()}));
  }
  if (const std::string keys = script_keys(source); !keys.empty() && !tool) {
    throw ConfigError(file.string(), "is a script's own configuration (" + keys +
                                         "), and each script names its keys as it likes. Write a profile with the "
                                         "table \"From a Python script\" in docs/convert.md.");
  }
  for (const Override& setting : options.overrides) set_in_source(source, setting);
  std::string recognised_by;
  if (!tool) std::tie(tool, recognised_by) = recognise(file, source);
  if (const auto instead = instead_of_training(source)) throw ConfigError(file.string(), *instead);
  Converter converter(tool_of(*tool), source, file, options.settings);
  tool_of(*tool).convert(converter);
  Conversion conversion = converter.finish();
  conversion.recognised_by = recognised_by;
  return conversion;
}

std::string tool_of_key(const std::string& name) {
  const auto has_key = [&](const Tool& tool) { return tool.find(name) != nullptr; };
  const auto found = std::ranges::find_if(all_tools(), has_key);
  return found == all_tools().end() ? "" : found->product;
}

std::string merge_line(const std::filesystem::path& file) {
  try {
    const Value source = parse_yaml(read_file(file), {file.string(), 0});
    return merge_line(source);
  } catch (const Error&) {  // it is missing, or not YAML
    return merge_line(null_value());
  }
}

}  // namespace lora_train
