#include "generation_flags.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/storage/model_file.h"
#include "lora_train/storage/model_weights.h"
#include "lora_train/storage/run_names.h"

namespace lora_train::cli {
namespace {

using nlohmann::json;

/// Keys that change the generated text, with the value that does not.
constexpr std::pair<const char*, double> kRefused[] = {
    {"repetition_penalty", 1}, {"num_beams", 1},         {"typical_p", 1},      {"no_repeat_ngram_size", 0},
    {"penalty_alpha", 0},      {"diversity_penalty", 0}, {"epsilon_cutoff", 0}, {"eta_cutoff", 0}};

/// generation_config.json. transformers samples only if the file says so, with defaults 1.0, 1.0 and 50.
SamplingOptions read_generation_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / storage::kGenerationFile;
  if (!std::filesystem::exists(path)) {
    throw ConfigError("--generation-config", "there is no {}. Leave the flag out: greedy is the default.",
                      path.string());
  }
  const json file = json::parse(storage::read_model_text(path), nullptr, /*allow_exceptions=*/false);
  if (!file.is_object()) throw FormatError(path.string(), "is not a JSON object");
  const auto refuse = [&](const std::string& key, const std::string& expected) {
    throw FormatError(fmt::format("{}: {}", path.string(), key), "is {}; expected {}",
                      file[key].dump(-1, ' ', true, json::error_handler_t::replace), expected);
  };
  const auto number = [&](const char* key) -> std::optional<double> {
    const json value = file.value(key, json());
    if (value.is_null()) return std::nullopt;
    if (!value.is_number()) refuse(key, "a number");
    return value.get<double>();
  };
  for (const auto& [key, neutral] : kRefused) {
    if (number(key).value_or(neutral) == neutral) continue;
    throw ConfigError("--generation-config",
                      "{} asks for {}: {}, which is not supported. Leave the flag out, and give --temperature, --top-p "
                      "and --top-k instead.",
                      path.string(), key, file[key].dump());
  }
  const json samples = file.value("do_sample", json());
  if (!samples.is_null() && !samples.is_boolean()) refuse("do_sample", "true or false");
  if (samples != true) return {};
  SamplingOptions options{.temperature = 1, .top_k = 50};
  for_each_sampling_option([&](const char* key, auto member, const SamplingRange& range) {
    const auto value = number(key);
    if (value && !range.holds(*value)) refuse(key, range.expected);
    if (value) options.*member = static_cast<std::remove_reference_t<decltype(options.*member)>>(*value);
  });
  return options;
}

using Json = nlohmann::ordered_json;

std::string hash_of_adapter(const std::filesystem::path& adapter) {
  std::string hashes;
  for (const char* name : {storage::kAdapterConfigFile, storage::kAdapterFile}) {
    if (std::filesystem::exists(adapter / name)) hashes += hash_file(adapter / name).hash;
  }
  return hash128_hex(hashes);
}

}  // namespace

SamplingFlags::SamplingFlags(CommandParser& parser) {
  const auto add = [&](const char* flag, auto& value, const char* type, const SamplingRange& range, const char* help) {
    parser.add_number(flag, value, type, range.holds, range.expected, help);
  };
  add("--temperature", temperature_, "T", kTemperatureRange,
      "0 takes the most likely token (default); above 0, tokens are sampled");
  add("--top-p", top_p_, "P", kTopPRange, "sample from the most likely tokens whose probabilities add up to P");
  add("--top-k", top_k_, "K", kTopKRange, "sample from the K most likely tokens; 0 = all");
  add("--min-p", min_p_, "P", kMinPRange, "sample from tokens with at least P times the largest probability");
  parser.add_integer("--seed", seed_, 0, std::numeric_limits<std::int64_t>::max(),
                     "seed for sampling (default 42): the same seed gives the same text");
  parser.add_flag(
      "--generation-config", use_generation_config_,
      "take temperature, top-p, top-k and min-p from the model's generation_config.json unless a flag sets them");
}

SamplingOptions SamplingFlags::options(const CommandParser& parser, const std::filesystem::path& model_folder) const {
  SamplingOptions options;
  if (use_generation_config_) options = read_generation_config(model_folder);
  options.temperature = temperature_.value_or(options.temperature);
  options.top_p = top_p_.value_or(options.top_p);
  options.top_k = top_k_.value_or(options.top_k);
  options.min_p = min_p_.value_or(options.min_p);
  options.seed = seed_;
  if (options.temperature == 0) {
    const std::string why =
        "has no effect at temperature 0, which takes the most likely token. Give --temperature too.";
    if (top_p_) parser.refuse("--top-p", why);
    if (top_k_) parser.refuse("--top-k", why);
    if (min_p_) parser.refuse("--min-p", why);
  }
  return options;
}

void check_text(const CommandParser& parser, const char* flag, const std::string& text) {
  if (const auto at = find_invalid_utf8(text)) {
    parser.refuse(flag, fmt::format("is not UTF-8 at byte {}.", *at + 1));
  }
}

void check_stop_strings(const CommandParser& parser, const std::vector<std::string>& texts) {
  for (const auto& text : texts) {
    check_text(parser, "--stop", text);
    if (text.empty()) parser.refuse("--stop", "must not be empty.");
  }
}

std::vector<generate::Prompt> prompts_to_ask(const std::vector<data::Prompt>& given, const lora::ModelFiles& files,
                                             const SamplingOptions& sampling, std::int64_t max_new_tokens) {
  const std::int64_t context = files.config.context_length();
  const auto stop_ids = tokenizer::stop_token_ids(*files.tokenizer, files.chat_template.get());
  std::vector<generate::Prompt> prompts;
  std::size_t num_short = 0;
  for (const auto& [source, text, ids] : given) {
    const std::int64_t room = context - std::ssize(ids);
    if (room <= 0) {
      throw DataError(source,
                      "the prompt has {} tokens and leaves no room for an answer: the model's context "
                      "(max_position_embeddings) is {}. Shorten or remove it",
                      format_count(std::ssize(ids)), format_count(context));
    }
    const std::int64_t place = std::ssize(prompts);
    prompts.push_back({ids, place, std::min(max_new_tokens, room), source, place, sampling, stop_ids});
    num_short += room < max_new_tokens ? 1 : 0;
  }
  if (num_short > 0) {
    log_warning("{} of {} prompts leave room for fewer than {} tokens in the context of {}", format_count(num_short),
                format_count(prompts.size()), format_count(max_new_tokens), format_count(context));
  }
  return prompts;
}

teach::GenerationSettings model_settings(const ModelSection& section, const std::string& adapter,
                                         const lora::ModelFiles& files, bool is_raw) {
  const std::string model =
      hash128_hex(hash_file(files.config.path).hash + storage::open_model_weights(files.resolved.folder).fingerprint());
  const auto text = [](const std::string& value) { return Json(repair_utf8(value)).dump(); };
  const bool is_chat = !is_raw && files.chat_template != nullptr;
  const std::string& day = section.template_date.empty() ? files.trained_with.template_date : section.template_date;
  return {{"model", text(section.path)},
          {"model_fingerprint", text(model)},
          {"tokenizer_fingerprint", text(files.tokenizer->fingerprint())},
          {"adapter", adapter.empty() ? "null" : text(adapter)},
          {"adapter_fingerprint", adapter.empty() ? "null" : text(hash_of_adapter(files.adapter))},
          {"precision", text(to_string(section.precision))},
          {"chat_template_fingerprint", is_chat ? text(files.chat_template->fingerprint()) : "null"},
          {"template_date", is_chat && !day.empty() ? text(day) : "null"}};
}

}  // namespace lora_train::cli
