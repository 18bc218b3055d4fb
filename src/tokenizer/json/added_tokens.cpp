#include "added_tokens.h"

#include <utf8proc.h>

#include "lora_train/base/stop_request.h"
#include "lora_train/base/utf8.h"

namespace lora_train::tokenizer {
namespace {

bool is_white_space(std::uint32_t code) {
  if ((code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85) return true;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

// Unicode's \w: letters, marks, decimal digits, letter numbers, connectors, joiners.
bool is_word(std::uint32_t code) {
  if (code == 0x200C || code == 0x200D) return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
  }
}

bool touches_word(std::string_view text, std::size_t begin, std::size_t end) {
  const bool before = begin > 0 && is_word(utf8_char(text, char_begin_before(text, begin)).code_point);
  const bool behind = end < text.size() && is_word(utf8_char(text, end).code_point);
  return before || behind;
}

std::size_t strip_left(std::string_view text, std::size_t begin, std::size_t limit) {
  while (begin > limit) {
    const std::size_t previous = char_begin_before(text, begin);
    if (!is_white_space(utf8_char(text, previous).code_point)) break;
    begin = previous;
  }
  return begin;
}

std::size_t strip_right(std::string_view text, std::size_t end) {
  while (end < text.size()) {
    const Utf8Char c = utf8_char(text, end);
    if (!is_white_space(c.code_point)) break;
    end += c.length;
  }
  return end;
}

}  // namespace

AddedToken read_added_token(const JsonPlace& place, std::int32_t id) {
  place.allow_only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special", "__type"});
  AddedToken token;
  token.id = id;
  token.content = place.at("content").string();
  token.special = place.boolean_or("special", false);
  token.single_word = place.boolean_or("single_word", false);
  token.lstrip = place.boolean_or("lstrip", false);
  token.rstrip = place.boolean_or("rstrip", false);
  token.normalized = place.boolean_or("normalized", !token.special);
  return token;
}

void AddedTokenMatcher::add(const AddedToken& token, const std::string& spelling) {
  if (spelling.empty()) return;
  first_byte_[static_cast<unsigned char>(spelling.front())] = true;
  std::size_t node = 0;
  for (const char c : spelling) {
    const auto found = nodes_[node].next.find(c);
    if (found != nodes_[node].next.end()) {
      node = static_cast<std::size_t>(found->second);
      continue;
    }
    const std::size_t created = nodes_.size();
    nodes_[node].next.emplace(c, static_cast<std::int32_t>(created));
    nodes_.emplace_back();
    node = created;
  }
  nodes_[node].token = static_cast<std::int32_t>(tokens_.size());
  tokens_.push_back({token.id, token.single_word, token.lstrip, token.rstrip});
}

std::int32_t AddedTokenMatcher::longest_at(std::string_view text, std::size_t at, std::size_t& end) const {
  std::int32_t best = -1;
  std::size_t node = 0;
  for (std::size_t i = at; i < text.size(); ++i) {
    const auto found = nodes_[node].next.find(text[i]);
    if (found == nodes_[node].next.end()) break;
    node = static_cast<std::size_t>(found->second);
    if (nodes_[node].token < 0) continue;
    best = nodes_[node].token;
    end = i + 1;
  }
  return best;
}

std::vector<AddedTokenMatcher::Part> AddedTokenMatcher::split(std::string_view text) const {
  std::vector<Part> parts;
  std::size_t done = 0;
  StopPoll stop_poll;
  for (std::size_t at = 0; at < text.size() && !tokens_.empty();) {
    stop_poll();
    std::size_t match_end = 0;
    const std::int32_t index = first_byte_[static_cast<unsigned char>(text[at])] ? longest_at(text, at, match_end) : -1;
    if (index < 0) {
      ++at;
      continue;
    }
    const Token& token = tokens_[static_cast<std::size_t>(index)];
    const std::size_t match_begin = at;
    at = match_end;  // a token that is refused below is not looked into, as in Hugging Face's matcher
    if (token.single_word && touches_word(text, match_begin, match_end)) continue;
    // A token inside the white space that the one before took counts all the same, as in Hugging Face's matcher.
    const bool overlaps = match_begin < done;
    const std::size_t begin = token.lstrip && !overlaps ? strip_left(text, match_begin, done) : match_begin;
    const std::size_t end = token.rstrip ? strip_right(text, match_end) : match_end;
    if (begin > done) parts.push_back({done, begin, -1});
    parts.push_back({begin, end, token.id});
    done = end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), -1});
  return parts;
}

}  // namespace lora_train::tokenizer
