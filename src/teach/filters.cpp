#include "lora_train/teach/filters.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wshadow"
#include <nlohmann/json.hpp>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validator.hpp>
#pragma GCC diagnostic pop

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/tokenizer/split/text_pattern.h"

namespace lora_train::teach {
namespace {

using tokenizer::TextPattern;

/// JSON Schema, by valijson. Thread-safe for concurrent const calls.
class JsonSchema {
 public:
  /// Throws IoError if the file cannot be read, ConfigError if it is not a schema or refers to another file.
  explicit JsonSchema(const std::filesystem::path& file) {
    const auto json = nlohmann::json::parse(read_file(file), nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) throw ConfigError(file.string(), "is not a JSON object, so not a JSON Schema");
    try {
      valijson::SchemaParser(valijson::SchemaParser::kDraft7)
          .populateSchema(valijson::adapters::NlohmannJsonAdapter(json), schema_);
    } catch (const std::exception& error) {
      throw ConfigError(file.string(),
                        "cannot be used as a JSON Schema (draft 7, in one file): " + std::string(error.what()));
    }
  }

  /// True if the text is JSON that fits.
  bool fits(const std::string& text) const {
    const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded()) return false;
    return valijson::Validator().validate(schema_, valijson::adapters::NlohmannJsonAdapter(json), nullptr);
  }

 private:
  valijson::Schema schema_;
};

std::unique_ptr<TextPattern> pattern(const std::string& text, const char* flag) {
  return text.empty() ? nullptr : std::make_unique<TextPattern>(text, flag);
}

/// Treats the typographic apostrophe that models like to write as the plain one.
std::string comparable(std::string text) {
  const std::string apostrophe = "\xE2\x80\x99";
  for (auto at = text.find(apostrophe); at != std::string::npos; at = text.find(apostrophe))
    text.replace(at, apostrophe.size(), "'");
  return lower_case(trimmed(text));
}

}  // namespace

struct Filters::Parts {
  std::unique_ptr<TextPattern> keep, drop, agree_on;
  std::unique_ptr<JsonSchema> schema;
  std::vector<std::string> refusals;

  bool is_refusal(const std::string& text) const {
    const std::string start = comparable(text);
    return std::ranges::any_of(refusals, [&](const std::string& phrase) { return start.starts_with(phrase); });
  }
};

Filters::Filters(FilterOptions options) : options_(std::move(options)), parts_(std::make_unique<Parts>()) {
  parts_->keep = pattern(options_.keep_matching, "--keep-matching");
  parts_->drop = pattern(options_.drop_matching, "--drop-matching");
  parts_->agree_on = pattern(options_.agree_on, "--agree-on");
  if (!options_.json_schema.empty()) parts_->schema = std::make_unique<JsonSchema>(options_.json_schema);
  for (const std::string& phrase : options_.refusal_phrases) {
    if (!is_blank(phrase)) parts_->refusals.push_back(comparable(phrase));
  }
}

Filters::~Filters() = default;

FilterResult Filters::apply(const std::vector<Candidate>& candidates) const {
  FilterResult result{std::vector<bool>(candidates.size(), true), {}};
  const auto drop_where = [&](const std::string& reason, const std::function<bool(const Candidate&)>& is_bad) {
    FilterCount count{reason, 0, {}};
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      throw_if_stop_requested();
      if (!result.is_kept[i] || !is_bad(candidates[i])) continue;
      result.is_kept[i] = false;
      if (++count.count == 1) count.first_source = candidates[i].source;
    }
    if (count.count > 0) result.counts.push_back(std::move(count));
  };
  const Parts& parts = *parts_;
  if (options_.drop_cut) drop_where("cut at the token limit", [](const Candidate& c) { return c.is_cut; });
  if (const auto least = options_.min_chars)
    drop_where("shorter than " + count_of(*least, "character"),
               [&](const Candidate& c) { return std::cmp_less(count_chars(c.text), *least); });
  if (const auto most = options_.max_chars)
    drop_where("longer than " + count_of(*most, "character"),
               [&](const Candidate& c) { return std::cmp_greater(count_chars(c.text), *most); });
  if (parts.keep)
    drop_where("not matching " + options_.keep_matching, [&](const Candidate& c) { return !parts.keep->find(c.text); });
  if (parts.drop)
    drop_where("matching " + options_.drop_matching,
               [&](const Candidate& c) { return parts.drop->find(c.text).has_value(); });
  if (parts.schema)
    drop_where("not fitting " + options_.json_schema.string(),
               [&](const Candidate& c) { return !parts.schema->fits(c.text); });
  if (!parts.refusals.empty()) drop_where("refusals", [&](const Candidate& c) { return parts.is_refusal(c.text); });
  if (options_.agree > 0) {
    const auto subject = [&](const Candidate& c) {
      return parts.agree_on ? parts.agree_on->find(c.text).value_or("") : trimmed(c.text);
    };
    std::map<std::size_t, std::map<std::string, std::int64_t>> votes;
    for (std::size_t i = 0; i < candidates.size(); ++i) {
      if (result.is_kept[i]) ++votes[candidates[i].prompt][subject(candidates[i])];
    }
    drop_where(fmt::format("without {} answers that agree", options_.agree), [&](const Candidate& c) {
      const auto& of_prompt = votes[c.prompt];
      const auto most = std::ranges::max_element(of_prompt, {}, [](const auto& vote) { return vote.second; });
      return most->second < options_.agree || subject(c) != most->first;
    });
  }
  if (options_.drop_duplicates) {
    std::set<std::pair<std::size_t, std::string>> seen;
    drop_where("duplicates", [&](const Candidate& c) { return !seen.emplace(c.prompt, trimmed(c.text)).second; });
  }
  return result;
}

const std::vector<std::string>& usual_refusals() {
  static const std::vector<std::string> phrases = {
      "I'm sorry, but",  "I'm sorry, I",     "I am sorry, but", "Sorry, but I",  "I apologize, but",
      "I cannot ",       "I can't ",         "I can not ",      "I'm unable to", "I am unable to",
      "I'm not able to", "I am not able to", "I won't ",        "As an AI",      "As a language model"};
  return phrases;
}

}  // namespace lora_train::teach
