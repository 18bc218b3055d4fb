// teach: a teacher's answers as training examples. distill: the same, then training and a comparison of the student
// with its teacher.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/engine_loader.h"
#include "flags/command_line.h"
#include "flags/generation_flags.h"
#include "flags/open_model.h"
#include "flags/profile_check.h"
#include "flags/profile_flags.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/config/keys/profile.h"
#include "lora_train/launch/world.h"
#include "lora_train/storage/run_names.h"
#include "lora_train/teach/distill.h"
#include "lora_train/teach/teach_run.h"
#include "output/answers.h"
#include "output/standard_output.h"
#include "registry.h"

namespace lora_train::cli {
namespace {

constexpr std::int64_t kMaxCount = 1000000000;

void add_price(CommandParser& parser, const std::string& flag, std::optional<double>& value, const std::string& help) {
  const auto is_price = [](double number) { return number >= 0 && number <= 1e12; };
  parser.add_number(flag, value, "X", is_price, "a number of 0 or more", help);
}

/// Adds the flags that control the questions for a teacher.
void add_asking_flags(CommandParser& parser, teach::TeachRequest& flags) {
  parser.add("--teacher-model", flags.teacher_model, "NAME", "model of the server (default: the first that it lists)");
  parser.add_integer("--samples", flags.job.samples, 1, 10000, "answers per prompt, one example each (default 1)");
  parser.add_integer("--max-tokens,--max-new-tokens", flags.max_tokens, 1, kMaxNewTokens,
                     "maximum number of tokens per answer (default 1024)");
  parser.add_list("--stop", flags.stop, "TEXT", "end an answer before this text; repeatable");
  parser.add_integer("--concurrency", flags.ask.concurrency, 1, 1024, "concurrent requests (default 8)");
  const auto is_in_range = [](double number) { return number > 0 && number <= 1e6; };
  parser.add_number("--requests-per-minute", flags.ask.requests_per_minute, "X", is_in_range, "a number above 0",
                    "maximum number of requests per minute");
  parser.add_number("--timeout", flags.timeout_s, "SECONDS", is_in_range, "seconds above 0",
                    "longest time that a request waits without a byte from the server (default 600)");
  parser.add_integer("--logprobs", flags.top_logprobs, 1, 100,
                     "save the log-probabilities of an answer's tokens and of N alternatives to each");
  parser.add_integer("--max-failures", flags.max_failures, 0, kMaxCount,
                     "succeed even if up to N prompts stay unanswered (default 0)");
  add_price(parser, "--price-in", flags.prices.prompt, "USD per million prompt tokens, for the cost");
  add_price(parser, "--price-out", flags.prices.completion, "USD per million answer tokens");
}

struct RefusalFlags {
  std::string file;
  bool drop = false;
};

/// Adds the flags that decide which answers become examples.
void add_filter_flags(CommandParser& parser, teach::FilterOptions& filters, RefusalFlags& refusals) {
  parser.add_flag("--drop-cut", filters.drop_cut, "filter: drop answers that reached --max-tokens");
  parser.add_integer("--min-chars", filters.min_chars, 0, kMaxCount, "filter: drop answers with fewer characters");
  parser.add_integer("--max-chars", filters.max_chars, 0, kMaxCount, "filter: drop answers with more characters");
  parser.add("--keep-matching", filters.keep_matching, "REGEX", "filter: keep only answers that match");
  parser.add("--drop-matching", filters.drop_matching, "REGEX", "filter: drop answers that match");
  parser.add("--json-schema", filters.json_schema, "FILE", "filter: keep only JSON answers that fit this schema");
  parser.add_flag("--drop-refusals", refusals.drop,
                  "filter: drop answers that begin like refusals (\"I'm sorry, but\")");
  parser.add("--refusal-phrases", refusals.file, "FILE", "filter: drop answers that begin with a line of this file");
  parser.add_integer("--agree", filters.agree, 2, kMaxCount,
                     "filter: keep the largest group of --samples that agree, if it has at least N");
  parser.add("--agree-on", filters.agree_on, "REGEX", "the part that must agree (default: the whole answer)");
  parser.add_flag("--drop-duplicates", filters.drop_duplicates, "filter: drop repeated answers to a prompt");
}

/// The text of a file that a flag or key names, without its final line end; empty if no file is named. Refuses an empty
/// file.
std::string text_of_file(const CommandParser& parser, const char* flag, const std::string& file) {
  if (file.empty()) return {};
  std::string text = read_file(file);
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  if (find_invalid_utf8(text)) parser.refuse(flag, file + " is not UTF-8.");
  if (is_blank(text)) parser.refuse(flag, file + " is empty.");
  return text;
}

/// Call it after parsing: checks flags against each other, and reads the phrases of --refusal-phrases.
void finish_teach_flags(const CommandParser& parser, teach::TeachRequest& flags, const RefusalFlags& refusals) {
  if (flags.filters.agree > flags.job.samples) parser.refuse("--agree", "needs at least as many --samples.");
  if (!flags.filters.agree_on.empty() && flags.filters.agree == 0) parser.refuse("--agree-on", "needs --agree N.");
  if (refusals.drop) flags.filters.refusal_phrases = teach::usual_refusals();
  std::istringstream phrases(text_of_file(parser, "--refusal-phrases", refusals.file));
  for (std::string phrase; std::getline(phrases, phrase);) flags.filters.refusal_phrases.push_back(phrase);
}

/// A model on this machine, with or without an adapter.
class ModelTeacher : public teach::LocalTeacher {
 public:
  ModelTeacher(Profile profile, std::string adapter, bool allow_other_base)
      : profile_(std::move(profile)),
        adapter_(std::move(adapter)),
        files_(open_to_answer(profile_.model, adapter_, allow_other_base)) {}

