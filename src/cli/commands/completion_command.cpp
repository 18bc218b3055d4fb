// lora-train completion: scripts for shells. They ask the program for its commands and flags, so that they never grow old.
#include "command_line.h"
#include "lora_train/base/text.h"
#include "output/standard_output.h"
#include "registry.h"

namespace lora_train::cli {
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

// Around kBash. A file of $fpath is run at the first Tab, which the last line answers.
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
      "Prints a script that completes commands and flags. bash: source <(lora-train completion bash), in "
      "~/.bashrc; zsh: the same in ~/.zshrc; fish: lora-train completion fish | source.");
  std::string shell;
  parser.app().add_option("shell", shell, "bash, zsh or fish")->type_name("SHELL");
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
