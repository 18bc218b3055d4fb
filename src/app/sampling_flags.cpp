#include "sampling_flags.h"

#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/storage/model_file.h"

namespace lora_train::app {
namespace {

using Json = nlohmann::json;

struct Refused {
  const char* key;
  double neutral;
};

/// Keys that change what is generated, and the value with which they do not.
constexpr Refused kRefused[] = {{"repetition_penalty", 1}, {"num_beams", 1},        {"typical_p", 1},
                                {"no_repeat_ngram_size", 0}, {"penalty_alpha", 0},    {"diversity_penalty", 0},
                                {"epsilon_cutoff", 0},       {"eta_cutoff", 0}};

class GenerationConfig {
 public:
  explicit GenerationConfig(const std::filesystem::path& folder) : path_(folder / "generation_config.json") {
    if (!std::filesystem::exists(path_)) {
      throw ConfigError("--generation-config", "there is no " + path_.string() + ". Leave the flag out: greedy is the default.");
    }
    json_ = Json::parse(storage::read_model_text(path_), nullptr, /*allow_exceptions=*/false);
    if (!json_.is_object()) throw FormatError(path_.string(), "is no JSON object");
    for (const Refused& refused : kRefused) {
      const auto value = number(refused.key);
      if (value && *value != refused.neutral) {
        throw ConfigError("--generation-config", path_.string() + " asks for " + refused.key + ": " +
                                                     json_[refused.key].dump() +
                                                     ", which is not built. Leave the flag out, and give --temperature, "
                                                     "--top-p and --top-k by themselves.");
      }
    }
  }

  std::optional<double> number(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end() || found->is_null()) return std::nullopt;
    if (!found->is_number()) throw FormatError(path_.string() + ": " + key, "is " + found->dump() + "; expected a number");
    return found->get<double>();
  }

  bool is_sampling() const {
    const auto found = json_.find("do_sample");
    if (found == json_.end() || found->is_null()) return false;
    if (!found->is_boolean()) throw FormatError(path_.string() + ": do_sample", "is " + found->dump() + "; expected true or false");
    return found->get<bool>();
  }

  /// transformers samples only where the file says so, with 1.0, 1.0 and 50 where it says no more.
  generate::SamplingOptions options() const {
    generate::SamplingOptions options;
    if (!is_sampling()) return options;
    options.temperature = number("temperature").value_or(1.0);
    options.top_p = number("top_p").value_or(1.0);
    options.top_k = static_cast<std::int64_t>(number("top_k").value_or(50));
    options.min_p = number("min_p").value_or(0.0);
    return options;
  }

 private:
  std::filesystem::path path_;
  Json json_;
};

}  // namespace

SamplingFlags::SamplingFlags(CommandParser& parser) {
  CLI::App& app = parser.app();
  app.add_option("--temperature", temperature_, "0 = the most likely token (default); above, tokens are drawn")->type_name("T");
  app.add_option("--top-p", top_p_, "draw from the most likely tokens that together have this probability")->type_name("P");
  app.add_option("--top-k", top_k_, "draw from the K most likely tokens; 0 = all")->type_name("K");
  app.add_option("--min-p", min_p_, "draw from tokens with this share of the largest probability")->type_name("P");
  app.add_option("--seed", seed_, "of what is drawn (default 42): the same seed, the same text")->type_name("N");
  app.add_flag("--generation-config", use_generation_config_,
               "take temperature, top-p, top-k and min-p from the model's generation_config.json, where no flag says");
}

generate::SamplingOptions SamplingFlags::options(const CommandParser& parser,
                                                 const std::filesystem::path& model_folder) const {
  generate::SamplingOptions options;
  if (use_generation_config_) options = GenerationConfig(model_folder).options();
  options.temperature = temperature_.value_or(options.temperature);
  options.top_p = top_p_.value_or(options.top_p);
  options.top_k = top_k_.value_or(options.top_k);
  options.min_p = min_p_.value_or(options.min_p);
  options.seed = seed_;
  if (options.temperature == 0) {
    const std::string why = "means nothing with temperature 0, which takes the most likely token. Give --temperature too.";
    if (top_p_) parser.refuse("--top-p", why);
    if (top_k_) parser.refuse("--top-k", why);
    if (min_p_) parser.refuse("--min-p", why);
  }
  return options;
}

}  // namespace lora_train::app
