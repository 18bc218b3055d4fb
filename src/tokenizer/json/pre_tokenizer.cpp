#include "pre_tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "lora_train/base/error.h"
#include "lora_train/base/utf8.h"

namespace lora_train::tokenizer {
namespace {

// GPT-2's own pattern, which ByteLevel applies with use_regex.
constexpr const char* kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::string escape_literal(const std::string& literal) {
  std::string pattern;
  for (const char c : literal) {
    if (static_cast<unsigned char>(c) < 0x80 && std::isalnum(static_cast<unsigned char>(c)) == 0) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

using Behavior = SplitRule::Behavior;

// True if two neighbouring stretches are one piece.
bool joins(Behavior behavior, bool is_match, bool next_is_match) {
  switch (behavior) {
    case Behavior::kContiguous: return is_match == next_is_match;
    case Behavior::kMergedWithPrevious: return !is_match && next_is_match;
    case Behavior::kMergedWithNext: return is_match && !next_is_match;
    default: return false;
  }
}

void split_by(const Regex& regex, const SplitRule& rule, const NormalizedText& text, std::size_t offset,
              std::size_t text_end, Pieces& out) {
  const std::string_view part = text.text().substr(offset, text_end - offset);
  thread_local std::vector<Stretch> stretches;
  regex.split(part, stretches);
  const auto drop_empty = [&] {
    if (!out.empty() && out.back().first == out.back().second) out.pop_back();
  };
  bool was_match = false;
  for (const Stretch& stretch : stretches) {
    const bool is_match = stretch.is_match != rule.invert;
    if (!is_match && rule.behavior == Behavior::kCovering) {
      throw FormatError("tekken.json: config.pattern",
                        "the pattern skips byte {} of a text; no part of a text may be dropped",
                        text.input_range(offset + stretch.begin, offset + stretch.begin + 1).first);
    }
    if (&stretch != stretches.data() && joins(rule.behavior, was_match, is_match)) {
      out.back().second = offset + stretch.end;
    } else if (!is_match || rule.behavior != Behavior::kRemoved) {
      drop_empty();
      out.emplace_back(offset + stretch.begin, offset + stretch.end);
    }
    was_match = is_match;
  }
  drop_empty();
}

void split_by(const GptSplit& split, const SplitRule&, const NormalizedText& text, std::size_t offset,
              std::size_t text_end, Pieces& out) {
  const std::string_view part = text.text().substr(offset, text_end - offset);
  for (std::size_t at = 0; at < part.size();) {
    const std::size_t end = split.piece_end(part, at);
    out.emplace_back(offset + at, offset + end);
    at = end;
  }
}

constexpr std::pair<const char*, Behavior> kBehaviors[] = {{"Isolated", Behavior::kIsolated},
                                                           {"Removed", Behavior::kRemoved},
                                                           {"Contiguous", Behavior::kContiguous},
                                                           {"MergedWithPrevious", Behavior::kMergedWithPrevious},
                                                           {"MergedWithNext", Behavior::kMergedWithNext}};

constexpr const char* kMetaspaceText = "\xE2\x96\x81";  // U+2581

std::optional<SpaceRule> rule_of_metaspace(const Json& pre_tokenizer) {
  const Json want = {{"type", "Metaspace"}, {"replacement", kMetaspaceText}, {"split", false}};
  Json rest = pre_tokenizer;
  const Json scheme = rest.value("prepend_scheme", Json());
  rest.erase("prepend_scheme");
  if (rest != want) return std::nullopt;
  if (scheme == "always") return SpaceRule{SpaceRule::Prefix::kUnlessThere};
  if (scheme == "first") return SpaceRule{SpaceRule::Prefix::kAtStartUnlessThere};
  if (scheme == "never") return SpaceRule{SpaceRule::Prefix::kNever};
  return std::nullopt;
}

constexpr std::size_t kAlphabetEnd = 0x144;  // 256 + the 68 bytes that are not printable

struct Alphabet {
  std::array<std::uint32_t, 256> char_of_byte{};
  std::array<int, kAlphabetEnd> byte_of_char{};
};

Alphabet make_alphabet() {
  Alphabet alphabet;
  alphabet.byte_of_char.fill(-1);
  std::uint32_t next = 256;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const std::uint32_t code = printable ? byte : next++;
    alphabet.char_of_byte[byte] = code;
    alphabet.byte_of_char[code] = static_cast<int>(byte);
  }
  return alphabet;
}

const Alphabet& alphabet() {
  static const Alphabet instance = make_alphabet();
  return instance;
}

}  // namespace

bool SpaceRule::wants_prefix(std::string_view input, std::size_t begin) const {
  if (prefix == Prefix::kNever) return false;
  if (prefix == Prefix::kAlways) return true;
  if (prefix == Prefix::kAtStartUnlessThere && begin > 0) return false;
  const std::string_view text = input.substr(begin);
  return !text.starts_with(' ') && !text.starts_with(kMetaspaceText);
}

std::optional<SpaceRule> find_space_rule(const JsonPlace& root) {
  const JsonPlace normalizer_place = root.section("normalizer"), pre_tokenizer_place = root.section("pre_tokenizer");
  const Json &normalizer = normalizer_place.value(), &pre_tokenizer = pre_tokenizer_place.value();
  if (normalizer.is_null()) return pre_tokenizer.is_object() ? rule_of_metaspace(pre_tokenizer) : std::nullopt;
  if (!pre_tokenizer.is_null()) return std::nullopt;
  const Json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kMetaspaceText}};
  const Json prepend = {{"type", "Prepend"}, {"prepend", kMetaspaceText}};
  const Json both = {{"type", "Sequence"}, {"normalizers", Json::array({prepend, replace})}};
  if (normalizer == both) return SpaceRule{SpaceRule::Prefix::kAlways};
  return normalizer == replace ? std::optional(SpaceRule{SpaceRule::Prefix::kNever}) : std::nullopt;
}

