// lora-train teach: training rows that a teacher answers.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "adapter_flag.h"
#include "answer_request.h"
#include "command_line.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/hash.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/http/url.h"
#include "model_folders.h"
#include "output/json_text.h"
#include "output/standard_output.h"
#include "profile_flags.h"
#include "registry.h"
#include "sampling_flags.h"
#include "teach/ask_model.h"
#include "teach/ask_server.h"
#include "teach/teach_job.h"

namespace lora_train::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMaxCount = 1000000000;

struct TeachFlags {
  std::string teacher, teacher_model, adapter, prompts, row_template, system, student_system, shard, refusal_file;
  std::vector<std::string> stop, join;
  TeachOptions job;
  teach::FilterOptions filters;
  AskOptions ask;
  TokenPrices prices;
  std::int64_t max_tokens = 1024, top_logprobs = 0, max_failures = 0;
  double timeout_s = 600;
  bool drop_refusals = false, allow_other_base = false;
};

void add_number(CommandParser& parser, const std::string& flag, std::optional<double>& value, const std::string& help) {
  const auto read = [&value](const std::string& text) {
    value = parse_number(text);
    return value && *value >= 0 && *value <= 1e12;
  };
  parser.add_parsed(flag, read, "a number of 0 or more", help)->type_name("X");
}

void add_flags(CommandParser& parser, TeachFlags& flags) {
  CLI::App& app = parser.app();
  const auto text = [&app](const char* flag, std::string& value, const char* type, const char* help) {
    app.add_option(flag, value, help)->type_name(type);
  };
  text("--teacher", flags.teacher, "URL",
       "OpenAI-compatible server, http://host:8000/v1; its key is in $OPENAI_API_KEY");
  text("--teacher-model", flags.teacher_model, "NAME", "model of the server (default: the first that it lists)");
  text("--adapter", flags.adapter, "DIR", "adapter of a teacher that is a --model of this machine");
  add_allow_other_base(parser, flags.allow_other_base);
  text("--prompts", flags.prompts, "FILE", "rows with prompt or messages, or a .txt file with one prompt a line");
  text("--template", flags.row_template, "FILE", "Jinja template that makes the prompt of the fields of a row");
  text("--system", flags.system, "FILE", "system message that only the teacher sees");
  text("--student-system", flags.student_system, "FILE", "system message that the rows have");
  text("--output", flags.job.output, "FILE.jsonl", "the rows; the same command resumes from FILE.answers.jsonl");
  parser.add_integer("--samples", flags.job.samples, 1, 10000, "answers to each prompt, a row each (default 1)");
  text("--shard", flags.shard, "I/N", "ask part I of N of the prompts, I from 0");
  parser.add_list("--join", flags.join, "take the answers that shards wrote to this --output; repeatable")
      ->type_name("FILE.jsonl");
  app.add_flag("--raw", flags.job.is_raw, "continue texts instead of answering chats; rows have prompt and completion");
  parser.add_integer("--max-tokens,--max-new-tokens", flags.max_tokens, 1, kMaxNewTokens,
                     "tokens of an answer at most (default 1024)");
  parser.add_list("--stop", flags.stop, "end an answer before this text; repeatable")->type_name("TEXT");
  parser.add_integer("--concurrency", flags.ask.concurrency, 1, 1024, "requests at a time (default 8)");
  const auto rate = [&flags](const std::string& given) {
    const auto number = parse_number(given);
    flags.ask.requests_per_minute = number.value_or(0);
    return number && *number > 0 && *number <= 1e6;
  };
  parser.add_parsed("--requests-per-minute", rate, "a number above 0", "requests a minute at most")->type_name("X");
  const auto timeout = [&flags](const std::string& given) {
    const auto number = parse_number(given);
    flags.timeout_s = number.value_or(0);
    return number && *number > 0 && *number <= 1e6;
  };
  parser.add_parsed("--timeout", timeout, "seconds above 0", "how long a request waits for the server (default 600)")
      ->type_name("SECONDS");
  parser.add_integer("--logprobs", flags.top_logprobs, 1, 100,
                     "keep the log-probabilities of tokens and of so many alternatives");
  parser.add_integer("--max-failures", flags.max_failures, 0, kMaxCount,
                     "end well with so many prompts unanswered (default 0)");
  add_number(parser, "--price-in", flags.prices.prompt, "USD per million prompt tokens, for the cost");
  add_number(parser, "--price-out", flags.prices.completion, "USD per million answer tokens");
}

