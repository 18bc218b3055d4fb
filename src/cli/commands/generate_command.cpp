// lora-train generate: text from a model and an adapter.
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "engine/engine_loader.h"
#include "flags/command_line.h"
#include "flags/generation_flags.h"
#include "flags/open_model.h"
#include "flags/profile_flags.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/data/encode/prompts.h"
#include "lora_train/report/progress_bar.h"
#include "lora_train/teach/generation_file.h"
#include "output/answers.h"
#include "output/standard_output.h"
#include "registry.h"

namespace lora_train::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct GenerateFlags {
  std::vector<std::string> prompts, stop_strings;
  std::string prompts_file, adapter, system, output;
  std::int64_t max_new_tokens = 256;
  bool raw = false, compare = false, allow_other_base = false;
};

void add_flags(CommandParser& parser, GenerateFlags& flags) {
  parser.add("--adapter", flags.adapter, "DIR",
             "PEFT folder, or output_dir of a run; without it the base model answers");
  add_allow_other_base(parser, flags.allow_other_base);
  parser.add_list("--prompt", flags.prompts, "TEXT", "prompt to answer; repeatable");
  parser.add("--prompts", flags.prompts_file, "FILE",
             "file of {\"prompt\": ...} or {\"messages\": [...]} examples, or .txt with one a line; - is stdin");
  parser.add("--system", flags.system, "TEXT", "system message for every chat");
  add_raw(parser, flags.raw);
  parser.add_integer("--max-new-tokens", flags.max_new_tokens, 1, kMaxNewTokens,
                     "maximum number of tokens per answer (default 256)");
  parser.add_list("--stop", flags.stop_strings, "TEXT", "end an answer before this text; repeatable");
  parser.add_flag("--compare", flags.compare, "answer with both the base and the adapter, side by side");
  parser.add("--output", flags.output, "FILE.jsonl",
             "write answers to this file instead of stdout; run the same command again to resume");
}

void check_flags(const CommandParser& parser, const GenerateFlags& flags) {
  if (flags.prompts.empty() == flags.prompts_file.empty()) {
    parser.refuse("--prompt", flags.prompts.empty() ? "missing; expected --prompt TEXT or --prompts FILE."
                                                    : "give --prompt or --prompts, not both.");
  }
  if (flags.compare && flags.adapter.empty()) parser.refuse("--compare", "needs --adapter to compare with the base.");
  if (flags.raw && !flags.system.empty()) parser.refuse("--system", "cannot be combined with --raw.");
  for (const auto& text : flags.prompts) check_text(parser, "--prompt", text);
  check_text(parser, "--system", flags.system);
  check_stop_strings(parser, flags.stop_strings);
}

std::vector<data::Prompt> collect_prompts(const GenerateFlags& flags, const lora::ModelFiles& files) {
  const data::PromptOptions options{files.tokenizer.get(), files.chat_template.get(), flags.raw, flags.system};
  const std::string& file = flags.prompts_file;
  if (!file.empty()) return data::read_prompts(file == "-" ? "/dev/stdin" : file, options);
  std::vector<data::Prompt> prompts;
  for (const auto& text : flags.prompts) {
    const std::string number = flags.prompts.size() == 1 ? "" : fmt::format(" {}", prompts.size() + 1);
    prompts.push_back(data::make_prompt(text, "--prompt" + number, options));
  }
  return prompts;
}

/// All settings that affect the answers.
teach::GenerationSettings settings_of(const ModelSection& section, const GenerateFlags& flags,
                                      const lora::ModelFiles& files, const SamplingOptions& sampling,
                                      const std::vector<std::int32_t>& stop_ids) {
  teach::GenerationSettings settings = model_settings(section, flags.adapter, files, flags.raw);
  const teach::GenerationSettings of_sampling = teach::sampling_settings(sampling);
  settings.insert(settings.end(), of_sampling.begin(), of_sampling.end());
  settings.insert(settings.end(),
                  {{"compare", Json(flags.compare).dump()},
                   {"raw", Json(flags.raw).dump()},
                   {"system", Json(repair_utf8(flags.system)).dump()},
                   {"max_new_tokens", Json(flags.max_new_tokens).dump()},
                   {"stop", Json(flags.stop_strings).dump(-1, ' ', false, Json::error_handler_t::replace)},
                   {"stop_ids", Json(stop_ids).dump()}});
  return settings;
}

/// The prompts for --compare, in groups: first each group for the base, with the ids that AnswerCollector expects.
std::vector<generate::Prompt> with_base(std::span<const generate::Prompt> prompts) {
  constexpr std::size_t kPromptsPerGroup = 64;
  std::vector<generate::Prompt> all;
  for (std::size_t begin = 0; begin < prompts.size(); begin += kPromptsPerGroup) {
    const auto group = prompts.subspan(begin, std::min(kPromptsPerGroup, prompts.size() - begin));
    for (const generate::Prompt& prompt : group) {
      all.push_back(prompt);
      all.back().id = ~prompt.id;
      all.back().adapter = generate::kNoAdapter;
    }
    all.insert(all.end(), group.begin(), group.end());
  }
  return all;
}

/// Ends the other ranks, which wait to hear that there is nothing to do, or what failed.
void end_ranks(const launch::World& world, const std::exception_ptr& failure = {}) {
  generate::AnswerSink none;
  load_engine().generate({.world = world, .failure = failure}, {}, none);
}

