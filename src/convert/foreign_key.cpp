#include "foreign_key.h"

#include <algorithm>

#include "converter.h"
#include "detect.h"
#include "lora_train/config/value/parse_yaml.h"
#include "lora_train/convert/convert.h"

namespace lora_train {
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
  OtherTools tools{judge_foreign_key, instead_of_file, convert_hint, convert_hint_of, {}};
  for (const ForeignTool tool : {ForeignTool::kAxolotl, ForeignTool::kLlamaFactory, ForeignTool::kTrl}) {
    const auto& keys = foreign_keys_of(tool);
    tools.keys.insert(tools.keys.end(), keys.begin(), keys.end());
  }
  return tools;
}

}  // namespace lora_train