PreTokenizer::PreTokenizer(const JsonPlace& place) {
  if (!place.is_null()) load(place);
}

PreTokenizer::PreTokenizer(const std::string& pattern, const std::string& where) {
  rules_.push_back({Regex(pattern, where), Behavior::kCovering, false});
}

void PreTokenizer::load(const JsonPlace& place) {
  if (byte_level_) place.fail("a step after ByteLevel is not supported: ByteLevel must be the last one");
  if (metaspace_) place.fail("a step after Metaspace is not supported");
  constexpr std::pair<const char*, void (PreTokenizer::*)(const JsonPlace&)> kTypes[] = {
      {"Sequence", &PreTokenizer::load_sequence},
      {"Split", &PreTokenizer::load_split},
      {"Digits", &PreTokenizer::load_digits},
      {"ByteLevel", &PreTokenizer::load_byte_level},
      {"Metaspace", &PreTokenizer::load_metaspace}};
  (this->*place.at("type").one_of(kTypes))(place);
}

void PreTokenizer::load_sequence(const JsonPlace& place) {
  place.allow_only({"type", "pretokenizers"});
  for (const JsonPlace& part : place.at("pretokenizers").elements()) load(part);
}

void PreTokenizer::load_digits(const JsonPlace& place) {
  place.allow_only({"type", "individual_digits"});
  const bool individual = place.boolean_or("individual_digits", false);
  add_rule("\\p{N}", place.where(), individual ? Behavior::kIsolated : Behavior::kContiguous, false);
}

void PreTokenizer::load_split(const JsonPlace& place) {
  place.allow_only({"type", "pattern", "behavior", "invert"});
  const JsonPlace pattern = place.at("pattern");
  pattern.allow_only({"Regex", "String"});
  const bool is_regex = pattern.find("Regex").has_value();
  const JsonPlace text = pattern.at(is_regex ? "Regex" : "String");
  add_rule(is_regex ? text.string() : escape_literal(text.string()), text.where(),
           place.at("behavior").one_of(kBehaviors), place.boolean_or("invert", false));
}

