// The flags that decide what a teacher is asked, and which answers become rows.
#pragma once

#include <string>
#include <vector>

#include "ask_server.h"
#include "commands/command_line.h"
#include "lora_train/config/sampling.h"
#include "lora_train/teach/filters.h"
#include "output/generation_file.h"
#include "teach_job.h"

namespace lora_train::cli {

struct TeachFlags {
  std::string teacher_model, refusal_file;
  std::vector<std::string> stop;
  TeachOptions job;
  teach::FilterOptions filters;
  AskOptions ask;
  TokenPrices prices;
  std::int64_t max_tokens = 1024, top_logprobs = 0, max_failures = 0;
  double timeout_s = 600;
  bool drop_refusals = false;
};

/// Adds them to a command; `flags` must outlive its parsing.
void add_asking_flags(CommandParser& parser, TeachFlags& flags);
void add_filter_flags(CommandParser& parser, TeachFlags& flags);

/// After parsing: what one flag says of another, and the phrases of --refusal-phrases.
void finish_teach_flags(const CommandParser& parser, TeachFlags& flags);

/// The text of a file that a flag or key names, without the line end at its end; empty for no file. Refuses an empty one.
std::string text_of_file(const CommandParser& parser, const char* flag, const std::string& file);

/// What the flags decide of the answers, whoever gives them.
GenerationSettings teach_settings(const TeachFlags& flags, const SamplingOptions& sampling);

}  // namespace lora_train::cli
