// lora-train verify: does a server use an adapter?
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/engine_loader.h"
#include "flags/command_line.h"
#include "flags/generation_flags.h"
#include "flags/open_model.h"
#include "flags/profile_flags.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/data/encode/prompts.h"
#include "lora_train/teach/verify.h"
#include "output/standard_output.h"
#include "registry.h"

namespace lora_train::cli {
namespace {

constexpr std::size_t kMaxPrompts = 32;
constexpr std::int64_t kAnswerTokens = 32;  // of an answer
constexpr const char* kQuestions[] = {"What is the capital of France?", "Tell me a story about a dog.",
                                      "Why is the sky blue?",           "What is 17 + 25?",
                                      "Translate to German: good day.", "How do I sleep well?",
                                      "Sort these words: pear, fig.",   "Who are you?"};

struct VerifyFlags {
  std::string server, adapter, served_model, prompts;
  bool allow_other_base = false, raw = false;
};

/// The prompts, and what a server is asked about them, still without the adapter's answers.
std::pair<std::vector<generate::Prompt>, std::vector<teach::Continuation>> prompts_of(const VerifyFlags& flags,
                                                                                      const lora::ModelFiles& files) {
  const data::PromptOptions options{files.tokenizer.get(), files.chat_template.get(), flags.raw, ""};
  std::vector<data::Prompt> read;
  if (!flags.prompts.empty()) {
    read = data::read_prompts(flags.prompts, options);
  } else {
    for (const char* const text : kQuestions) read.push_back(data::make_prompt(text, text, options));
  }
  if (read.size() > kMaxPrompts) log_info("asking the first {} of {} prompts", kMaxPrompts, read.size());
  read.resize(std::min(read.size(), kMaxPrompts));
  std::vector<generate::Prompt> prompts = prompts_to_ask(read, files, {}, kAnswerTokens);
  std::vector<teach::Continuation> asked;
  for (std::size_t i = 0; i < read.size(); ++i) {
    asked.push_back({.prompt = read[i].ids, .max_tokens = prompts[i].max_new_tokens});
    auto given = nlohmann::ordered_json::parse(read[i].given);
    if (given.is_string()) given = {{{"role", "user"}, {"content", given}}};
    if (!flags.raw) asked[i].messages = given.dump();
  }
  return {std::move(prompts), std::move(asked)};
}

/// Sets what the adapter was trained with, unless a flag does. Other tools do not tell.
void set_precision(const lora::ModelFiles& files, LoadedProfile& loaded) {
  if (loaded.origin.at("precision") != "default" || loaded.origin.at("base_precision") != "default") return;
  const lora::TrainedWith& trained = files.trained_with;
  ModelSection& section = loaded.profile.model;
  section.precision =
      trained.precision.value_or(files.config.torch_dtype == "float32" ? Precision::kFp32 : Precision::kBf16);
  section.base_precision = trained.base_precision.value_or(section.base_precision);
  section.double_quant = trained.double_quant;
}

/// Lets our model answer with the adapter, asks the server, and then computes our own log-probabilities: each is read
/// from the logits of a turn of one token, with the adapter and without.
class Verification : public generate::PromptQueue {
 public:
  Verification(std::vector<generate::Prompt> prompts, std::vector<teach::Continuation> asked,
               teach::ServerModel& server)
      : turns_(std::move(prompts)), asked_(std::move(asked)), server_(server) {}

  std::optional<generate::Prompt> next(bool /*may_wait*/) override {
    throw_if_stop_requested();
    if (at_ == turns_.size() && served_.empty()) ask_server();
    return at_ < turns_.size() ? std::optional(turns_[at_++]) : std::nullopt;
  }
  bool on_token(std::int64_t id, const generate::Token& token) override {
    if (served_.empty()) asked_[static_cast<std::size_t>(id)].tokens.push_back(token.id);
    return true;
  }
  bool wants_logits() const override { return true; }
  void on_logits(std::int64_t id, std::span<const float> logits) override {
    if (served_.empty()) return;
    if (id >= std::ssize(logits)) throw IoError(server_.name(), "names token {}, which the base does not have", id);
    const double largest = *std::ranges::max_element(logits);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit - largest);
    const generate::Prompt& turn = turns_[at_ - 1];
    (turn.adapter ? of_base_ : with_adapter_)[static_cast<std::size_t>(turn.index)].push_back(
        logits[static_cast<std::size_t>(id)] - largest - std::log(sum));
  }

  teach::Comparison compare() const { return teach::compare(served_, with_adapter_, of_base_); }

