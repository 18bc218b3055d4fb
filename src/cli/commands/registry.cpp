#include "registry.h"

#include "flags/command_line.h"
#include "lora_train/base/text.h"
#include "output/standard_output.h"

namespace lora_train::cli {

const std::vector<Command>& commands() {
  static const std::vector<Command> table = {
      {"train", "fine-tune a model", run_train},
      {"check", "validate a profile and print its values; needs no GPU", run_check},
      {"plan", "estimate memory, time and cost per GPU type", run_plan},
      {"ablate", "measure the effect of each setting of a profile", run_ablate},
      {"tokenize", "tokenise the data; show examples and which tokens are trained", run_tokenize},
      {"generate", "answer prompts with a model, with or without an adapter", run_generate},
      {"chat", "talk to a model, with or without an adapter", run_chat},
      {"serve", "serve a model and its adapters to clients of OpenAI's API", run_serve},
      {"verify", "check whether a server uses an adapter", run_verify},
      {"eval", "measure loss, token accuracy, calibration and answers", run_eval},
      {"merge", "merge an adapter into its base model", run_merge},
      {"export", "write a model or an adapter as a GGUF file for llama.cpp", run_export},
      {"compare", "show the profiles and results of several runs side by side", run_compare},
      {"doctor", "check the driver, GPUs, disk and every kernel of this machine", run_doctor},
      {"bench", "measure speed and memory of a training step", run_bench},
      {"cache", "list or delete the files of the token cache", run_cache},
      {"quantize", "write a Hugging Face folder with quantised linears", run_quantize},
      {"init-model", "write a randomly initialised Hugging Face folder", run_init_model},
      {"sweep", "train a grid of profiles, then compare the runs", run_sweep},
      {"completion", "print a script that completes commands and flags in a shell", run_completion},
      {"convert", "make a profile from an Axolotl, LLaMA-Factory or TRL config", run_convert},
      {"download", "download a model, an adapter or a dataset from the Hugging Face hub", run_download},
      {"push", "upload an adapter or a model to the Hugging Face hub", run_push},
      {"teach", "let a teacher write training data", run_teach},
      {"distill", "ask a teacher, train on its answers and evaluate, in one command", run_distill},
  };
  return table;
}

std::string overview() {
  std::string text =
      "lora-train: LoRA fine-tuning of Hugging Face models\n\n"
      "Usage: lora-train COMMAND [FLAGS] [key=value ...]\n"
      "       lora-train train FILE --lora-r 8 ...      (any key of a profile is a flag too)\n"
      "       lora-train --profile FILE ...             (short for lora-train train FILE)\n\n"
      "Commands:\n";
  for (const auto& command : commands()) {
    std::string name = "  " + command.name;
    name.resize(14, ' ');
    text += fmt::format("{}{}\n", name, command.summary);
  }
  text +=
      "\nFlags of every command:\n"
      "  --json        print results as JSON, one object per line\n"
      "  --quiet       show no progress, only warnings and errors\n"
      "  --log-level   lowest level to log: debug, info, warning, error or off\n"
      "  --help        show the flags of a command: lora-train COMMAND --help, or lora-train help COMMAND\n"
      "  --version, -V show version, commit, LibTorch, CUDA and GPU architectures\n\n"
      "Exit codes: 0 done, 1 internal error, 2 usage or profile, 3 data, 4 model or adapter file, 5 I/O, 6 device,\n"
      "7 non-finite loss or gradient, 75 stopped on request (run the same command to resume).\n";
  return text;
}

// completion: scripts for shells. They ask the program for its commands and flags, so that they never go out of date.
namespace {

// `lora-train completion words` prints the commands, `lora-train COMMAND --list-flags` its flags.
constexpr const char* kBash = R"sh(_lora_train() {
  local current="${COMP_WORDS[COMP_CWORD]}" command="" word
  for word in "${COMP_WORDS[@]:1:$((COMP_CWORD - 1))}"; do
    case "$word" in -*) ;; *) command="$word"; break ;; esac
  done
  if [ -z "$command" ]; then
    COMPREPLY=($(compgen -W "$("${COMP_WORDS[0]}" completion words 2>/dev/null)" -- "$current"))
  elif [ "${current#-}" != "$current" ]; then
    COMPREPLY=($(compgen -W "$("${COMP_WORDS[0]}" "$command" --list-flags 2>/dev/null)" -- "$current"))
  else
    COMPREPLY=()
  fi
}
complete -o default -F _lora_train lora-train
)sh";

// Wraps kBash. zsh runs a file from $fpath at the first Tab, which the last line answers.
constexpr const char* kZshBegin = R"sh(#compdef lora-train
autoload -Uz bashcompinit && bashcompinit
)sh";
constexpr const char* kZshEnd = R"sh([ "${funcstack[1]}" != _lora-train ] || _bash_complete -o default -F _lora_train
)sh";

constexpr const char* kFish = R"sh(function __lora_train_command
  for word in (commandline -opc)[2..-1]
    string match -q -- '-*' $word; or begin; echo $word; return; end
  end
  return 1
end
complete -c lora-train -n 'not __lora_train_command >/dev/null' -f -a '(lora-train completion words 2>/dev/null)'
complete -c lora-train -n '__lora_train_command >/dev/null' -a '(string match -q -- "-*" (commandline -ct); and lora-train (__lora_train_command) --list-flags 2>/dev/null)'
)sh";

}  // namespace

int run_completion(const std::vector<std::string>& arguments) {
  CommandParser parser(
      "completion",
      "Prints a script that completes commands and flags. bash: source <(lora-train completion bash), in ~/.bashrc; "
      "zsh: the same in ~/.zshrc; fish: lora-train completion fish | source.");
  std::string shell;
  parser.add("shell", shell, "SHELL", "bash, zsh or fish");
  if (!parser.parse(arguments)) return 0;
  if (shell == "words") {
    for (const auto& command : commands()) print_line(command.name);
    print_line("help");
  } else if (shell == "bash") {
    print_text(kBash);
  } else if (shell == "zsh") {
    print_text(std::string(kZshBegin) + kBash + kZshEnd);
  } else if (shell == "fish") {
    print_text(kFish);
  } else {
    parser.refuse("completion", shell.empty() ? "missing; expected bash, zsh or fish."
                                              : "unknown shell \"" + shell + "\"; expected bash, zsh or fish.");
  }
  return 0;
}

}  // namespace lora_train::cli
