#include "program.h"

#include <unistd.h>

#include <algorithm>
#include <new>
#include <sstream>
#include <string>
#include <vector>

#include "commands/registry.h"
#include "engine/engine_loader.h"
#include "flags/command_line.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/base/version.h"
#include "lora_train/convert/convert.h"
#include "lora_train/device/gpu.h"
#include "output/doctor_report.h"
#include "output/standard_output.h"

namespace lora_train::cli {
namespace {

struct Found {
  TorchInstallation torch;  ///< empty if none is found
  std::string engine;       ///< LibTorch version that the engine was built with
  std::string problem;      ///< why the engine is not loaded
};

Found look() {
  Found found;
  try {
    found.torch = find_torch();
    found.engine = load_engine().torch_version();
  } catch (const Error& error) {
    found.problem = error.what();
  }
  return found;
}

bool has_cuda_library() { return std::filesystem::exists(device::cuda_library_file()); }

std::string as_json(const Found& found) {
  const nlohmann::ordered_json line = {{"version", version()},
                                       {"commit", commit()},
                                       {"libtorch", or_null(found.torch.version)},
                                       {"libtorch_folder", or_null(found.torch.folder.string())},
                                       {"cuda", or_null(found.torch.cuda)},
                                       {"gpu_architectures", gpu_architectures(has_cuda_library())},
                                       {"engine", or_null(found.engine)},
                                       {"problem", or_null(found.problem)}};
  return to_line(line) + "\n";
}

/// Lines: program and commit; LibTorch with its folder (loaded, so that the line shows whether it works here, else why
/// not); CUDA of LibTorch; GPU architectures of our own kernels. With json one object: version, commit, libtorch,
/// libtorch_folder, cuda, gpu_architectures, engine (LibTorch it was built with), problem; null = none. Never throws
/// for a missing LibTorch.
std::string version_text(bool json) {
  const Found found = look();
  if (json) return as_json(found);
  std::string text = fmt::format("lora-train {} (commit {})\n", version(), commit());
  const TorchInstallation& torch = found.torch;
  if (!torch.folder.empty()) {
    text += fmt::format("LibTorch {} ({}, from {})\n", torch.version, torch.folder.string(), torch.found_by);
    text += "CUDA " + (torch.cuda.empty() ? "none: a CPU build of LibTorch" : torch.cuda + " of LibTorch") + "\n";
  }
  text += found.problem.empty() ? fmt::format("engine built with LibTorch {}, loaded\n", found.engine)
                                : fmt::format("engine not loaded: {}\n", found.problem);
  return fmt::format("{}GPU architectures: {}\n", text,
                     has_cuda_library() ? device::built_architectures_text() : "none (a CPU-only build)");
}

/// Messages quote file contents: no control character reaches the terminal, and no line is endless.
std::string readable(const std::string& text) {
  constexpr std::size_t kLongestLine = 4000;
  std::istringstream lines(text);
  std::string out;
  for (std::string line; std::getline(lines, line);) {
    out += (out.empty() ? "" : "\n") + visible_text(line.substr(0, kLongestLine));
    if (line.size() > kLongestLine) out += "...";
  }
  return out;
}

/// Inside a catch block: writes "error: where: message" (base/error.h) to stderr and run.log and, with json,
/// {"error": {"kind", "message", "where"}} to stdout. Returns the exit code. Never throws.
int report_current_exception(bool json) noexcept {
  int code = static_cast<int>(ExitCode::kInternal);
  try {
    ErrorReport report = describe_current_exception();
    report.message = readable(report.message);
    std::replace(report.where.begin(), report.where.end(), '\n', '?');
    report.where = readable(report.where);
    code = static_cast<int>(report.code);
    report.is_reported ? log_to_file(LogLevel::kError, report.text()) : log_error(report.text());
    if (json) {
      const nlohmann::ordered_json object = {
          {"error", {{"kind", report.kind}, {"message", report.message}, {"where", report.where}}}};
      print_line(to_line(object));
    }
  } catch (const std::bad_alloc&) {
    constexpr char kText[] = "error: there is too little memory on the host even to say what failed\n";
    (void)!::write(STDERR_FILENO, kText, sizeof kText - 1);
    if (code == static_cast<int>(ExitCode::kInternal)) code = static_cast<int>(ExitCode::kDevice);
  } catch (...) {  // stdout is unusable: the exit code still reports it
  }
  return code;
}

struct ForeignCommand {
  std::vector<const char*> names;
  const char* owner;
  const char*
      instead;  ///< a format of {file}, the file on the command line, and {merge}, the line that merges what it names
};

const std::vector<ForeignCommand>& foreign_commands() {
  constexpr const char* kPreference =
      "preference training, reward models and reinforcement learning are not supported. To train on the chosen "
      "answers: lora-train convert {file} --allow-refused --output my.yaml, then lora-train train my.yaml";
  constexpr const char* kServe =
      "lora-train serve --adapter mine=RUN is an OpenAI-compatible server to try a result; for many users, vllm serve "
      "MODEL --enable-lora --lora-modules mine=RUN/adapter";
  static const std::vector<ForeignCommand> table = {
      {{"sft"},
       "TRL",
       "lora-train train {file} trains; lora-train convert {file} --output my.yaml makes a profile from a TRL config"},
      {{"lora", "finetune", "fine-tune"}, "other tools", "lora-train train {file} trains"},
      {{"dpo", "kto", "grpo", "rloo", "ppo", "reward", "orpo"}, "TRL", kPreference},
      {{"vllm-serve"}, "TRL and Axolotl", kServe},
      {{"api"}, "LLaMA-Factory", kServe},
      {{"webui", "webchat"},
       "LLaMA-Factory",
       "there is no web interface: lora-train train {file} trains, report.html in its folder has the curves, and "
       "lora-train chat --adapter RUN talks to the result"},
      {{"preprocess"},
       "Axolotl",
       "lora-train tokenize {file} --show 3 fills the token cache and shows examples, and lora-train check {file} "
       "checks "
       "the profile; train needs neither"},
      {{"inference", "infer", "predict"},
       "other tools",
       "lora-train generate --adapter RUN --prompt TEXT answers, and lora-train chat --adapter RUN talks"},
      {{"merge-lora", "merge_lora", "fuse"}, "Axolotl and mlx-lm", "{merge}"},
      {{"merge-sharded-fsdp-weights"}, "Axolotl", "no checkpoint is sharded, so there is nothing to do"},
      {{"evaluate", "lm-eval"}, "Axolotl", "lora-train eval {file} --adapter RUN measures an adapter"},
      {{"fetch"}, "Axolotl", "lora-train check --list names the profiles that are here already"},
      {{"config-schema"}, "Axolotl", "lora-train check --schema prints the schema"},
      {{"env"},
       "LLaMA-Factory and TRL",
       "lora-train doctor reports on this machine, and lora-train --version on the program"},
      {{"version"}, "LLaMA-Factory and Axolotl", "lora-train --version"},
  };
  return table;
}

/// For a command that only another tool has (TRL's `sft`): one sentence with what to run instead, for the file in
/// `arguments` if there is one. Empty for other names.
std::string instead_of_command(const std::string& name, const std::vector<std::string>& arguments) {
  const auto is_it = [&](const char* known) { return name == known; };
  const auto found = std::ranges::find_if(
      foreign_commands(), [&](const ForeignCommand& command) { return std::ranges::any_of(command.names, is_it); });
  if (found == foreign_commands().end()) return {};
  const auto file = std::ranges::find_if(arguments, is_configuration);
  const std::string given = file == arguments.end() ? "" : *file;
  const std::string instead =
      fmt::format(fmt::runtime(found->instead), fmt::arg("file", given.empty() ? "FILE" : shell_line({given})),
                  fmt::arg("merge", merge_line(given)));
  return fmt::format("is a command of {}. Here {}.", found->owner, instead);
}

/// Throws ConfigError if `arguments` name a configuration file, first or after --config, for a command that takes one
/// only in another tool (LLaMA-Factory's `export merge.yaml`), with the command that says the same in flags.
void refuse_configuration_file(const std::string& command, const std::vector<std::string>& arguments) {
  if ((command != "merge" && command != "export") || arguments.empty()) return;
  const auto flag = std::ranges::find(arguments, "--config");
  const bool has_flag = flag != arguments.end() && flag + 1 != arguments.end();
  const std::string& file = has_flag ? flag[1] : arguments.front();
  if (!is_configuration(file)) return;
  throw ConfigError(file, "lora-train {} takes flags, not a file. {}{}.", command,
                    command == "export" ? "To merge, which LLaMA-Factory calls export: " : "Run: ", merge_line(file));
}

const Command& find_command(const Invocation& invocation) {
  const std::string& name = invocation.command;
  std::vector<std::string> names;
  for (const auto& command : commands()) {
    if (command.name == name) return command;
    names.push_back(command.name);
  }
  if (const std::string instead = instead_of_command(name, invocation.arguments); !instead.empty())
    throw ConfigError(name, instead);
  std::string message = "unknown command." + did_you_mean(name, names);
  if (is_configuration(name)) message += fmt::format(" To train with a profile: lora-train train {}.", name);
  throw ConfigError(name, "{} Commands: {}.", message, join(names));
}

// Works even if the command line itself is wrong.
bool wants_json(const std::vector<std::string>& arguments) {
  return std::find(arguments.begin(), arguments.end(), "--json") != arguments.end();
}

int dispatch(const std::vector<std::string>& arguments) {
  const Invocation invocation = split_invocation(arguments);
  if (invocation.wants_help) {
    print_text(overview());
    return 0;
  }
  if (invocation.wants_version) {
    print_text(version_text(wants_json(arguments)));
    return 0;
  }
  const Command& command = find_command(invocation);
  refuse_configuration_file(command.name, invocation.arguments);
  return command.run(invocation.arguments);
}

}  // namespace

int run_program(const std::vector<std::string>& arguments) {
  try {
    return dispatch(arguments);
  } catch (...) {
    return report_current_exception(wants_json(arguments));
  }
}

}  // namespace lora_train::cli