void add_filter_flags(CommandParser& parser, TeachFlags& flags) {
  CLI::App& app = parser.app();
  teach::FilterOptions& filters = flags.filters;
  const auto chars = [&parser](const char* flag, std::optional<std::int64_t>& value, const char* help) {
    const auto read = [&value](const std::string& text) {
      value = parse_integer(text);
      return value && *value >= 0;
    };
    parser.add_parsed(flag, read, "a whole number of 0 or more", help)->type_name("N");
  };
  app.add_flag("--drop-cut", filters.drop_cut, "filter: no answers that reached --max-tokens");
  chars("--min-chars", filters.min_chars, "filter: no answers with fewer characters");
  chars("--max-chars", filters.max_chars, "filter: no answers with more characters");
  app.add_option("--keep-matching", filters.keep_matching, "filter: only answers that match")->type_name("REGEX");
  app.add_option("--drop-matching", filters.drop_matching, "filter: no answers that match")->type_name("REGEX");
  app.add_option("--json-schema", filters.json_schema, "filter: only answers that are JSON of this schema")
      ->type_name("FILE");
  app.add_flag("--drop-refusals", flags.drop_refusals,
               "filter: no answers that begin as refusals do (\"I'm sorry, but\")");
  app.add_option("--refusal-phrases", flags.refusal_file, "filter: the same with the lines of a file")
      ->type_name("FILE");
  parser.add_integer("--agree", filters.agree, 2, kMaxCount,
                     "filter: of --samples, those that agree, if there are so many");
  app.add_option("--agree-on", filters.agree_on, "what has to agree (default: the whole answer)")->type_name("REGEX");
  app.add_flag("--drop-duplicates", filters.drop_duplicates, "filter: no answer twice to one prompt");
}

void parse_shard(const CommandParser& parser, TeachFlags& flags) {
  if (flags.shard.empty()) return;
  const auto slash = flags.shard.find('/');
  const auto part = slash == std::string::npos ? std::nullopt : parse_integer(flags.shard.substr(0, slash));
  const auto whole = slash == std::string::npos ? std::nullopt : parse_integer(flags.shard.substr(slash + 1));
  if (!part || !whole || *whole < 1 || *part < 0 || *part >= *whole)
    parser.refuse("--shard", "got " + flags.shard + ", expected I/N with I from 0 to N - 1, such as 0/4.");
  flags.job.shard = *part;
  flags.job.num_shards = *whole;
}

/// The text of a file that a flag names, without the line end at its end.
std::string text_of_file(const CommandParser& parser, const char* flag, const std::string& file) {
  if (file.empty()) return {};
  std::string text = read_file(file);
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  if (find_invalid_utf8(text)) parser.refuse(flag, file + " is not UTF-8.");
  if (is_blank(text)) parser.refuse(flag, file + " is empty.");
  return text;
}

void check_flags(const CommandParser& parser, TeachFlags& flags, bool has_model) {
  if (flags.prompts.empty()) parser.refuse("--prompts", "missing; expected a file of prompts.");
  if (flags.job.output.empty()) parser.refuse("--output", "missing; expected the file to write.");
  parser.refuse_special_file("--output", flags.job.output);
  if (flags.teacher.empty() && !has_model)
    parser.refuse("--teacher", "missing; expected a server (--teacher http://host:8000/v1), or --model DIR.");
  if (!flags.teacher.empty() && has_model)
    parser.refuse("--teacher", "give a server or a --model of this machine, not both.");
  if (!flags.teacher.empty() && !flags.teacher.starts_with("http://") && !flags.teacher.starts_with("https://"))
    parser.refuse("--teacher",
                  "got " + flags.teacher + ", expected a URL such as http://host:8000/v1; a folder is --model DIR.");
  if (flags.teacher.empty() && flags.top_logprobs > 0)
    parser.refuse("--logprobs", "needs a --teacher that is a server.");
  if (flags.filters.agree > flags.job.samples) parser.refuse("--agree", "needs as many --samples.");
  if (!flags.filters.agree_on.empty() && flags.filters.agree == 0) parser.refuse("--agree-on", "needs --agree N.");
  if (flags.job.is_raw && !(flags.system.empty() && flags.student_system.empty()))
    parser.refuse("--raw", "cannot be combined with --system and --student-system, which are messages of chats.");
  parse_shard(parser, flags);
  flags.job.system = text_of_file(parser, "--system", flags.system);
  flags.job.student_system = text_of_file(parser, "--student-system", flags.student_system);
  if (flags.drop_refusals) flags.filters.refusal_phrases = teach::usual_refusals();
  const std::string phrases = text_of_file(parser, "--refusal-phrases", flags.refusal_file);
  for (std::size_t begin = 0; begin < phrases.size();) {
    const std::size_t end = std::min(phrases.find('\n', begin), phrases.size());
    flags.filters.refusal_phrases.push_back(phrases.substr(begin, end - begin));
    begin = end + 1;
  }
}

