#include <pcre2.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <tuple>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/model/layer_shape.h"

namespace lora_train::lora {
namespace {

using model::AdapterSpec;

/// Throws for a mistake at this key of the profile, or of the file that the options are from.
[[noreturn]] void refuse(const AdapterConfig& options, const std::string& key, const std::string& message) {
  if (options.file.empty()) throw ConfigError(key, message);
  throw FormatError(fmt::format("{}: {}", options.file, key), message);
}

std::string targets_key(const AdapterConfig& options) {
  return options.file.empty() ? "lora_target_modules" : "target_modules";
}

/// The limit for matching one name of about 40 characters: about 10 ms.
constexpr std::uint32_t kMaxSteps = 200'000;

/// A path in its class, in the text class, in a wrapper of transformers 4, and in the class without a head.
std::vector<std::string> spellings(const std::string& path) {
  const std::string text = model::text_class_name(path);
  return {path, text, "language_model." + text, text.substr(text.find('.') + 1)};
}

/// A whole-string regular expression; the constructs in target patterns have their Python meaning.
class FullMatch {
 public:
  FullMatch(const AdapterConfig& options, const std::string& key, const std::string& pattern)
      : options_(options), key_(key), pattern_(pattern) {
    int code = 0;
    PCRE2_SIZE offset = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                              PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_UTF, &code, &offset, nullptr));
    pcre2_set_match_limit(limits_.get(), kMaxSteps);
    if (code_) return;
    PCRE2_UCHAR message[200] = {};
    pcre2_get_error_message(code, message, sizeof message);
    refuse(options, key,
           fmt::format("\"{}\" is not a valid regular expression: {} at offset {}", pattern,
                       reinterpret_cast<const char*>(message), offset));
  }

  /// A path in any class also matches as other classes spell it.
  bool matches_path(const std::string& path) const {
    return std::ranges::any_of(spellings(path), [this](const std::string& text) { return matches(text); });
  }

  bool matches(const std::string& text) const {
    const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
        pcre2_match_data_create_from_pattern(code_.get(), nullptr), &pcre2_match_data_free);
    const int result = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0,
                                   data.get(), limits_.get());
    if (result < 0 && result != PCRE2_ERROR_NOMATCH) {
      refuse(options_, key_,
             fmt::format("\"{}\" takes too long to match {}; write it without nested repeats", pattern_, text));
    }
    return result >= 0;
  }

 private:
  const AdapterConfig& options_;
  std::string key_, pattern_;
  std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> limits_{pcre2_match_context_create(nullptr),
                                                                                    &pcre2_match_context_free};
  std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code_{nullptr, &pcre2_code_free};
};

bool is_suffix(const std::string& path, const std::string& name) {
  if (path == name) return true;
  return path.size() > name.size() && path.ends_with(name) && path[path.size() - name.size() - 1] == '.';
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('.') + 1); }

/// The last parts of the names of all linears, each once, in the order of the model.
std::vector<std::string> names_of_linears(const model::ModelConfig& config) {
  std::vector<std::string> names;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    for (const auto& linear : model::linear_names(config, layer)) {
      if (std::ranges::count(names, last_part(linear)) == 0) names.push_back(last_part(linear));
    }
  }
  return names;
}

/// The path of a linear in the class of the model.
std::string path_in_class(const model::ModelConfig& config, std::int64_t layer, const std::string& linear) {
  return model::name_in_class(model::linear_path(layer, linear), config.module_prefix);
}

/// The number of layers with a linear of this name.
std::int64_t num_layers_with(const model::ModelConfig& config, const std::string& linear) {
  std::int64_t count = 0;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    count += std::ranges::count(model::linear_names(config, layer), linear);
  }
  return count;
}

std::string escaped_dots(const std::string& name) {
  std::string escaped;
  for (const char c : name) escaped += c == '.' ? "\\." : std::string(1, c);
  return escaped;
}

[[noreturn]] void refuse_unmatched(const AdapterConfig& options, const model::ModelConfig& config,
                                   const std::string& what) {
  const std::vector<std::string> names = names_of_linears(config);
  const bool is_outer = what.find("lm_head") != std::string::npos || what.find("embed") != std::string::npos;
  refuse(options, targets_key(options),
         "\"" + what + "\" matches no linear of the decoder layers" +
             (is_outer ? " (adapters on the embedding or the output head are not supported)" : "") +
             fmt::format(". The linears are {}, under {}layers.<i>.self_attn{} and .mlp", join(names),
                         config.module_prefix, config.is_hybrid() ? ", .linear_attn" : ""));
}

/// True if `name` is the path, or its end after a dot, in any spelling.
bool is_named(const std::string& path, const std::string& name) {
  return std::ranges::any_of(spellings(path), [&](const std::string& text) { return is_suffix(text, name); });
}

