#include "teach_run.h"

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "commands/answer_request.h"
#include "commands/open_model.h"
#include "engine/engine_loader.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/config/keys/profile.h"
#include "lora_train/config/sampling.h"
#include "lora_train/hub/http/url.h"
#include "output/answers.h"
#include "teach_job.h"

namespace lora_train::cli {
namespace {

struct ModelTeacher {
  const Profile& profile;
  const ModelFolders& folders;
  SamplingOptions sampling;
  std::int64_t max_tokens;
  std::vector<std::string> stop;
};

/// Answers what the job has open. Throws StopError, and what the engine throws.
void ask_model(const ModelTeacher& teacher, TeachJob& job, TeachProgress& progress) {
  const std::vector<std::size_t> open = job.open();
  if (open.empty()) return;
  const ModelFolders& folders = teacher.folders;
  const data::PromptOptions options{folders.tokenizer.get(), folders.chat_template.get(), job.options().is_raw, ""};
  std::vector<data::Prompt> prompts;
  for (const std::size_t answer : open) {
    const teach::Question question = job.question(answer);
    prompts.push_back(
        job.options().is_raw
            ? data::make_prompt(nlohmann::json::parse(question.prompt).get<std::string>(), question.source, options)
            : data::make_prompt(data::ChatQuestion{question.source, question.prompt, question.tools}, options));
  }
  const std::vector<std::int64_t> lengths =
      answer_lengths(prompts, teacher.max_tokens, folders.config.context_length());
  evaluate::GenerateRequest request;
  request.profile = teacher.profile;
  request.adapter = folders.adapter;
  request.sampling = teacher.sampling;
  request.stop_ids = tokenizer::stop_token_ids(*folders.tokenizer, folders.chat_template.get());
  for (std::size_t i = 0; i < open.size(); ++i)
    request.prompts.push_back({prompts[i].ids, static_cast<std::int64_t>(open[i]), lengths[i], prompts[i].source});
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
  AnswerCollector collector(*folders.tokenizer, {request.stop_ids, teacher.stop, false}, std::move(callbacks));
  load_engine().generate(request, collector);
}

using Json = nlohmann::ordered_json;
using Ask = std::function<OpenQuestions(TeachJob&, TeachProgress&)>;

void report(const TeachFlags& flags, const TeachResult& result) {
  const auto& [code, totals, rows, open] = result;
  for (const teach::FilterCount& count : rows.dropped)
    log_warning(count_of(count.count, "answer") + " dropped: " + count.reason + "; first: " + count.first_source);
  if (rows.num_cut > 0 && !flags.filters.drop_cut) {
    log_warning(count_of(rows.num_cut, "answer") + " reached --max-tokens " + std::to_string(flags.max_tokens) +
                " and may end in the middle; --drop-cut leaves them out");
  }
  std::string line = "asked: " + count_of(totals.answers, "answer") + " in " + format_duration(totals.seconds) + " (" +
                     string_printf("%.1f", 60 * static_cast<double>(totals.answers) / totals.seconds) + " a minute), " +
                     format_count(totals.prompt_tokens) + " prompt and " + format_count(totals.completion_tokens) +
                     " answer tokens";
  if (totals.cost_usd) line += string_printf(", %.4f USD", *totals.cost_usd);
  if (totals.answers > 0) log_info(line);
  log_info(flags.job.output + ": " + count_of(rows.num_rows, "row") + " of " + count_of(rows.num_answers, "answer"));
}

void refuse_open_questions(const TeachFlags& flags, const OpenQuestions& open) {
  const std::int64_t count = open.count();
  if (count == 0) return;
  std::string text = count_of(count, "question") + " without an answer";
  if (open.refused > 0) text += "; " + std::to_string(open.refused) + " refused, first: " + open.first_refused;
  if (open.failed > 0) text += "; " + std::to_string(open.failed) + " failed, first: " + open.first_failed;
  if (count <= flags.max_failures) return log_warning(text);
  throw IoError(flags.job.output,
                text + ". Run the same command to ask again; --max-failures N ends well with N of them");
}

TeachResult teach_with(const TeachFlags& flags, const SamplingOptions& sampling, GenerationSettings settings,
                       const teach::Filters& filters, TeachInput input, bool is_quiet, const Ask& ask) {
  const GenerationSettings of_flags = teach_settings(flags, sampling);
  settings.insert(settings.end(), of_flags.begin(), of_flags.end());
  TeachOptions options = flags.job;
  options.seed = sampling.seed;
  TeachJob job(options, std::move(input.prompts), settings);
  for (const std::string& output : input.join) job.join(output);
  const std::size_t num_open = job.open().size();
  if (num_open < job.num_wanted() && num_open > 0) {
    log_info(flags.job.output + ": " + format_count(static_cast<long long>(job.num_wanted() - num_open)) + " of " +
             count_of(static_cast<long long>(job.num_wanted()), "answer") + " are already there; resuming");
  }
  if (num_open > 0 && input.before_asking) input.before_asking();
  TeachResult result;
  {
    TeachProgress progress(num_open, flags.prices, is_quiet);
    try {
      result.open = ask(job, progress);
      result.rows = job.write_rows(filters);
    } catch (const StopError& stop) {
      log_warning("stopped by " + stop.where() + " after " + format_count(progress.totals().answers) + " of " +
                  count_of(static_cast<long long>(num_open), "answer") + "; run the same command to resume");
      result.exit_code = static_cast<int>(ExitCode::kStopped);
      result.totals = progress.totals();
      return result;
    }
    result.totals = progress.totals();
  }
  report(flags, result);
  refuse_open_questions(flags, result.open);
  return result;
}

}  // namespace

TeachResult teach_by_server(const std::string& url, const TeachFlags& flags, const SamplingOptions& sampling,
                            TeachInput input, bool is_quiet) {
  const teach::Filters filters(flags.filters);  // before anything is asked
  const char* const key = std::getenv("OPENAI_API_KEY");
  teach::TeacherOptions options{url, key == nullptr ? "" : key, flags.teacher_model, flags.job.is_raw, sampling};
  if (options.model.empty()) options.model = model_of_answers(flags.job.output);
  if (options.model.empty() && input.before_asking) std::exchange(input.before_asking, nullptr)();
  options.max_tokens = flags.max_tokens;
  options.stop = flags.stop;
  options.top_logprobs = flags.top_logprobs;
  options.timeout_s = flags.timeout_s;
  teach::Teacher teacher(options);
  log_info("teacher: " + teacher.model() + " at " + hub::shown_url(url));
  const GenerationSettings settings = {{"model", Json(repair_utf8(teacher.model())).dump()}};
  return teach_with(
      flags, sampling, settings, filters, std::move(input), is_quiet,
      [&](TeachJob& job, TeachProgress& progress) { return ask_server(teacher, job, progress, flags.ask); });
}

TeachResult teach_by_model(const Profile& profile, const std::string& adapter, const ModelFolders& folders,
                           const TeachFlags& flags, const SamplingOptions& sampling, TeachInput input, bool is_quiet) {
  const ModelTeacher teacher{profile, folders, sampling, flags.max_tokens, flags.stop};
  return teach_with(flags, sampling, model_settings(profile.model, adapter, folders, flags.job.is_raw),
                    teach::Filters(flags.filters), std::move(input), is_quiet,
                    [&](TeachJob& job, TeachProgress& progress) {
                      ask_model(teacher, job, progress);
                      return OpenQuestions{};
                    });
}

}  // namespace lora_train::cli