/// The unanswered prompts, and where their answers go.
class GenerateJob {
 public:
  GenerateJob(const CommandParser& parser, const GenerateFlags& flags, const Profile& profile,
              const lora::ModelFiles& files, const launch::World& world)
      : flags_(flags),
        files_(files),
        stop_ids_(tokenizer::stop_token_ids(*files.tokenizer, files.chat_template.get())),
        json_(parser.common().json),
        quiet_(parser.common().quiet || world.rank > 0),
        is_leader_(world.rank == 0) {
    request_.world = world;
    request_.profile = profile;
    request_.adapter = flags.adapter;
    prompts_ = collect_prompts(flags, files);
  }

  void prepare(const SamplingOptions& sampling) {
    std::vector<generate::Prompt> prompts = prompts_to_ask(prompts_, files_, sampling, flags_.max_new_tokens);
    if (is_leader_ && !flags_.output.empty()) open_file(sampling);
    if (file_) std::erase_if(prompts, [&](const auto& p) { return file_->is_done(static_cast<std::size_t>(p.id)); });
    num_asked_ = prompts.size();
    to_ask_ = flags_.compare ? with_base(prompts) : std::move(prompts);
  }

  int operator()() {
    if (to_ask_.empty()) {
      if (request_.world.size > 1) end_ranks(request_.world);
      file_->finish();
      log_info("{}: already complete, {} answers", flags_.output, format_count(prompts_.size()));
      return 0;
    }
    return generate();
  }

 private:
  void open_file(const SamplingOptions& sampling) {
    std::vector<std::string> given;
    for (const auto& prompt : prompts_) given.push_back(prompt.given);
    file_.emplace("generate", flags_.output, settings_of(request_.profile.model, flags_, files_, sampling, stop_ids_),
                  given);
    if (file_->num_done() > 0) {
      log_info(flags_.output + ": " + format_count(file_->num_done()) + " of " + format_count(prompts_.size()) +
               " answers are already there; resuming");
    }
  }

  bool streams() const {
    return prompts_.size() == 1 && !json_ && !flags_.compare && !file_ && ::isatty(STDOUT_FILENO) == 1;
  }

  AnswerCollector make_collector(AnswerPrinter& printer, report::CountProgress& progress) {
    AnswerCollector::Callbacks callbacks;
    callbacks.on_start = [&] { progress.start(); };
    callbacks.on_token = [&] { progress.count(0, 1); };
    if (streams()) callbacks.on_text = [](std::string_view text) { print_text(text); };
    callbacks.on_answers = [&](std::size_t index, const Answers& answers) {
      if (!is_leader_) return;
      if (file_) {
        file_->append(index, answer_to_json(prompts_[index], index, answers));
      } else if (streams()) {
        print_text("\n");
      } else {
        printer.add(index, answers);
      }
      ++num_answered_;
      progress.count(1, 0);
    };
    return {*files_.tokenizer, {stop_ids_, flags_.stop_strings}, std::move(callbacks)};
  }

  int generate() {
    AnswerPrinter printer(prompts_, json_);
    try {
      report::CountProgress progress("prompt", num_asked_, quiet_ || streams());
      AnswerCollector collector = make_collector(printer, progress);
      report_ = describe(load_engine().generate(request_, to_ask_, collector));
    } catch (const StopError& stop) {
      printer.finish();
      log_warning("stopped by {} after {} of {} answers{}", stop.where(), format_count(num_answered_),
                  format_count(num_asked_), file_ ? "; run the same command to resume" : "");
      return static_cast<int>(ExitCode::kStopped);
    } catch (...) {
      printer.finish();  // prints complete answers even after a failure
      throw;
    }
    if (file_) file_->finish();
    log_info(report_);
    return 0;
  }

  const GenerateFlags& flags_;
  const lora::ModelFiles& files_;
  std::vector<std::int32_t> stop_ids_;
  bool json_, quiet_, is_leader_;
  evaluate::GenerateRequest request_;
  std::vector<data::Prompt> prompts_;
  std::vector<generate::Prompt> to_ask_;
  std::size_t num_asked_ = 0;  ///< without those for the base
  std::optional<teach::GenerationFile> file_;
  std::size_t num_answered_ = 0;
  std::string report_;
};

}  // namespace

int run_generate(const std::vector<std::string>& arguments) {
  const launch::World world = launch::world_from(process_environment);
  keep_stop_requests(world.launcher != launch::Launcher::kNone);
  CommandParser parser("generate", "Answers prompts with a model, with or without an adapter.");
  const ProfileFlags profile_flags(parser, {kModelFlag});
  const SamplingFlags sampling(parser);
  GenerateFlags flags;
  add_flags(parser, flags);
  const RanksFlag ranks(parser, world, "split the prompts across N processes on this host, one per GPU");
  if (!parser.parse(arguments)) return 0;
  check_flags(parser, flags);
  const bool starts_ranks = ranks.starts_ranks();
  if (flags.prompts_file == "-" && (starts_ranks || world.size > 1)) {
    parser.refuse("--prompts", "- is stdin, which only one process can read: give several ranks a file.");
  }
  if (starts_ranks) return ranks.start("generate", arguments);
  std::optional<LoadedProfile> loaded;
  std::optional<lora::ModelFiles> files;
  std::optional<GenerateJob> run;
  try {
    loaded = load_with_adapter(profile_flags, flags.adapter);
    files = open_to_answer(loaded->profile.model, flags.adapter, flags.allow_other_base);
    flags.raw = takes_raw_prompts(parser, flags.raw, flags.system, *files);
    run.emplace(parser, flags, loaded->profile, *files, world);
    run->prepare(sampling.options(parser, files->resolved.folder));
  } catch (...) {
    if (world.size == 1) throw;
    end_ranks(world, std::current_exception());
    throw;
  }
  return (*run)();
}

}  // namespace lora_train::cli