void PreTokenizer::add_rule(const std::string& pattern, const std::string& where, Behavior behavior, bool invert) {
  // For isolated pieces, inversion makes no difference.
  const auto known = behavior == Behavior::kIsolated ? GptSplit::recognise(pattern) : std::nullopt;
  if (known)
    rules_.push_back({*known, behavior, invert});
  else
    rules_.push_back({Regex(pattern, where), behavior, invert});
}

void PreTokenizer::load_byte_level(const JsonPlace& place) {
  place.allow_only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  byte_level_ = true;
  prefix_space_ = place.boolean_or("add_prefix_space", true);
  const bool use_regex = place.boolean_or("use_regex", true);
  if (prefix_space_ && !rules_.empty())
    place.at("add_prefix_space").fail("a prefix space after a Split is not supported");
  if (use_regex) add_rule(kByteLevelPattern, place.where(), Behavior::kIsolated, false);
}

void PreTokenizer::load_metaspace(const JsonPlace& place) {
  place.allow_only({"type", "replacement", "add_prefix_space", "prepend_scheme", "split"});
  if (!rules_.empty()) place.fail("Metaspace after a Split is not supported");
  metaspace_ = true;
  replacement_ = place.at("replacement").string();
  if (count_chars(replacement_) != 1) place.at("replacement").fail("expected one character");
  metaspace_split_ = place.boolean_or("split", true);
  constexpr std::pair<const char*, PrependScheme> kSchemes[] = {
      {"always", PrependScheme::kAlways}, {"first", PrependScheme::kFirst}, {"never", PrependScheme::kNever}};
  scheme_ = place.boolean_or("add_prefix_space", true) ? PrependScheme::kAlways : PrependScheme::kNever;
  if (const auto scheme = place.find("prepend_scheme")) scheme_ = scheme->one_of(kSchemes);
}

bool PreTokenizer::has_llama3_pattern() const {
  return std::any_of(rules_.begin(), rules_.end(), [](const SplitRule& rule) {
    const auto* known = std::get_if<GptSplit>(&rule.pattern);
    return known != nullptr && known->max_digits() == 3;
  });
}

void PreTokenizer::split(NormalizedText& text, Pieces& pieces) const {
  pieces.clear();
  if (text.text().empty()) return;
  if (metaspace_) return split_metaspace(text, pieces);
  if (prefix_space_ && text.text().front() != ' ') text.prepend(" ");
  pieces.emplace_back(0, text.text().size());
  Pieces finer;
  for (const SplitRule& rule : rules_) {
    finer.clear();
    finer.reserve(text.text().size() / 4);
    std::visit(
        [&](const auto& known) {
          for (const auto& [begin, end] : pieces) split_by(known, rule, text, begin, end, finer);
        },
        rule.pattern);
    pieces.swap(finer);
  }
}

void PreTokenizer::split_metaspace(NormalizedText& text, Pieces& pieces) const {
  replace_all(text, " ", replacement_);
  const bool wants_prefix =
      scheme_ == PrependScheme::kAlways || (scheme_ == PrependScheme::kFirst && text.input_range(0, 1).first == 0);
  if (wants_prefix && !text.text().starts_with(replacement_)) text.prepend(replacement_);
  const std::string_view all = text.text();
  std::size_t begin = 0;
  while (metaspace_split_) {
    const std::size_t next = all.find(replacement_, begin + 1);
    if (next == std::string_view::npos) break;
    pieces.emplace_back(begin, next);
    begin = next;
  }
  pieces.emplace_back(begin, all.size());
}

std::optional<std::string> byte_level_to_bytes(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  for (std::size_t at = 0; at < token.size();) {
    const Utf8Char c = utf8_char(token, at);
    if (c.length == 0 || c.code_point >= kAlphabetEnd) return std::nullopt;
    const int byte = alphabet().byte_of_char[c.code_point];
    if (byte < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
    at += c.length;
  }
  return bytes;
}

std::string bytes_to_byte_level(std::string_view bytes) {
  std::string token;
  for (const char byte : bytes) append_utf8(token, alphabet().char_of_byte[static_cast<unsigned char>(byte)]);
  return token;
}

}  // namespace lora_train::tokenizer
