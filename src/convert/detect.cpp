#include "detect.h"

#include <algorithm>

#include "converter.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/text.h"
#include "lora_train/config/keys/aliases.h"
#include "lora_train/config/keys/field.h"
#include "lora_train/config/layers.h"
#include "lora_train/config/value/value.h"
#include "lora_train/convert/convert.h"
#include "source_data.h"

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
  return text_of(source, {"adapter_name_or_path", "lora_model_dir", "init_adapter", "output_dir"}, "ADAPTER");
}

/// Whether most names are the tool's and none of ours: a profile, which names its `model`, may have some of them by mistake.
bool is_mostly_of(ForeignTool tool, const Value& source) {
  constexpr int kLeast = 3;
  const bool is_profile = source.find("model") && !source.find("base_model") && !source.find("model_name_or_path");
  if (is_profile) return false;
  int theirs = 0, ours = 0;
  for (const auto& [name, value] : source.members) {
    const bool is_field = find_field(name) != nullptr, is_theirs = is_key_of(tool, name);
    theirs += is_theirs && !is_field;
    ours += is_field && !is_theirs;
  }
  return theirs >= kLeast && theirs > ours;
}

bool has_value(const Value& source, const char* key) {
  const Value* value = source.find(key);
  return value && !value->is_null();
}

bool has_any(const Value& source, const std::vector<const char*>& keys) {
  return std::ranges::any_of(keys, [&](const char* key) { return has_value(source, key); });
}

bool is_true(const Value& source, const char* key) {
  const Value* value = source.find(key);
  return value && value->is_scalar() && parse_bool(value->text) == true;
}

/// Whether a key is nobody's: neither a profile's nor a tool's.
bool is_unknown(const Value::Member& member) {
  const std::string& name = member.name;
  const auto is_it = [&](const ForeignKey& key) { return key.name == name; };
  return !member.value.is_null() && !name.starts_with("x-") && !find_field(name) && !find_alias(name) &&
         !is_foreign_key(name) && std::ranges::none_of(refused_keys(), is_it) &&
         std::ranges::none_of(idle_keys(), is_it);
}

/// Keys of the tool that a profile refuses.
std::ptrdiff_t count_refused(ForeignTool tool, const Value& source) {
  Findings findings;
  Merger(findings).add_layer(source);
  return std::ranges::count_if(source.members, [&](const Value::Member& member) {
    return is_key_of(tool, member.name) && findings.is_wrong(member.name);
  });
}

/// LLaMA-Factory merges several adapters one after the other.
std::vector<std::string> adapters_in(const Value& source) {
  const Value* value = source.is_map() ? source.find("adapter_name_or_path") : nullptr;
  std::vector<std::string> names = value && !value->is_null() ? names_in(*value) : std::vector<std::string>{};
  std::erase(names, "");
  return names;
}

std::string export_folder(const Value& source) {
  const std::string run = text_of(source, {"output_dir"}, "");
  return text_of(source, {"export_dir"}, run.empty() ? "MERGED" : run + "-merged");
}

/// The line of `command` with model and adapter as a file of LLaMA-Factory names them, and `more`.
std::string line_of(const std::string& command, const Value& source, const std::vector<std::string>& more) {
  const std::vector<std::string> adapters = adapters_in(source);
  const bool is_merged = adapters.size() > 1;
  std::vector<std::string> words = {"lora-train", command, "--model",
                                    is_merged ? export_folder(source) : model_in(source)};
  if (adapters.size() == 1) words.insert(words.end(), {"--adapter", adapters.front()});
  words.insert(words.end(), more.begin(), more.end());
  return shell_line(words);
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

std::string merge_line(const Value& source) {
  std::vector<std::string> adapters = adapters_in(source);
  if (adapters.size() < 2) adapters = {adapter_in(source)};
  const std::string output = export_folder(source);
  std::string lines, model = model_in(source);
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    const std::string folder = output + (i + 1 == adapters.size() ? "" : "-" + std::to_string(i + 1));
    lines += (i > 0 ? " && " : "") +
             shell_line({"lora-train", "merge", "--model", model, "--adapter", adapters[i], "--output-dir", folder});
    model = folder;
  }
  return lines;
}