/// What decides the answers, whoever gives them.
void add_settings(const TeachFlags& flags, const SamplingOptions& sampling, GenerationSettings& settings) {
  const GenerationSettings of_sampling = sampling_settings(sampling);
  settings.insert(settings.end(), of_sampling.begin(), of_sampling.end());
  settings.insert(settings.end(), {{"system_hash", Json(hash128_hex(flags.job.system)).dump()},
                                   {"samples", Json(flags.job.samples).dump()},
                                   {"raw", Json(flags.job.is_raw).dump()},
                                   {"max_tokens", Json(flags.max_tokens).dump()},
                                   {"stop", Json(flags.stop).dump(-1, ' ', false, Json::error_handler_t::replace)},
                                   {"logprobs", Json(flags.top_logprobs).dump()}});
}

class TeachRun {
 public:
  TeachRun(const CommandParser& parser, const TeachFlags& flags)
      : flags_(flags), json_(parser.common().json), quiet_(parser.common().quiet), filters_(flags.filters) {}

  /// Asks by `ask`, which gets the job and its progress, and writes the rows. Returns the exit code.
  template <typename Ask>
  int operator()(const SamplingOptions& sampling, GenerationSettings settings, Ask ask) {
    add_settings(flags_, sampling, settings);
    TeachOptions options = flags_.job;
    options.seed = sampling.seed;
    const std::string row_template = flags_.row_template.empty() ? "" : read_file(flags_.row_template);
    TeachJob job(options, data::read_questions(flags_.prompts, row_template), settings);
    for (const std::string& output : flags_.join) job.join(output);
    const std::size_t num_open = job.open().size();
    if (num_open < job.num_wanted() && num_open > 0)
      log_info(flags_.job.output + ": " + format_count(static_cast<long long>(job.num_wanted() - num_open)) + " of " +
               count_of(static_cast<long long>(job.num_wanted()), "answer") + " are already there; resuming");
    TeachProgress progress(num_open, flags_.prices, quiet_);
    try {
      questions_ = ask(job, progress);
      rows_ = job.write_rows(filters_);
    } catch (const StopError& stop) {
      log_warning("stopped by " + stop.where() + " after " + format_count(progress.totals().answers) + " of " +
                  count_of(static_cast<long long>(num_open), "answer") + "; run the same command to resume");
      return static_cast<int>(ExitCode::kStopped);
    }
    report(progress.totals());
    refuse_open_questions();
    return 0;
  }