/// exclude_modules and layers_to_transform of an adapter from a file. As in PEFT, the layers restrict neither an
/// expression nor a list that names the whole path.
class LeftOut {
 public:
  explicit LeftOut(const AdapterConfig& options) : options_(options) {
    if (options.excluded.kind == LoraTargets::Kind::kRegex)
      regex_.emplace(options, "exclude_modules", options.excluded.regex);
  }

  bool contains(std::int64_t layer, const std::string& path) const {
    const auto names_it = [&](const std::string& name) { return is_named(path, name); };
    if (std::ranges::any_of(options_.excluded.names, names_it) || (regex_ && regex_->matches_path(path))) return true;
    const LoraTargets& targets = options_.lora_target_modules;
    if (!options_.layers || targets.kind != LoraTargets::Kind::kList || options_.layers->contains(layer)) return false;
    return std::ranges::none_of(spellings(path),
                                [&](const auto& text) { return std::ranges::count(targets.names, text) > 0; });
  }

 private:
  const AdapterConfig& options_;
  std::optional<FullMatch> regex_;
};

/// The linears that the targets select, in model order.
std::vector<std::pair<std::int64_t, std::string>> choose(const AdapterConfig& options,
                                                         const model::ModelConfig& config) {
  const LoraTargets& targets = options.lora_target_modules;
  const bool is_all = targets.kind == LoraTargets::Kind::kAllLinear;
  std::optional<FullMatch> regex;
  if (targets.kind == LoraTargets::Kind::kRegex) regex.emplace(options, targets_key(options), targets.regex);
  std::set<std::string> unmatched(targets.names.begin(), targets.names.end());
  const LeftOut left_out(options);
  bool are_any_left_out = false;
  std::vector<std::pair<std::int64_t, std::string>> chosen;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    for (const auto& linear : model::linear_names(config, layer)) {
      const std::string path = path_in_class(config, layer, linear);
      bool is_target = is_all || (regex && regex->matches_path(path));
      for (const auto& name : targets.names) {
        if (!is_named(path, name)) continue;
        unmatched.erase(name);
        is_target = true;
      }
      const bool is_left_out = is_target && left_out.contains(layer, path);
      are_any_left_out = are_any_left_out || is_left_out;
      if (is_target && !is_left_out) chosen.emplace_back(layer, linear);
    }
  }
  if (chosen.empty() && are_any_left_out)
    refuse(options, targets_key(options), "exclude_modules and layers_to_transform leave no linear");
  if (!unmatched.empty()) refuse_unmatched(options, config, *unmatched.begin());
  if (chosen.empty() && regex && std::ranges::count(names_of_linears(config), targets.regex) > 0) {
    refuse(options, targets_key(options),
           fmt::format("\"{}\" without brackets is a regex, as in PEFT, and matches no full name. For a list of names, "
                       "write [{}], or on the command line {},",
                       targets.regex, targets.regex, targets.regex));
  }
  if (chosen.empty()) refuse_unmatched(options, config, regex ? targets.regex : "(empty list)");
  return chosen;
}

/// rank_pattern or alpha_pattern. Entries match the end of a name, and the first match counts.
template <typename Value>
std::vector<std::pair<FullMatch, Value>> compile(const AdapterConfig& options, const std::string& key,
                                                 const std::vector<std::pair<std::string, Value>>& patterns) {
  std::vector<std::pair<FullMatch, Value>> compiled;
  for (const auto& [pattern, value] : patterns) {
    compiled.emplace_back(FullMatch(options, key, fmt::format("(?:.*\\.)?(?:{})", pattern)), value);
  }
  return compiled;
}

/// Returns patterns.size() if none matches by `does_match`.
template <typename Value>
std::size_t first_match(const std::vector<std::pair<FullMatch, Value>>& patterns, const std::string& path,
                        bool (FullMatch::*does_match)(const std::string&) const = &FullMatch::matches_path) {
  const auto matches = [&](const auto& entry) { return (entry.first.*does_match)(path); };
  return static_cast<std::size_t>(std::find_if(patterns.begin(), patterns.end(), matches) - patterns.begin());
}

template <typename Value>
Value value_of(const std::vector<std::pair<FullMatch, Value>>& patterns, const std::string& path, Value otherwise) {
  const std::size_t index = first_match(patterns, path);
  return index < patterns.size() ? patterns[index].second : otherwise;
}

template <typename Value>
void check_pattern(const AdapterConfig& options, const std::vector<std::string>& paths, const std::string& key,
                   const std::vector<std::pair<std::string, Value>>& patterns) {
  const auto compiled = compile(options, key, patterns);
  std::set<std::size_t> used;
  for (const auto& path : paths) used.insert(first_match(compiled, path));
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    if (used.contains(i)) continue;
    const std::string message = fmt::format(
        "\"{}\" has no effect: it matches no targeted linear, or earlier patterns match the same ones. Expected a "
        "regex for the end of a name such as {}; the first match counts",
        patterns[i].first, paths.front());
    if (options.file.empty()) throw ConfigError(key, message);
    log_warning("{}: {}: {}", options.file, key, message);
  }
}

