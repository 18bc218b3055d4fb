#include "registry.h"

namespace lora_train::app {

const std::vector<Command>& commands() {
  static const std::vector<Command> table = {
      {"train", "fine-tune: the run", run_train},
      {"check", "validate a profile without touching a GPU and print it resolved", run_check},
      {"plan", "memory, time and cost per GPU type", nullptr},
      {"tokenize", "tokenise the data, show rows and which tokens are trained", run_tokenize},
      {"generate", "answers of a model, or of a model and an adapter, to prompts", run_generate},
      {"eval", "loss, token accuracy, calibration and answers of the base or an adapter", run_eval},
      {"merge", "fold an adapter into a Hugging Face folder", run_merge},
      {"compare", "profiles and results of several runs side by side", run_compare},
      {"doctor", "driver, GPU, disk and every kernel checked on this machine", run_doctor},
      {"bench", "speed and memory of a shape with random weights", run_bench},
      {"init-model", "write a randomly initialised Hugging Face folder", run_init_model},
  };
  return table;
}

std::vector<std::string> built_commands() {
  std::vector<std::string> names;
  for (const auto& command : commands()) {
    if (command.run != nullptr) names.push_back(command.name);
  }
  return names;
}

std::string overview() {
  std::string text =
      "lora-train: LoRA fine-tuning of Hugging Face models\n\n"
      "Usage: lora-train COMMAND [FLAGS] [key=value ...]\n"
      "       lora-train --profile FILE [FLAGS] [key=value ...]      (short for lora-train train)\n\n"
      "Commands:\n";
  for (const auto& command : commands()) {
    std::string name = "  " + command.name;
    name.resize(14, ' ');
    text += name + command.summary + (command.run == nullptr ? " (not built yet)" : "") + "\n";
  }
  text +=
      "\nFlags of every command:\n"
      "  --json        results on stdout as JSON, one object per line\n"
      "  --quiet       no progress, only warnings and errors on stderr\n"
      "  --log-level   debug, info, warning, error or off\n"
      "  --help        what a command takes: lora-train COMMAND --help\n"
      "  --version     version, commit, LibTorch, CUDA, GPU architectures\n\n"
      "Exit codes: 0 done, 1 internal error, 2 usage or profile, 3 data, 4 model or adapter file, 5 I/O, 6 device,\n"
      "7 non-finite loss or gradient, 75 stopped on request (the same command goes on).\n";
  return text;
}

}  // namespace lora_train::app
