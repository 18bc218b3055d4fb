// lora-train chat: a conversation with a model, with or without an adapter.
#include "chat/chat_session.h"
#include "chat/line_reader.h"
#include "engine/engine_loader.h"
#include "flags/command_line.h"
#include "flags/generation_flags.h"
#include "flags/open_model.h"
#include "flags/profile_flags.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "output/answers.h"
#include "registry.h"

namespace lora_train::cli {
namespace {

struct ChatFlags {
  std::string adapter, system;
  std::vector<std::string> stop_strings;
  std::int64_t max_new_tokens = 1024;
  bool allow_other_base = false, raw = false;
};

void add_chat_flags(CommandParser& parser, ChatFlags& flags) {
  parser.add("--adapter", flags.adapter, "DIR",
             "PEFT folder, or output_dir of a run; without it the base model answers");
  add_allow_other_base(parser, flags.allow_other_base);
  parser.add("--system", flags.system, "TEXT", "system message of the conversation; /system changes it");
  add_raw(parser, flags.raw);
  parser.add_integer("--max-new-tokens", flags.max_new_tokens, 1, kMaxNewTokens,
                     "maximum number of tokens per answer (default 1024)");
  parser.add_list("--stop", flags.stop_strings, "TEXT", "end an answer before this text; repeatable");
}

std::string greeting(const Profile& profile, const ChatFlags& flags) {
  const std::string who = flags.adapter.empty() ? "." : fmt::format(" with the adapter {}.", flags.adapter);
  return fmt::format("Model {}{}{} /help lists commands; Ctrl-D ends.", profile.model.path, who,
                     flags.raw ? " Each message stands for itself, without the chat template." : "");
}

const tokenizer::ChatTemplate& template_of(const lora::ModelFiles& files) {
  if (files.chat_template) return *files.chat_template;
  throw FormatError(
      "chat_template",
      "the model folder has none, and a chat needs one: --chat-template chatml, or another name or file; or "
      "--raw");
}

}  // namespace

int run_chat(const std::vector<std::string>& arguments) {
  keep_stop_requests();
  CommandParser parser("chat", "Talks to a model, with or without an adapter. In the chat, /help lists the commands.");
  const ProfileFlags profile_flags(parser, {kModelFlag, kTemplateFlag});
  const SamplingFlags sampling(parser);
  ChatFlags flags;
  add_chat_flags(parser, flags);
  if (!parser.parse(arguments)) return 0;
  check_text(parser, "--system", flags.system);
  check_stop_strings(parser, flags.stop_strings);
  const LoadedProfile loaded = load_with_adapter(profile_flags, flags.adapter);
  const Profile& profile = loaded.profile;
  const lora::ModelFiles files = open_to_answer(profile.model, flags.adapter, flags.allow_other_base);

  flags.raw = takes_raw_prompts(parser, flags.raw, flags.system, files);
  const auto* const chat_template = flags.raw ? files.chat_template.get() : &template_of(files);
  const std::vector<std::int32_t> stop_ids = tokenizer::stop_token_ids(*files.tokenizer, chat_template);
  const SamplingOptions options = sampling.options(parser, files.resolved.folder);
  Dialogue dialogue(*files.tokenizer, flags.raw ? nullptr : chat_template, files.config.supported_length());
  if (!flags.system.empty()) dialogue.set_system(flags.system, "--system");
  const std::unique_ptr<LineReader> lines = open_lines();
  ChatSession session(*lines, dialogue, *files.tokenizer,
                      {.answers = {stop_ids, flags.stop_strings},
                       .sampling = options,
                       .max_new_tokens = flags.max_new_tokens,
                       .has_adapter = !flags.adapter.empty(),
                       .json = parser.common().json,
                       .greeting = greeting(profile, flags)});
  log_totals([&] { return load_engine().answer_turns({.profile = profile, .adapter = flags.adapter}, session); });
  return 0;
}

}  // namespace lora_train::cli