/// Replaces patterns of which any was needed in another spelling by the whole names that they give a value.
template <typename Value>
void respell(const AdapterConfig& options, const std::string& key, const std::vector<std::string>& paths,
             std::vector<std::pair<std::string, Value>>& patterns) {
  const auto compiled = compile(options, key, patterns);
  const auto is_as_in_class = [&](const std::string& path) {
    return first_match(compiled, path, &FullMatch::matches) == first_match(compiled, path);
  };
  if (std::ranges::all_of(paths, is_as_in_class)) return;
  std::vector<std::pair<std::string, Value>> whole;
  for (const std::string& path : paths) {
    const std::size_t index = first_match(compiled, path);
    if (index < patterns.size()) whole.emplace_back(escaped_dots(path), patterns[index].second);
  }
  patterns = std::move(whole);
}

}  // namespace

void spell_for_class(const model::ModelConfig& config, const std::vector<AdapterSpec>& specs, AdapterConfig& options) {
  std::vector<std::string> paths;
  for (const AdapterSpec& spec : specs) paths.push_back(path_in_class(config, spec.layer, spec.linear));
  respell(options, "rank_pattern", paths, options.rank_pattern);
  respell(options, "alpha_pattern", paths, options.alpha_pattern);
  options.lora_target_modules = explicit_targets(specs, config);
  options.module_prefix = config.module_prefix;
  options.base_class = config.is_in_wrapper() ? config.architecture : "";
}

std::vector<RankAndScale> ranks_and_scales(const AdapterConfig& options, const std::vector<std::string>& paths) {
  const auto ranks = compile(options, "rank_pattern", options.rank_pattern);
  const auto alphas = compile(options, "alpha_pattern", options.alpha_pattern);
  std::vector<RankAndScale> found;
  for (const auto& path : paths) {
    const std::int64_t rank = value_of(ranks, path, options.lora_r);
    if (rank < 1 || rank > kMaxLoraRank) {
      refuse(options, "lora_r", fmt::format("the rank of {} is {}, expected 1 to {}", path, rank, kMaxLoraRank));
    }
    const double alpha = value_of(alphas, path, options.lora_alpha);
    const auto r = static_cast<double>(rank);
    found.push_back({rank, alpha / (options.use_rslora ? std::sqrt(r) : r)});
  }
  return found;
}

std::vector<AdapterSpec> plan_adapters(const AdapterConfig& options, const model::ModelConfig& config) {
  const auto chosen = choose(options, config);
  std::vector<std::string> paths;
  for (const auto& [layer, linear] : chosen) paths.push_back(path_in_class(config, layer, linear));
  const std::vector<RankAndScale> found = ranks_and_scales(options, paths);
  std::vector<AdapterSpec> specs;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    AdapterSpec spec;
    std::tie(spec.layer, spec.linear) = chosen[i];
    spec.rank = found[i].rank;
    spec.kind = options.kind;
    spec.scale = found[i].scale;
    spec.dropout = options.lora_dropout;
    specs.push_back(spec);
  }
  return specs;
}

void check_patterns(const AdapterConfig& options, const model::ModelConfig& config) {
  std::vector<std::string> paths;
  for (const auto& [layer, linear] : choose(options, config)) paths.push_back(path_in_class(config, layer, linear));
  check_pattern(options, paths, "rank_pattern", options.rank_pattern);
  check_pattern(options, paths, "alpha_pattern", options.alpha_pattern);
}

LoraTargets explicit_targets(const std::vector<AdapterSpec>& specs, const model::ModelConfig& config) {
  std::map<std::string, std::vector<std::string>> layers;  // with an adapter, by linear
  for (const auto& spec : specs) layers[spec.linear].push_back(std::to_string(spec.layer));
  std::set<std::string> names, expressions;
  for (const auto& [linear, adapted] : layers) {
    const bool everywhere = std::ssize(adapted) == num_layers_with(config, linear);
    expressions.insert((everywhere ? "\\d+" : fmt::format("({})", join(adapted, "|"))) + escaped_dots("." + linear));
    if (everywhere) names.insert(last_part(linear));
  }
  for (const auto& spec : specs) {
    if (!names.contains(last_part(spec.linear))) names.insert(model::linear_path(spec));
  }
  if (!config.is_in_wrapper()) return {LoraTargets::Kind::kList, {names.begin(), names.end()}, ""};
  const std::vector<std::string> all(expressions.begin(), expressions.end());
  return {LoraTargets::Kind::kRegex,
          {},
          fmt::format("{}layers\\.({})", escaped_dots(config.module_prefix), join(all, "|"))};
}

std::int64_t first_adapted_layer(const std::vector<AdapterSpec>& specs) {
  std::int64_t first = specs.empty() ? 0 : specs.front().layer;
  for (const auto& spec : specs) first = std::min(first, spec.layer);
  return first;
}

}  // namespace lora_train::lora
