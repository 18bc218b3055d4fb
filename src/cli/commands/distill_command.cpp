// lora-train distill: a teacher's answers, training on them, and the student beside its teacher.
#include <filesystem>

#include "command_line.h"
#include "distill/distill_run.h"
#include "distill/prompt_sets.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/config/check.h"
#include "lora_train/launch/world.h"
#include "output/standard_output.h"
#include "profile_check.h"
#include "profile_flags.h"
#include "registry.h"
#include "sampling_flags.h"
#include "start_program.h"

namespace lora_train::cli {
namespace {

struct Switches {
  std::vector<std::string> allow_changed;
  std::string template_file;
  bool overwrite = false, teacher_only = false;
};

void add_server_flags(CommandParser& parser, ServerOptions& server) {
  CLI::App& app = parser.app();
  app.add_flag("--start-teacher", server.starts,
               "start the server of the teacher on this machine (vLLM), and end it before training");
  app.add_option("--teacher-command", server.command, "what --start-teacher runs in place of vLLM")
      ->type_name("COMMAND");
  parser
      .add_number(
          "--teacher-timeout", server.timeout_s, [](double number) { return number > 0 && number <= 1e6; },
          "seconds above 0", "how long to wait for its start (default 1800)")
      ->type_name("SECONDS");
  parser.add_integer("--tensor-parallel-size", server.tensor_parallel_size, 1, 1024,
                     "vLLM: GPUs of the teacher (default: all that are visible)");
  parser.add_integer("--max-model-len", server.max_model_len, 1, 100000000,
                     "vLLM: tokens of prompt and answer at most (default 32768)");
  app.add_option("--teacher-dtype", server.dtype, "vLLM: data type (default auto)")->type_name("TYPE");
  parser
      .add_number(
          "--gpu-memory-utilization", server.gpu_memory_utilization,
          [](double number) { return number > 0 && number <= 1; }, "a number above 0, at most 1",
          "vLLM: share of the GPU memory (default 0.9)")
      ->type_name("X");
}

/// A value that is one word and looks like a path is no text: it would be a slip of the name otherwise.
std::string text_of(const CommandParser& parser, const LoadedProfile& loaded, const char* key, const std::string& value,
                    Findings& findings) {
  std::error_code code;
  if (std::filesystem::exists(value, code)) return text_of_file(parser, key, value);
  const bool is_word = value.find_first_of(" \t\n") == std::string::npos;
  const std::size_t dot = value.find('.');
  const bool is_path = value.find('/') != std::string::npos || (dot != std::string::npos && dot + 1 < value.size());
  if (is_word && is_path)
    findings.mistake(parse_place(loaded.origin.at(key)), key,
                     "there is no file " + value + "; a text would have a space.");
  return value;
}

/// Fills `request`. Throws what is wrong with the profile, all of it together, before anything is asked.
void load_request(const CommandParser& parser, const ProfileFlags& flags, DistillRequest& request) {
  Findings findings;
  request.sources = flags.sources();
  request.loaded = load_and_log(request.sources, findings);
  const TeacherSection& teacher = request.loaded.profile.teacher;
  add_unbuilt_features(request.loaded, findings);
  if (teacher.teacher.empty() && !findings.is_wrong("teacher")) {
    findings.mistake({}, "teacher",
                     "missing. Name a server (`teacher: http://host:8000/v1` or --teacher), or a model folder.");
  }
  check_prompt_specs(request.loaded, findings);
  LoadedProfile checked = request.loaded;
  add_agreement_task(checked, findings);
  check_inputs(checked, {}, findings);
  request.teach.job.system = text_of(parser, request.loaded, "teacher_system", teacher.teacher_system, findings);
  request.teach.job.student_system =
      text_of(parser, request.loaded, "student_system", teacher.student_system, findings);
  findings.throw_mistakes();
}

void check_flags(const CommandParser& parser, const DistillRequest& request) {
  const TeacherSection& teacher = request.loaded.profile.teacher;
  const ServerOptions& server = request.server;
  if (!teacher.is_server() && request.teach.top_logprobs > 0)
    parser.refuse("--logprobs", "needs a teacher that is a server.");
  if (!server.command.empty() && !server.starts) parser.refuse("--teacher-command", "needs --start-teacher.");
  if (!server.starts) return;
  if (!teacher.is_server() || !is_local(teacher.teacher)) {
    parser.refuse("--start-teacher", "starts a server on this machine, but the teacher is " + teacher.teacher +
                                         "; expected http://localhost:8000/v1, or another port.");
  }
  if (server.command.empty() && request.teach.teacher_model.empty())
    parser.refuse("--start-teacher", "needs the model to serve: --teacher-model ORG/NAME; or --teacher-command.");
}

std::vector<std::string> flags_of_train(const CommonFlags& common, const Switches& switches) {
  std::vector<std::string> flags;
  if (common.quiet) flags.emplace_back("--quiet");
  if (!common.log_level.empty()) flags.insert(flags.end(), {"--log-level", common.log_level});
  if (switches.overwrite) flags.emplace_back("--overwrite");
  for (const std::string& key : switches.allow_changed) flags.insert(flags.end(), {"--allow-changed", key});
  return flags;
}

/// A phase that ran in processes of its own, which have said what is wrong.
void throw_if_failed(int code, const std::string& phase, const std::string& output_dir) {
  if (code == 0 || code == static_cast<int>(ExitCode::kStopped)) return;
  const char* const kinds[] = {"", "internal", "config", "data", "format", "io", "device", "numeric"};
  throw PeerError(output_dir, phase + " ended with exit code " + std::to_string(code) + "; stderr says why",
                  code < 8 ? kinds[code] : "internal", static_cast<ExitCode>(code));
}

int run_phases(const DistillRequest& request, const Switches& switches, bool json) {
  const std::string& output_dir = request.loaded.profile.run.output_dir;
  const bool is_here = request.loaded.profile.teacher.is_server() || switches.teacher_only;
  int code = is_here ? run_teacher_phase(request) : start_teacher_phase(request);
  throw_if_failed(code, "the teacher", output_dir);
  if (code == 0 && !switches.teacher_only) code = start_training(request);
  throw_if_failed(code, "training", output_dir);
  if (code != 0) return code;
  DistillRecord record;
  record.output_dir = output_dir;
  record.teacher = read_teacher_phase(output_dir);
  if (!switches.teacher_only) {
    add_training(record);
    write_record(record);
    print_text(json ? to_json(record) + "\n" : to_table(record));
  } else if (json) {
    print_line(to_json(record));
  }
  return 0;
}

}  // namespace

int run_distill(const std::vector<std::string>& arguments) try {
  const launch::World world = launch::world_from(process_environment);
  // To the end of the process, as in train.
  [[maybe_unused]] static const auto* const stop_requests =
      new StopRequests(world.launcher != launch::Launcher::kNone, nullptr);
  CommandParser parser(
      "distill",
      "Lets a teacher answer the prompts of a profile, trains the student on the answers, and compares "
      "both on prompts held out. The same command resumes where it stopped.");
  const ProfileFlags flags(parser,
                           {{"--model", "model", "the student: folder, or org/name in the local Hugging Face cache"},
                            {"--train-data", "datasets", "prompts: file, folder or glob"},
                            {"--eval-data", "eval_datasets", "prompts held out: file, folder or glob"},
                            {"--output-dir", "output_dir", "output folder of the run"},
                            {"--resume", "resume_from_checkpoint", "auto, none or a checkpoint folder"},
                            {"--max-time", "max_time", "of training: save a checkpoint and stop after this time"},
                            {"--teacher", "teacher", "URL that ends in /v1, or a model folder"},
                            {"--teacher-system", "teacher_system", "file or text: what only the teacher sees"},
                            {"--student-system", "student_system", "file or text: what the student sees instead"}});
  const SamplingFlags sampling(parser);
  DistillRequest request;
  Switches switches;
  add_asking_flags(parser, request.teach);
  add_filter_flags(parser, request.teach);
  add_server_flags(parser, request.server);
  parser.app()
      .add_option("--template", switches.template_file, "Jinja template that makes the prompt of the fields of a row")
      ->type_name("FILE");
  parser.app()
      .add_option("--match", request.match, "what has to be equal in the answers of student and teacher (default: all)")
      ->type_name("REGEX");
  parser.app().add_flag("--teacher-only", switches.teacher_only, "end before training");
  parser.app().add_flag("--overwrite", switches.overwrite, "train anew; the teacher's answers stay");
  parser.add_list("--allow-changed", switches.allow_changed, "let this key differ from the resumed run; repeatable")
      ->type_name("KEY");
  parser.add_integer("--nproc", request.num_ranks, 1, 1024, "train with so many ranks on this host, one for each GPU");
  if (!parser.parse(arguments)) return 0;
  never_wait_for_stderr();
  if (world.size > 1)
    parser.refuse("--nproc", "give it here instead of starting several processes: training starts its own ranks.");
  finish_teach_flags(parser, request.teach);
  load_request(parser, flags, request);
  check_flags(parser, request);
  request.sampling = sampling.options(parser, request.loaded.profile.teacher.teacher);
  request.arguments = arguments;
  request.train_flags = flags_of_train(parser.common(), switches);
  request.quiet = parser.common().quiet;
  if (!switches.template_file.empty()) request.row_template = read_file(switches.template_file);
  return run_phases(request, switches, parser.common().json);
} catch (const Killed& killed) {
  return killed.exit_code;
}

}  // namespace lora_train::cli