  const std::filesystem::path& folder() const { return files_.resolved.folder; }

  teach::GenerationSettings settings(bool is_raw) const override {
    return model_settings(profile_.model, adapter_, files_, is_raw);
  }

  void ask(const teach::TeachRequest& asked, const SamplingOptions& sampling, teach::TeachJob& job,
           teach::TeachProgress& progress) override {
    const std::vector<std::size_t> open = job.open();
    if (open.empty()) return;
    const data::PromptOptions options{files_.tokenizer.get(), files_.chat_template.get(), job.options().is_raw, ""};
    std::vector<data::Prompt> prompts;
    for (const std::size_t answer : open) {
      const teach::Question question = job.question(answer);
      prompts.push_back(
          job.options().is_raw
              ? data::make_prompt(nlohmann::json::parse(question.prompt).get<std::string>(), question.source, options)
              : data::make_prompt(data::ChatQuestion{question.source, question.prompt, question.tools}, options));
    }
    std::vector<generate::Prompt> to_ask = prompts_to_ask(prompts, files_, sampling, asked.max_tokens);
    for (std::size_t i = 0; i < open.size(); ++i) to_ask[i].index = static_cast<std::int64_t>(open[i]);
    AnswerCollector::Callbacks callbacks;
    callbacks.on_answers = [&](std::size_t i, const Answers& answers) {
      const nlohmann::ordered_json text = answers.answer.text;
      const nlohmann::ordered_json message = {{"role", "assistant"}, {"content", text}};
      const teach::Answer answer{job.options().is_raw ? text.dump() : message.dump(),
                                 answers.answer.is_cut ? "length" : "stop",
                                 static_cast<std::int64_t>(prompts[i].ids.size()),
                                 static_cast<std::int64_t>(answers.answer.ids.size()),
                                 {}};
      job.add(open[i], answer);
      progress.add(answer);
    };
    AnswerCollector collector(*files_.tokenizer, {to_ask.front().stop_ids, asked.stop}, std::move(callbacks));
    load_engine().generate({.profile = profile_, .adapter = files_.adapter}, to_ask, collector);
  }