namespace {

/// What else a file that exports asks for.
std::string beside_merging(const Value& source) {
  const std::string output = export_folder(source), hub = text_of(source, {"export_hub_model_id"}, "");
  std::string text;
  if (has_value(source, "export_quantization_bit")) {
    text = "; export_quantization_bit makes GPTQ weights, which are not built, but " +
           shell_line({"lora-train", "export", "--model", output, "--gguf", "model.gguf", "--type", "q8_0"}) +
           " writes 8 bits for llama.cpp";
  }
  if (!hub.empty()) text += "; to upload it: " + shell_line({"lora-train", "push", output, hub});
  return text;
}

}  // namespace

std::string merge_line(const std::filesystem::path& file) {
  try {
    const Value source = parse_yaml(read_file(file), {file.string(), 0});
    return merge_line(source) + beside_merging(source);
  } catch (const Error&) {  // it is not there, or no YAML
    return merge_line(null_value());
  }
}

namespace {

/// Of a file that answers with several adapters.
std::string merge_first(const Value& source) {
  return adapters_in(source).size() > 1 ? " after its adapters are merged: " + merge_line(source) + "; then" : "";
}

}  // namespace

std::optional<std::string> instead_of_training(const Value& source) {
  const bool trains = has_any(source, {"dataset"}) || is_true(source, "do_train");
  if (!source.is_map() || trains) return std::nullopt;
  const std::string output = text_of(source, {"output_dir"}, "predictions");
  if (is_true(source, "do_predict")) {
    return "writes answers and trains nothing. Run" + merge_first(source) + " " +
           line_of("generate", source, {"--prompts", "ROWS.jsonl", "--output", output + "/answers.jsonl"}) +
           "; to measure instead: " + line_of("eval", source, {"--eval-data", "ROWS.jsonl"}) + ".";
  }
  if (has_any(source, {"stage", "eval_dataset"})) return std::nullopt;
  if (has_value(source, "export_dir")) {
    return "trains nothing. To merge: " + merge_line(source) + beside_merging(source) +
           "; to talk to it: " + line_of("chat", source, {}) + ".";
  }
  const bool is_run = has_any(source, {"output_dir", "learning_rate", "num_train_epochs", "max_steps", "cutoff_len",
                                       "per_device_train_batch_size", "lora_rank", "lora_target"});
  const bool answers = has_value(source, "template") && has_any(source, {"infer_backend", "adapter_name_or_path"});
  if (is_run || !answers) return std::nullopt;
  return "answers and trains nothing. To talk to it" + (merge_first(source).empty() ? ":" : merge_first(source)) + " " +
         line_of("chat", source, {}) + "; to answer a file: " +
         line_of("generate", source, {"--prompts", "ROWS.jsonl", "--output", "answers.jsonl"}) + ".";
}

bool is_profile(const Value& source) {
  const bool is_named = source.find("model") || source.find("extends");
  return is_named && !source.find("base_model") && !source.find("model_name_or_path") && script_keys(source).empty();
}

std::string script_keys(const Value& source) {
  std::vector<std::string> found;
  if (source.find("base_model") || source.find("model_name_or_path")) return {};
  for (const char* key : {"r", "target_modules", "modules_to_save", "bias", "task_type", "train_dataset", "peft_config",
                          "lora_config", "training_args", "training_arguments", "sft_config"}) {
    if (source.find(key)) found.emplace_back(key);
  }
  return join(found);
}

std::optional<std::string> instead_of_file(const Value& source) {
  constexpr std::size_t kShown = 4;
  if (!source.is_map()) return std::nullopt;
  auto tools = possible_tools(source);
  if (tools.empty() || !is_mostly_of(tools.front().first, source)) return std::nullopt;
  auto& [tool, evidence] = tools.front();
  if (evidence.size() > kShown) evidence.resize(kShown);
  const std::string what = "is a file of " + product_name(tool) + " (" + join(evidence) + ")";
  if (const auto instead = instead_of_training(source)) return what + " that " + *instead;
  if (std::ranges::any_of(source.members, is_unknown) || count_refused(tool, source) < 2) return std::nullopt;
  const std::string& file = source.place.file;
  return what + ", not a profile. Make one of it: " +
         shell_line({"lora-train", "convert", file, "--output", file == "my.yaml" ? "profile.yaml" : "my.yaml"}) + ".";
}

