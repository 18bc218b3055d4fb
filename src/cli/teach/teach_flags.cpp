#include "teach_flags.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "commands/answer_request.h"
#include "commands/sampling_flags.h"
#include "lora_train/base/file.h"
#include "lora_train/base/hash.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"

namespace lora_train::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMaxCount = 1000000000;

void add_price(CommandParser& parser, const std::string& flag, std::optional<double>& value, const std::string& help) {
  const auto is_price = [](double number) { return number >= 0 && number <= 1e12; };
  parser.add_number(flag, value, is_price, "a number of 0 or more", help)->type_name("X");
}

}  // namespace

void add_asking_flags(CommandParser& parser, TeachFlags& flags) {
  parser.app()
      .add_option("--teacher-model", flags.teacher_model, "model of the server (default: the first that it lists)")
      ->type_name("NAME");
  parser.add_integer("--samples", flags.job.samples, 1, 10000, "answers to each prompt, a row each (default 1)");
  parser.add_integer("--max-tokens,--max-new-tokens", flags.max_tokens, 1, kMaxNewTokens,
                     "tokens of an answer at most (default 1024)");
  parser.add_list("--stop", flags.stop, "end an answer before this text; repeatable")->type_name("TEXT");
  parser.add_integer("--concurrency", flags.ask.concurrency, 1, 1024, "requests at a time (default 8)");
  const auto is_in_range = [](double number) { return number > 0 && number <= 1e6; };
  parser
      .add_number("--requests-per-minute", flags.ask.requests_per_minute, is_in_range, "a number above 0",
                  "requests a minute at most")
      ->type_name("X");
  parser
      .add_number("--timeout", flags.timeout_s, is_in_range, "seconds above 0",
                  "how long a request waits for the server (default 600)")
      ->type_name("SECONDS");
  parser.add_integer("--logprobs", flags.top_logprobs, 1, 100,
                     "keep the log-probabilities of tokens and of so many alternatives");
  parser.add_integer("--max-failures", flags.max_failures, 0, kMaxCount,
                     "end well with so many prompts unanswered (default 0)");
  add_price(parser, "--price-in", flags.prices.prompt, "USD per million prompt tokens, for the cost");
  add_price(parser, "--price-out", flags.prices.completion, "USD per million answer tokens");
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

void finish_teach_flags(const CommandParser& parser, TeachFlags& flags) {
  if (flags.filters.agree > flags.job.samples) parser.refuse("--agree", "needs as many --samples.");
  if (!flags.filters.agree_on.empty() && flags.filters.agree == 0) parser.refuse("--agree-on", "needs --agree N.");
  if (flags.drop_refusals) flags.filters.refusal_phrases = teach::usual_refusals();
  const std::string phrases = text_of_file(parser, "--refusal-phrases", flags.refusal_file);
  for (std::size_t begin = 0; begin < phrases.size();) {
    const std::size_t end = std::min(phrases.find('\n', begin), phrases.size());
    flags.filters.refusal_phrases.push_back(phrases.substr(begin, end - begin));
    begin = end + 1;
  }
}

std::string text_of_file(const CommandParser& parser, const char* flag, const std::string& file) {
  if (file.empty()) return {};
  std::string text = read_file(file);
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  if (find_invalid_utf8(text)) parser.refuse(flag, file + " is not UTF-8.");
  if (is_blank(text)) parser.refuse(flag, file + " is empty.");
  return text;
}

GenerationSettings teach_settings(const TeachFlags& flags, const SamplingOptions& sampling) {
  GenerationSettings settings = sampling_settings(sampling);
  settings.insert(settings.end(), {{"system_hash", Json(hash128_hex(flags.job.system)).dump()},
                                   {"samples", Json(flags.job.samples).dump()},
                                   {"raw", Json(flags.job.is_raw).dump()},
                                   {"max_tokens", Json(flags.max_tokens).dump()},
                                   {"stop", Json(flags.stop).dump(-1, ' ', false, Json::error_handler_t::replace)},
                                   {"logprobs", Json(flags.top_logprobs).dump()}});
  return settings;
}

}  // namespace lora_train::cli
