#include "other_tools.h"

#include <algorithm>

#include "lora_train/base/error.h"
#include "lora_train/base/shell_line.h"
#include "lora_train/base/text.h"
#include "lora_train/convert/convert.h"

namespace lora_train::cli {
namespace {

struct ForeignCommand {
  std::vector<const char*> names;
  const char* owner;
  const char* instead;  ///< FILE stands for the file of the command line, MERGE for the line that merges what it names
};

const std::vector<ForeignCommand>& foreign_commands() {
  constexpr const char* kPreference =
      "preference training, rewards and reinforcement are not built. To train on the chosen answers: lora-train "
      "convert "
      "FILE --allow-refused --output my.yaml, then lora-train train my.yaml";
  constexpr const char* kServe =
      "lora-train serve --adapter mine=RUN is an OpenAI-compatible server to try a result; for many users, vllm serve "
      "MODEL "
      "--enable-lora --lora-modules mine=RUN/adapter";
  static const std::vector<ForeignCommand> table = {
      {{"sft"},
       "TRL",
       "lora-train train FILE trains; a file of TRL becomes a profile with lora-train convert FILE --output my.yaml"},
      {{"lora", "finetune", "fine-tune"}, "other tools", "lora-train train FILE trains"},
      {{"dpo", "kto", "grpo", "rloo", "ppo", "reward", "orpo"}, "TRL", kPreference},
      {{"vllm-serve"}, "TRL and Axolotl", kServe},
      {{"api"}, "LLaMA-Factory", kServe},
      {{"webui", "webchat"},
       "LLaMA-Factory",
       "there is no web interface: lora-train train FILE trains, report.html in its folder has the curves, and "
       "lora-train chat --adapter RUN talks to the result"},
      {{"preprocess"},
       "Axolotl",
       "lora-train tokenize FILE --show 3 fills the token cache and shows rows, and lora-train check FILE checks the "
       "profile; train needs neither"},
      {{"inference", "infer", "predict"},
       "other tools",
       "lora-train generate --adapter RUN --prompt TEXT answers, and lora-train chat --adapter RUN talks"},
      {{"merge-lora", "merge_lora", "fuse"}, "Axolotl and mlx-lm", "MERGE"},
      {{"merge-sharded-fsdp-weights"}, "Axolotl", "no checkpoint is sharded, so there is nothing to do"},
      {{"evaluate", "lm-eval"}, "Axolotl", "lora-train eval FILE --adapter RUN measures an adapter"},
      {{"fetch"}, "Axolotl", "lora-train check --list names the profiles that are here already"},
      {{"config-schema"}, "Axolotl", "lora-train check --schema prints the schema"},
      {{"env"}, "LLaMA-Factory and TRL", "lora-train doctor looks at this machine, and lora-train --version at itself"},
      {{"version"}, "LLaMA-Factory and Axolotl", "lora-train --version"},
  };
  return table;
}

bool is_configuration(const std::string& word) {
  return !word.starts_with("-") && (word.ends_with(".yaml") || word.ends_with(".yml") || word.ends_with(".json"));
}

std::string replaced(std::string text, const std::string& word, const std::string& by) {
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + by.size()))
    text.replace(at, word.size(), by);
  return text;
}

}  // namespace

std::string instead_of_command(const std::string& name, const std::vector<std::string>& arguments) {
  const auto is_it = [&](const char* known) { return name == known; };
  const auto found = std::ranges::find_if(
      foreign_commands(), [&](const ForeignCommand& command) { return std::ranges::any_of(command.names, is_it); });
  if (found == foreign_commands().end()) return {};
  const auto file = std::ranges::find_if(arguments, is_configuration);
  const std::string given = file == arguments.end() ? "" : *file;
  std::string text = "is a command of " + std::string(found->owner) + ". Here " + found->instead + ".";
  text = replaced(text, "MERGE", merge_line(given));
  return given.empty() ? text : replaced(text, "FILE", shell_line({given}));
}

void refuse_configuration_file(const std::string& command, const std::vector<std::string>& arguments) {
  if (command != "merge" && command != "export") return;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const bool is_value = i > 0 && arguments[i - 1].starts_with("-") && arguments[i - 1] != "--config" &&
                          arguments[i - 1] != "--profile" && arguments[i - 1].find('=') == std::string::npos;
    if (!is_configuration(arguments[i]) || is_value) continue;
    throw ConfigError(arguments[i],
                      "lora-train " + command + " takes flags, and no file. " +
                          (command == "export" ? "To merge, which LLaMA-Factory calls export: " : "Run: ") +
                          merge_line(arguments[i]) + ".");
  }
}

}  // namespace lora_train::cli