std::optional<std::string> convert_hint(const Value& source) {
  const auto tools = possible_tools(source);
  if (tools.empty() || !is_mostly_of(tools.front().first, source)) return std::nullopt;
  return convert_hint_of(source.place.file);
}

std::string convert_hint_of(const std::string& file) {
  return shell_line({"lora-train", "convert", file}) + " makes a profile of a file of Axolotl, LLaMA-Factory or TRL.";
}

namespace {

constexpr ForeignTool kEveryTool[] = {ForeignTool::kAxolotl, ForeignTool::kLlamaFactory, ForeignTool::kTrl};

// A run with an adapter and evaluation data: what is said of a key must not come from something that is missing around it.
Value smallest_file(ForeignTool tool, const ForeignContext& context) {
  const auto lines = [&]() -> std::string {
    switch (tool) {
      case ForeignTool::kAxolotl:
        return "adapter: lora\nlora_target_linear: true\nval_set_size: 0.1\neval_steps: 100\n";
      case ForeignTool::kLlamaFactory:
        return "stage: sft\nfinetuning_type: lora\nval_size: 0.1\neval_strategy: steps\neval_steps: 100\n";
      case ForeignTool::kTrl: break;
    }
    return "use_peft: true\ndatasets: [{path: d.jsonl}]\ntest_split_size: 0.1\neval_strategy: steps\neval_steps: 100\n";
  }();
  Value file = parse_yaml(lines, {});
  const std::string model = tool == ForeignTool::kAxolotl ? "base_model" : "model_name_or_path";
  if (!context.model.empty()) file.members.push_back({model, text_value(context.model)});
  const std::string epochs = tool == ForeignTool::kAxolotl ? "num_epochs" : "num_train_epochs";
  if (!context.epochs.empty()) file.members.push_back({epochs, text_value(context.epochs)});
  if (!context.seed.empty()) file.members.push_back({"seed", text_value(context.seed)});
  return file;
}

Conversion convert_alone(ForeignTool tool, const std::string& name, const Value& value, const ForeignContext& context) {
  Value file = smallest_file(tool, context);
  std::erase_if(file.members, [&](const auto& member) { return member.name == name; });
  file.members.push_back({name, value});
  Converter converter(tool, file, value.place.file, {});
  convert_with(tool, converter);
  return converter.finish();
}

const ConvertedKey* find_key(const std::vector<ConvertedKey>& keys, const std::string& name) {
  const auto found = std::ranges::find_if(keys, [&](const ConvertedKey& key) { return key.key == name; });
  return found == keys.end() ? nullptr : &*found;
}

std::string notes_on(const Conversion& conversion, const std::string& name) {
  std::string text;
  for (const std::string& note : conversion.notes) {
    if (note.starts_with(name + ": ")) text += "; " + note.substr(name.size() + 2);
  }
  return text;
}

}  // namespace

std::optional<ForeignVerdict> judge_foreign_key(const std::string& name, const Value& value,
                                                const ForeignContext& context) {
  if (!is_foreign_key(name)) return std::nullopt;
  if (value.is_null()) return ForeignVerdict{true, "it has no value"};
  std::optional<ForeignVerdict> idle, renamed;
  for (const ForeignTool tool : kEveryTool) {
    if (!std::ranges::binary_search(foreign_keys_of(tool), name)) continue;
    const Conversion conversion = convert_alone(tool, name, value, context);
    if (const ConvertedKey* refused = find_key(conversion.refused, name))
      return ForeignVerdict{false, refused->outcome};
    if (const ConvertedKey* taken = find_key(conversion.renamed, name); taken && !renamed)
      renamed = ForeignVerdict{false, "its key here: " + taken->outcome + "."};
    if (const ConvertedKey* dropped = find_key(conversion.dropped, name); dropped && !idle)
      idle = ForeignVerdict{true, dropped->outcome + notes_on(conversion, name)};
  }
  return renamed ? renamed : idle;
}

OtherTools known_tools() {
  return {judge_foreign_key, instead_of_file, convert_hint, convert_hint_of, [] {
            std::vector<std::string> all;
            for (const ForeignTool tool : {ForeignTool::kAxolotl, ForeignTool::kLlamaFactory, ForeignTool::kTrl}) {
              const auto& keys = foreign_keys_of(tool);
              all.insert(all.end(), keys.begin(), keys.end());
            }
            return all;
          }};
}

}  // namespace lora_train