 private:
  void ask_server() {
    for (const teach::Continuation& asked : asked_) served_.push_back(server_.ask(asked));
    with_adapter_.resize(served_.size());
    of_base_.resize(served_.size());
    at_ = 0;
    turns_.clear();
    for (const auto adapter : {std::optional<std::int64_t>(), std::optional(generate::kNoAdapter)}) {
      for (std::size_t i = 0; i < served_.size(); ++i) {
        std::vector<std::int32_t> ids = asked_[i].prompt;
        for (const std::int32_t id : served_[i].ids) {
          turns_.push_back(
              {.ids = ids, .index = static_cast<std::int64_t>(i), .max_new_tokens = 1, .id = id, .adapter = adapter});
          ids.push_back(id);
        }
      }
    }
    if (turns_.empty()) {
      throw IoError(server_.name(),
                    "the server gives no log-probability of any token asked for ({}); expected logprobs, as vLLM, "
                    "llama.cpp and lora-train serve give them",
                    server_.problem());
    }
  }

  std::vector<generate::Prompt> turns_;
  std::size_t at_ = 0;
  std::vector<teach::Continuation> asked_;
  teach::ServerModel& server_;
  std::vector<teach::ServedTokens> served_;
  std::vector<std::vector<double>> with_adapter_, of_base_;
};

int report(const teach::Comparison& result, const std::string& name, bool as_json) {
  const std::string who = result.verdict == "neither" ? "neither adapter nor base" : "the " + result.verdict;
  print_json_or_text(as_json,
                     {{"verdict", result.verdict},
                      {"max_gap", result.max_gap},
                      {"gap_to_base", result.gap_to_base},
                      {"num_tokens", result.num_tokens},
                      {"gap_to_adapter", result.gap_to_adapter},
                      {"num_left_out", result.num_left_out}},
                     fmt::format("{} answers as {}: log-probabilities differ from base + adapter by {:.4f} per token "
                                 "(at most {:.4f}), from the base by {:.4f}; {} tokens, {} left out",
                                 name, who, result.gap_to_adapter, result.max_gap, result.gap_to_base,
                                 result.num_tokens, result.num_left_out));
  if (result.verdict == "adapter") return 0;
  const char* advice = "the server may use another adapter, another or a quantised base, or another chat template";
  if (result.verdict == "base")
    advice =
        "the server does not use the adapter. vLLM: --enable-lora --lora-modules NAME=DIR, then NAME as \"model\" "
        "of requests and as --served-model; llama.cpp: --lora FILE";
  if (!result.can_tell)
    advice =
        "cannot tell: on these texts the adapter is within 0.02 per token of its base. Pass texts like those that "
        "it was trained on: --prompts FILE";
  log_warning("{}", advice);
  return static_cast<int>(ExitCode::kFormat);
}

}  // namespace

int run_verify(const std::vector<std::string>& arguments) {
  keep_stop_requests();
  CommandParser parser("verify",
                       "Says whether a server uses an adapter: compares its log-probabilities with our own of the base "
                       "and of base + adapter. Exit code 0 if it does, 4 if not.");
  const ProfileFlags profile_flags(parser, {kModelFlag});
  VerifyFlags flags;
  parser.add("--server", flags.server, "URL",
             "OpenAI-compatible server, http://host:8000/v1; its key is in $OPENAI_API_KEY");
  parser.add("--adapter", flags.adapter, "DIR", "PEFT folder, or output_dir of a run");
  add_allow_other_base(parser, flags.allow_other_base);
  parser.add("--served-model", flags.served_model, "NAME",
             "the server's name of it (default: the adapter's or its run's, or the only one)");
  parser.add("--prompts", flags.prompts, "FILE", "prompts, as for generate (default: eight short questions)");
  add_raw(parser, flags.raw);
  if (!parser.parse(arguments)) return 0;
  if (!flags.server.starts_with("http://") && !flags.server.starts_with("https://"))
    parser.refuse("--server", fmt::format("got \"{}\"; expected a URL such as http://host:8000.", flags.server));
  if (flags.adapter.empty()) parser.refuse("--adapter", "missing; expected the adapter that the server should use.");
  std::string adapter = flags.adapter;
  LoadedProfile loaded = load_with_adapter(profile_flags, adapter);
  const lora::ModelFiles files = open_to_answer(loaded.profile.model, adapter, flags.allow_other_base);
  flags.raw = takes_raw_prompts(parser, flags.raw, "", files);
  set_precision(files, loaded);
  auto [prompts, asked] = prompts_of(flags, files);
  teach::ServerModel server(flags.server, flags.served_model, {name_of_run(adapter), flags.adapter}, *files.tokenizer);
  Verification verification(std::move(prompts), std::move(asked), server);
  load_engine().answer_turns({.profile = loaded.profile, .adapter = adapter}, verification);
  return report(verification.compare(), server.name(), parser.common().json);
}

}  // namespace lora_train::cli
