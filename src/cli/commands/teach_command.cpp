// lora-train teach: training rows that a teacher answers.
#include <nlohmann/json.hpp>

#include "command_line.h"
#include "lora_train/base/file.h"
#include "lora_train/base/stop_request.h"
#include "open_model.h"
#include "output/standard_output.h"
#include "profile_flags.h"
#include "registry.h"
#include "sampling_flags.h"
#include "teach/teach_run.h"

namespace lora_train::cli {
namespace {

struct CommandFlags {
  std::string teacher, adapter, prompts, row_template, system, student_system, shard;
  std::vector<std::string> join;
  bool allow_other_base = false;
};

void add_flags(CommandParser& parser, CommandFlags& flags, TeachOptions& job) {
  CLI::App& app = parser.app();
  const auto text = [&app](const char* flag, std::string& value, const char* type, const char* help) {
    app.add_option(flag, value, help)->type_name(type);
  };
  text("--teacher", flags.teacher, "URL",
       "OpenAI-compatible server, http://host:8000/v1; its key is in $OPENAI_API_KEY");
  text("--adapter", flags.adapter, "DIR", "adapter of a teacher that is a --model of this machine");
  add_allow_other_base(parser, flags.allow_other_base);
  text("--prompts", flags.prompts, "FILE", "rows with prompt or messages, or a .txt file with one prompt a line");
  text("--template", flags.row_template, "FILE", "Jinja template that makes the prompt of the fields of a row");
  text("--system", flags.system, "FILE", "system message that only the teacher sees");
  text("--student-system", flags.student_system, "FILE", "system message that the rows have");
  text("--output", job.output, "FILE.jsonl", "the rows; the same command resumes from FILE.answers.jsonl");
  text("--shard", flags.shard, "I/N", "ask part I of N of the prompts, I from 0");
  parser.add_list("--join", flags.join, "take the answers that shards wrote to this --output; repeatable")
      ->type_name("FILE.jsonl");
  app.add_flag("--raw", job.is_raw, "continue texts instead of answering chats; rows have prompt and completion");
}

void parse_shard(const CommandParser& parser, const std::string& shard, TeachOptions& job) {
  if (shard.empty()) return;
  const auto slash = shard.find('/');
  const auto part = slash == std::string::npos ? std::nullopt : parse_integer(shard.substr(0, slash));
  const auto whole = slash == std::string::npos ? std::nullopt : parse_integer(shard.substr(slash + 1));
  if (!part || !whole || *whole < 1 || *part < 0 || *part >= *whole)
    parser.refuse("--shard", "got " + shard + ", expected I/N with I from 0 to N - 1, such as 0/4.");
  job.shard = *part;
  job.num_shards = *whole;
}

void check_flags(const CommandParser& parser, const CommandFlags& flags, const TeachFlags& teach, bool has_model) {
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
    parser.refuse("--raw", "cannot be combined with --system and --student-system, which are messages of chats.");
}

void print_result(const std::string& output, const TeachResult& result) {
  const auto& [code, totals, rows, open] = result;
  nlohmann::ordered_json dropped = nlohmann::ordered_json::object();
  for (const teach::FilterCount& count : rows.dropped) dropped[count.reason] = count.count;
  print_line(to_line({{"output", output},
                      {"rows", rows.num_rows},
                      {"answers", rows.num_answers},
                      {"asked", totals.answers},
                      {"unanswered", open.count()},
                      {"cut", rows.num_cut},
                      {"dropped", dropped},
                      {"prompt_tokens", totals.prompt_tokens},
                      {"completion_tokens", totals.completion_tokens},
                      {"seconds", totals.seconds},
                      {"cost_usd", or_null(totals.cost_usd)}}));
}

}  // namespace

int run_teach(const std::vector<std::string>& arguments) {
  // To the end of the process, as in train.
  [[maybe_unused]] static const auto* const stop_requests = new StopRequests;
  CommandParser parser("teach",
                       "Lets a teacher answer prompts and writes the answers as rows of training data. Every answer is "
                       "kept as it comes: the same command asks for those that are missing.");
  const ProfileFlags profile_flags(
      parser, {{"--model", "model", "a teacher of this machine: folder, or org/name in the local Hugging Face cache"}});
  const SamplingFlags sampling(parser);
  CommandFlags flags;
  TeachFlags teach;
  add_flags(parser, flags, teach.job);
  add_asking_flags(parser, teach);
  add_filter_flags(parser, teach);
  if (!parser.parse(arguments)) return 0;
  const bool has_model = !profile_flags.is_empty() || !flags.adapter.empty();
  check_flags(parser, flags, teach, has_model);
  parse_shard(parser, flags.shard, teach.job);
  finish_teach_flags(parser, teach);
  teach.job.system = text_of_file(parser, "--system", flags.system);
  teach.job.student_system = text_of_file(parser, "--student-system", flags.student_system);
  const std::string row_template = flags.row_template.empty() ? "" : read_file(flags.row_template);
  const TeachInput input{data::read_questions(flags.prompts, row_template), flags.join};
  TeachResult result;
  if (has_model) {
    const LoadedProfile loaded = load_with_adapter(profile_flags, flags.adapter);
    const ModelFolders folders = open_model_folders(loaded.profile.model, flags.adapter, flags.allow_other_base);
    result = teach_by_model(loaded.profile, flags.adapter, folders, teach, sampling.options(parser, folders.model),
                            input, parser.common().quiet);
  } else {
    result = teach_by_server(flags.teacher, teach, sampling.options(parser, {}), input, parser.common().quiet);
  }
  if (parser.common().json && result.exit_code == 0) print_result(teach.job.output, result);
  return result.exit_code;
}

}  // namespace lora_train::cli