 private:
  Profile profile_;
  std::string adapter_;  ///< as given
  lora::ModelFiles files_;
};

// teach: training examples answered by a teacher.

struct CommandFlags {
  std::string teacher, adapter, prompts, prompt_template, system, student_system, shard;
  std::vector<std::string> join;
  bool allow_other_base = false;
};

void add_flags(CommandParser& parser, CommandFlags& flags, teach::TeachOptions& job) {
  parser.add("--teacher", flags.teacher, "URL",
             "OpenAI-compatible server, http://host:8000/v1; its key is in $OPENAI_API_KEY");
  parser.add("--adapter", flags.adapter, "DIR", "adapter for a teacher given with --model");
  add_allow_other_base(parser, flags.allow_other_base);
  parser.add("--prompts", flags.prompts, "FILE",
             "examples with prompt or messages, or a .txt file with one prompt per line");
  parser.add("--template", flags.prompt_template, "FILE",
             "Jinja template that makes the prompt from an example's fields");
  parser.add("--system", flags.system, "FILE", "system message that only the teacher sees");
  parser.add("--student-system", flags.student_system, "FILE", "system message to write into the examples");
  parser.add("--output", job.output, "FILE.jsonl",
             "file for the examples; the same command resumes from FILE.answers.jsonl");
  parser.add("--shard", flags.shard, "I/N", "ask part I of N of the prompts, counting from 0");
  parser.add_list("--join", flags.join, "FILE.jsonl",
                  "also use the answers of the shard written to this --output; repeatable");
  parser.add_flag("--raw", job.is_raw,
                  "continue texts instead of answering chats; examples have prompt and completion");
}

void parse_shard(const CommandParser& parser, const std::string& shard, teach::TeachOptions& job) {
  if (shard.empty()) return;
  const auto slash = shard.find('/');
  const auto part = slash == std::string::npos ? std::nullopt : parse_integer(shard.substr(0, slash));
  const auto whole = slash == std::string::npos ? std::nullopt : parse_integer(shard.substr(slash + 1));
  if (!part || !whole || *whole < 1 || *part < 0 || *part >= *whole)
    parser.refuse("--shard", fmt::format("got {}, expected I/N with I from 0 to N - 1, such as 0/4.", shard));
  job.shard = *part;
  job.num_shards = *whole;
}

void check_flags(const CommandParser& parser, const CommandFlags& flags, const teach::TeachRequest& teach,
                 bool has_model) {
  const std::string& url = flags.teacher;
  if (flags.prompts.empty()) parser.refuse("--prompts", "missing; expected a file of prompts.");
  if (teach.job.output.empty()) parser.refuse("--output", "missing; expected the file to write.");
  parser.refuse_special_file("--output", teach.job.output);
  if (url.empty() && !has_model)
    parser.refuse("--teacher", "missing; expected a server (--teacher http://host:8000/v1), or --model DIR.");
  if (!url.empty() && has_model) parser.refuse("--teacher", "give a server or a --model of this machine, not both.");
  if (!url.empty() && !url.starts_with("http://") && !url.starts_with("https://"))
    parser.refuse("--teacher", "got " + url + ", expected a URL such as http://host:8000/v1; a folder is --model DIR.");
  if (url.empty() && teach.top_logprobs > 0) parser.refuse("--logprobs", "needs a --teacher that is a server.");
  if (teach.job.is_raw && !(flags.system.empty() && flags.student_system.empty()))
    parser.refuse("--raw", "cannot be combined with --system and --student-system, which are chat messages.");
}

void print_result(const std::string& output, const teach::TeachResult& result) {
  const auto& [code, totals, examples, open] = result;
  nlohmann::ordered_json dropped = nlohmann::ordered_json::object();
  for (const teach::FilterCount& count : examples.dropped) dropped[count.reason] = count.count;
  print_line(to_line({{"output", output},
                      {"rows", examples.num_written},
                      {"answers", examples.num_answers},
                      {"asked", totals.answers},
                      {"unanswered", open.count()},
                      {"cut", examples.num_cut},
                      {"dropped", dropped},
                      {"prompt_tokens", totals.prompt_tokens},
                      {"completion_tokens", totals.completion_tokens},
                      {"seconds", totals.seconds},
                      {"cost_usd", or_null(totals.cost_usd)}}));
}

}  // namespace

int run_teach(const std::vector<std::string>& arguments) {
  keep_stop_requests();
  CommandParser parser("teach",
                       "Lets a teacher answer prompts and writes the answers as training examples. Saves every answer "
                       "as it arrives; run the same command again to ask for the missing ones.");
  const ProfileFlags profile_flags(
      parser, {{"--model", "model", "a teacher on this machine: folder, or org/name in the local Hugging Face cache"}});
  const SamplingFlags sampling(parser);
  CommandFlags flags;
  RefusalFlags refusals;
  teach::TeachRequest teach;
  add_flags(parser, flags, teach.job);
  add_asking_flags(parser, teach);
  add_filter_flags(parser, teach.filters, refusals);
  if (!parser.parse(arguments)) return 0;
  const bool has_model = !profile_flags.is_empty() || !flags.adapter.empty();
  check_flags(parser, flags, teach, has_model);
  parse_shard(parser, flags.shard, teach.job);
  finish_teach_flags(parser, teach, refusals);
  teach.job.system = text_of_file(parser, "--system", flags.system);
  teach.job.student_system = text_of_file(parser, "--student-system", flags.student_system);
  const std::string prompt_template = flags.prompt_template.empty() ? "" : read_file(flags.prompt_template);
  const teach::TeachInput input{data::read_questions(flags.prompts, prompt_template), flags.join};
  teach::TeachResult result;
  if (has_model) {
    const LoadedProfile loaded = load_with_adapter(profile_flags, flags.adapter);
    ModelTeacher model(loaded.profile, flags.adapter, flags.allow_other_base);
    result =
        teach::teach_by_model(model, teach, sampling.options(parser, model.folder()), input, parser.common().quiet);
  } else {
    result = teach::teach_by_server(flags.teacher, teach, sampling.options(parser, {}), input, parser.common().quiet);
  }
  if (parser.common().json && result.exit_code == 0) print_result(teach.job.output, result);
  return result.exit_code;
}

// distill: a teacher's answers, training on them, and a comparison of the student with its teacher.
namespace {

struct Switches {
  std::vector<std::string> allow_changed;
  std::string template_file;
  int num_ranks = 1;
  bool overwrite = false, teacher_only = false;
};

void refuse_adapter_as_teacher(const std::string& teacher) {
  const std::filesystem::path folder = std::filesystem::path(teacher).lexically_normal();
  if (!storage::holds_adapter(adapter_folder(teacher))) return;
  const std::string merged = (folder.has_filename() ? folder : folder.parent_path()).string() + "-merged";
  throw ConfigError("teacher", "{} is an adapter, but a teacher is a whole model. Merge it: {}, and give {}.", teacher,
                    shell_line({"lora-train", "merge", "--adapter", teacher, "--output-dir", merged}), merged);
}

void add_server_flags(CommandParser& parser, teach::ServerOptions& server) {
  parser.add_flag("--start-teacher", server.starts,
                  "start the teacher's server on this machine (vLLM), and stop it before training");
  parser.add("--teacher-command", server.command, "COMMAND", "command that --start-teacher runs instead of vLLM");
  parser.add_number(
      "--teacher-timeout", server.timeout_s, "SECONDS", [](double number) { return number > 0 && number <= 1e6; },
      "seconds above 0", "time limit for the teacher's server to start (default 1800)");
  parser.add_integer("--tensor-parallel-size", server.tensor_parallel_size, 1, 1024,
                     "vLLM: GPUs for the teacher (default: all visible ones)");
  parser.add_integer("--max-model-len", server.max_model_len, 1, 100000000,
                     "vLLM: maximum number of tokens of prompt and answer (default 32768)");
  parser.add("--teacher-dtype", server.dtype, "TYPE", "vLLM: data type (default auto)");
  parser.add_number(
      "--gpu-memory-utilization", server.gpu_memory_utilization, "X",
      [](double number) { return number > 0 && number <= 1; }, "a number above 0, at most 1",
      "vLLM: share of the GPU memory (default 0.9)");
}

/// A single word that looks like a path is not taken as a text: it is more likely a mistyped file name.
std::string text_of(const CommandParser& parser, const LoadedProfile& loaded, const char* key, const std::string& value,
                    Findings& findings) {
  std::error_code code;
  if (std::filesystem::exists(value, code)) return text_of_file(parser, key, value);
  const bool is_word = value.find_first_of(" \t\n") == std::string::npos;
  const std::size_t dot = value.find('.');
  const bool is_path = value.find('/') != std::string::npos || (dot != std::string::npos && dot + 1 < value.size());
  if (is_word && is_path)
    findings.mistake(parse_place(loaded.origin.at(key)), key,
                     fmt::format("there is no file {}; a text would have a space.", value));
  return value;
}

/// Fills `request`. Throws all mistakes of the profile together, before asking anything.
void load_request(const CommandParser& parser, const ProfileFlags& flags, teach::DistillRequest& request) {
  Findings findings;
  request.sources = flags.sources();
  request.loaded = load_and_log(request.sources, findings);
  const TeacherSection& teacher = request.loaded.profile.teacher;
  if (teacher.teacher.empty() && !findings.is_wrong("teacher")) {
    findings.mistake({}, "teacher",
                     "missing. Name a server (`teacher: http://host:8000/v1` or --teacher), or a model folder.");
  }
  teach::check_prompt_specs(request.loaded, findings);
  LoadedProfile checked = request.loaded;
  teach::add_agreement_task(checked, findings);
  check_inputs(checked, {}, findings);
  request.teach.job.system = text_of(parser, request.loaded, "teacher_system", teacher.teacher_system, findings);
  request.teach.job.student_system =
      text_of(parser, request.loaded, "student_system", teacher.student_system, findings);
  findings.throw_mistakes();
}

void check_flags(const CommandParser& parser, const teach::DistillRequest& request) {
  const TeacherSection& teacher = request.loaded.profile.teacher;
  const teach::ServerOptions& server = request.server;
  if (!teacher.is_server() && request.teach.top_logprobs > 0)
    parser.refuse("--logprobs", "needs a teacher that is a server.");
  if (!server.command.empty() && !server.starts) parser.refuse("--teacher-command", "needs --start-teacher.");
  if (!server.starts) return;
  if (!teacher.is_server() || !teach::is_local(teacher.teacher)) {
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

/// Throws for a phase that failed in its own processes, which have reported the error.
void throw_if_failed(int code, const std::string& phase, const std::string& output_dir) {
  if (code == 0 || code == static_cast<int>(ExitCode::kStopped)) return;
  const char* const kinds[] = {"", "internal", "config", "data", "format", "io", "device", "numeric"};
  throw PeerError(output_dir, fmt::format("{} ended with exit code {}; stderr says why", phase, code),
                  code < 8 ? kinds[code] : "internal", static_cast<ExitCode>(code));
}

/// Asks in its own process, so that its memory, and its GPU's, is free for training afterwards.
int start_teacher_phase(std::vector<std::string> arguments) {
  std::erase(arguments, "--json");
  arguments.insert(arguments.begin(), {"distill", "--teacher-only"});
  return start_program(arguments, 1);
}

int start_training(const teach::DistillRequest& request, const CommonFlags& common, const Switches& switches) {
  std::vector<std::string> arguments = as_arguments(teach::sources_of_training(request));
  const std::vector<std::string> flags = flags_of_train(common, switches);
  arguments.insert(arguments.begin(), "train");
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return start_program(arguments, switches.num_ranks);
}

/// `arguments`: those of the command.
int run_phases(const teach::DistillRequest& request, const std::vector<std::string>& arguments,
               const CommonFlags& common, const Switches& switches) {
  const std::string& output_dir = request.loaded.profile.run.output_dir;
  const bool is_here = request.loaded.profile.teacher.is_server() || switches.teacher_only;
  int code = is_here ? teach::run_teacher_phase(request) : start_teacher_phase(arguments);
  throw_if_failed(code, "the teacher", output_dir);
  if (code == 0 && !switches.teacher_only) code = start_training(request, common, switches);
  throw_if_failed(code, "training", output_dir);
  if (code != 0) return code;
  teach::DistillRecord record;
  record.output_dir = output_dir;
  record.teacher = teach::read_teacher_phase(output_dir);
  if (!switches.teacher_only) {
    teach::add_training(record);
    teach::write_record(record);
    print_text(common.json ? teach::to_json(record) + "\n" : teach::to_table(record));
  } else if (common.json) {
    print_line(teach::to_json(record));
  }
  return 0;
}

}  // namespace

int run_distill(const std::vector<std::string>& arguments) try {
  const launch::World world = launch::world_from(process_environment);
  keep_stop_requests(world.launcher != launch::Launcher::kNone);
  CommandParser parser(
      "distill",
      "Lets a teacher answer the prompts of a profile, trains the student on the answers, and compares both on "
      "held-out prompts. The same command resumes where it stopped.");
  const ProfileFlags flags(parser,
                           {{"--model", "model", "the student: folder, or org/name in the local Hugging Face cache"},
                            {"--train-data", "datasets", "prompts: file, folder or glob"},
                            {"--eval-data", "eval_datasets", "held-out prompts: file, folder or glob"},
                            kOutputDirFlag,
                            kResumeFlag,
                            {"--max-time", "max_time", "in training: save a checkpoint and stop after this time"},
                            {"--teacher", "teacher", "URL that ends in /v1, or a model folder"},
                            {"--teacher-system", "teacher_system", "file or text that only the teacher sees"},
                            {"--student-system", "student_system", "file or text that the student sees instead"}});
  const SamplingFlags sampling(parser);
  teach::DistillRequest request;
  RefusalFlags refusals;
  Switches switches;
  add_asking_flags(parser, request.teach);
  add_filter_flags(parser, request.teach.filters, refusals);
  add_server_flags(parser, request.server);
  parser.add("--template", switches.template_file, "FILE",
             "Jinja template that makes the prompt from an example's fields");
  parser.add("--match", request.match, "REGEX",
             "part of the student's and the teacher's answers that must be equal (default: the whole answer)");
  parser.add_flag("--teacher-only", switches.teacher_only, "stop before training");
  parser.add_flag("--overwrite", switches.overwrite, "train again; keep the teacher's answers");
  parser.add_list("--allow-changed", switches.allow_changed, "KEY",
                  "let this key differ from the resumed run; repeatable");
  parser.add_integer("--nproc", switches.num_ranks, 1, 1024, "train with N ranks on this host, one per GPU");
  if (!parser.parse(arguments)) return 0;
  never_wait_for_stderr();
  if (world.size > 1)
    parser.refuse("--nproc", "give it here instead of starting several processes: training starts its own ranks.");
  finish_teach_flags(parser, request.teach, refusals);
  load_request(parser, flags, request);
  check_flags(parser, request);
  request.sampling = sampling.options(parser, request.loaded.profile.teacher.teacher);
  request.open_teacher = [](const Profile& teacher) {
    refuse_adapter_as_teacher(teacher.model.path);
    return std::make_unique<ModelTeacher>(teacher, "", /*allow_other_base=*/false);
  };
  request.quiet = parser.common().quiet;
  if (!switches.template_file.empty()) request.prompt_template = read_file(switches.template_file);
  return run_phases(request, arguments, parser.common(), switches);
} catch (const Killed& killed) {
  return killed.exit_code;
}

}  // namespace lora_train::cli