 private:
  void report(const TeachTotals& totals) const {
    for (const teach::FilterCount& count : rows_.dropped)
      log_warning(count_of(count.count, "answer") + " dropped: " + count.reason + "; first: " + count.first_source);
    if (rows_.num_cut > 0 && !flags_.filters.drop_cut)
      log_warning(count_of(rows_.num_cut, "answer") + " reached --max-tokens " + std::to_string(flags_.max_tokens) +
                  " and may end in the middle; --drop-cut leaves them out");
    std::string line = "asked: " + count_of(totals.answers, "answer") + " in " + format_duration(totals.seconds) +
                       " (" + string_printf("%.1f", 60 * static_cast<double>(totals.answers) / totals.seconds) +
                       " a minute), " + format_count(totals.prompt_tokens) + " prompt and " +
                       format_count(totals.completion_tokens) + " answer tokens";
    if (totals.cost_usd) line += string_printf(", %.4f USD", *totals.cost_usd);
    if (totals.answers > 0) log_info(line);
    log_info(flags_.job.output + ": " + count_of(rows_.num_rows, "row") + " of " +
             count_of(rows_.num_answers, "answer"));
    if (!json_) return;
    Json dropped = Json::object();
    for (const teach::FilterCount& count : rows_.dropped) dropped[count.reason] = count.count;
    print_line(to_line({{"output", flags_.job.output},
                        {"rows", rows_.num_rows},
                        {"answers", rows_.num_answers},
                        {"asked", totals.answers},
                        {"unanswered", questions_.count()},
                        {"cut", rows_.num_cut},
                        {"dropped", dropped},
                        {"prompt_tokens", totals.prompt_tokens},
                        {"completion_tokens", totals.completion_tokens},
                        {"seconds", totals.seconds},
                        {"cost_usd", or_null(totals.cost_usd)}}));
  }

  void refuse_open_questions() const {
    const std::int64_t count = questions_.count();
    if (count == 0) return;
    std::string text = count_of(count, "question") + " without an answer";
    if (questions_.refused > 0)
      text += "; " + std::to_string(questions_.refused) + " refused, first: " + questions_.first_refused;
    if (questions_.failed > 0)
      text += "; " + std::to_string(questions_.failed) + " failed, first: " + questions_.first_failed;
    if (count <= flags_.max_failures) return log_warning(text);
    throw IoError(flags_.job.output,
                  text + ". Run the same command to ask again; --max-failures N ends well with N of them");
  }

  const TeachFlags& flags_;
  bool json_, quiet_;
  teach::Filters filters_;
  OpenQuestions questions_;
  TeachJob::Rows rows_;
};

int teach_by_server(const CommandParser& parser, const TeachFlags& flags, const SamplingOptions& sampling) {
  const char* const key = std::getenv("OPENAI_API_KEY");
  teach::TeacherOptions options{flags.teacher, key == nullptr ? "" : key, flags.teacher_model, flags.job.is_raw,
                                sampling};
  options.max_tokens = flags.max_tokens;
  options.stop = flags.stop;
  options.top_logprobs = flags.top_logprobs;
  options.timeout_s = flags.timeout_s;
  TeachRun run(parser, flags);
  teach::Teacher teacher(options);
  log_info("teacher: " + teacher.model() + " at " + http::shown_url(flags.teacher));
  const GenerationSettings settings = {{"model", Json(repair_utf8(teacher.model())).dump()}};
  return run(sampling, settings,
             [&](TeachJob& job, TeachProgress& progress) { return ask_server(teacher, job, progress, flags.ask); });
}

int teach_by_model(const CommandParser& parser, TeachFlags& flags, const ProfileFlags& profile_flags,
                   const SamplingFlags& sampling_flags) {
  const LoadedProfile loaded = load_with_adapter(profile_flags, flags.adapter);
  const ModelFolders folders = open_model_folders(loaded.profile.model, flags.adapter, flags.allow_other_base);
  const SamplingOptions sampling = sampling_flags.options(parser, folders.model);
  const ModelTeacher teacher{loaded.profile, folders, sampling, flags.max_tokens, flags.stop};
  return TeachRun(parser, flags)(sampling,
                                 model_settings(loaded.profile.model, flags.adapter, folders, flags.job.is_raw),
                                 [&](TeachJob& job, TeachProgress& progress) {
                                   ask_model(teacher, job, progress);
                                   return OpenQuestions{};
                                 });
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
  TeachFlags flags;
  add_flags(parser, flags);
  add_filter_flags(parser, flags);
  if (!parser.parse(arguments)) return 0;
  const bool has_model = !profile_flags.is_empty() || !flags.adapter.empty();
  check_flags(parser, flags, has_model);
  if (has_model) return teach_by_model(parser, flags, profile_flags, sampling);
  return teach_by_server(parser, flags, sampling.options(parser, {}));
}

}  // namespace lora_train::app
