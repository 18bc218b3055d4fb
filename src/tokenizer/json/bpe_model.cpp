#include "bpe_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "bpe/valid_utf8.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/utf8.h"
#include "pre_tokenizer.h"
#include "special_tokens.h"

namespace lora_train::tokenizer {
namespace {

// The two halves of a merge, written "a b" or ["a", "b"].
std::pair<std::string, std::string> read_merge(const JsonPlace& merges, std::size_t rank) {
  const Json& merge = merges.value()[rank];
  const auto fail = [&](const std::string& message) {
    throw FormatError(fmt::format("{}[{}]", merges.where(), rank), message);
  };
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  if (!merge.is_string()) fail("expected \"a b\" or [\"a\", \"b\"]");
  const auto& text = merge.get_ref<const std::string&>();
  const std::size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
    fail(fmt::format("expected two tokens with one space between them, found \"{}\"", text));
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

void refuse_affix(const JsonPlace& place, const std::string& key) {
  if (!place.string_or(key, "").empty()) place.at(key).fail("a word affix is not supported; only an empty one is");
}

constexpr std::int64_t kMaxStrip = 1 << 20;

void replace_in(std::string& text, const std::string& pattern, const std::string& content) {
  for (std::size_t at = text.find(pattern); at != std::string::npos; at = text.find(pattern, at + content.size())) {
    text.replace(at, pattern.size(), content);
  }
}

void decode_byte_level(std::vector<std::string>& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) {
    const auto decoded = byte_level_to_bytes(token);
    bytes += decoded ? *decoded : token;
  }
  tokens.assign(1, repair_utf8(bytes));
}

void decode_byte_fallback(std::vector<std::string>& tokens) {
  std::vector<std::string> out;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (find_invalid_utf8(bytes)) {
      out.insert(out.end(), bytes.size(), std::string(kReplacementChar));
    } else {
      out.push_back(bytes);
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const int byte = byte_of_token(token); byte >= 0) {
      bytes.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
      continue;
    }
    flush();
    out.push_back(std::move(token));
  }
  flush();
  tokens = std::move(out);
}

void fuse(std::vector<std::string>& tokens) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  tokens.assign(1, std::move(all));
}

Decoder load_decoder_sequence(const JsonPlace& place) {
  place.allow_only({"type", "decoders"});
  std::vector<Decoder> parts;
  for (const JsonPlace& part : place.at("decoders").elements()) {
    if (auto decoder = load_decoder(part)) parts.push_back(std::move(decoder));
  }
  return [parts](std::vector<std::string>& tokens) {
    for (const Decoder& decode : parts) decode(tokens);
  };
}

Decoder load_replace_decoder(const JsonPlace& place) {
  place.allow_only({"type", "pattern", "content"});
  place.at("pattern").allow_only({"String"});
  const std::string pattern = place.at("pattern").at("String").string();
  if (pattern.empty()) place.at("pattern").fail("an empty pattern replaces nothing");
  return [pattern, content = place.at("content").string()](std::vector<std::string>& tokens) {
    for (std::string& token : tokens) replace_in(token, pattern, content);
  };
}

Decoder load_strip(const JsonPlace& place) {
  place.allow_only({"type", "content", "start", "stop"});
  const std::string content = place.at("content").string();
  if (count_chars(content) != 1) place.at("content").fail("expected one character");
  const auto count = [&](const char* key) {
    const std::int64_t value = place.at(key).integer();
    if (value < 0 || value > kMaxStrip) place.at(key).fail(fmt::format("{} is not in [0, 2^20]", value));
    return value;
  };
  return [content, start = count("start"), stop = count("stop")](std::vector<std::string>& tokens) {
    for (std::string& token : tokens) {
      for (std::int64_t i = 0; i < start && token.starts_with(content); ++i) token.erase(0, content.size());
      for (std::int64_t i = 0; i < stop && token.ends_with(content); ++i) token.resize(token.size() - content.size());
    }
  };
}

// Every replacement character is a space, except in the first token, where the encoder puts one.
Decoder load_metaspace(const JsonPlace& place) {
  place.allow_only({"type", "replacement", "add_prefix_space", "prepend_scheme", "split"});
  const std::string replacement = place.at("replacement").string();
  if (count_chars(replacement) != 1) place.at("replacement").fail("expected one character");
  const char* scheme = place.boolean_or("add_prefix_space", true) ? "always" : "never";
  const bool prepends = place.string_or("prepend_scheme", scheme) != "never";
  return [replacement, prepends](std::vector<std::string>& tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) replace_in(tokens[i], replacement, i == 0 && prepends ? "" : " ");
  };
}

}  // namespace

// The symbols of a word being encoded, in the order in which Hugging Face's tokenizers adds them: an unknown character
// waits for the next character, known or unknown, so fallback bytes come before it.
class BpeModel::Word {
 public:
  Word(std::vector<Symbol>& symbols, std::optional<std::int32_t> unk_id, bool fuses)
      : symbols_(symbols), unk_id_(unk_id), fuses_(fuses) {}

  void add_known(std::int32_t id, std::size_t length) {
    flush();
    add(id, length);
  }
  void add_byte(std::int32_t id) { add(id, 1); }
  void add_unknown(std::size_t length) {
    if (!unk_id_) {
      dropped_ += length;
      return;
    }
    if (!fuses_) flush();
    waiting_ += length;
  }
  void finish() {
    flush();
    if (dropped_ > 0 && !symbols_.empty()) symbols_.back().length += static_cast<std::uint32_t>(dropped_);
  }

 private:
  void flush() {
    if (waiting_ > 0) add(*unk_id_, std::exchange(waiting_, 0));
  }
  void add(std::int32_t id, std::size_t length) {
    symbols_.push_back({id, static_cast<std::uint32_t>(length + std::exchange(dropped_, 0))});
  }

  std::vector<Symbol>& symbols_;
  std::optional<std::int32_t> unk_id_;
  bool fuses_;
  std::size_t waiting_ = 0;  // bytes of unknown characters not yet in a symbol
  std::size_t dropped_ = 0;  // bytes that never will be
};

BpeModel::BpeModel(const JsonPlace& place, Spelling spelling) : spelling_(spelling), cuts_(spelling.spaces_are_u2581) {
  const std::string type = place.string_or("type", "BPE");
  if (type != "BPE") place.fail(fmt::format("model \"{}\" is not supported; BPE is", type));
  place.allow_only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                    "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (const auto dropout = place.find("dropout")) {
    if (!dropout->value().is_number() || dropout->value().get<double>() != 0.0)
      dropout->fail("BPE dropout is not supported");
  }
  refuse_affix(place, "continuing_subword_prefix");
  refuse_affix(place, "end_of_word_suffix");
  byte_fallback_ = place.boolean_or("byte_fallback", false);
  fuse_unk_ = place.boolean_or("fuse_unk", false);
  ignore_merges_ = place.boolean_or("ignore_merges", false);
  if (spelling_.byte_level && byte_fallback_)
    place.at("byte_fallback").fail("byte fallback under a ByteLevel pre-tokenizer is not supported");
  load_vocabulary(place.at("vocab"));
  if (const auto unk = place.find("unk_token")) {
    unk_id_ = find_id(vocabulary_, unk->string());
    if (!unk_id_) unk->fail(fmt::format("\"{}\" is not in model.vocab", unk->string()));
  }
  load_alphabet();
  load_merges(place.at("merges"));
  can_cut_ = !ignore_merges_ && every_character_has_tokens();
}

void BpeModel::load_vocabulary(const JsonPlace& place) {
  if (!place.value().is_object()) place.fail("expected an object of token: id");
  vocabulary_.reserve(2 * place.value().size());
  std::vector<bool> taken;
  StopPoll stop_poll;
  for (const auto& [token, value] : place.value().items()) {
    stop_poll();
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= (1U << 24U)) {
      throw FormatError(fmt::format("{}[\"{}\"]", place.where(), token), "expected an id in [0, 2^24)");
    }
    const auto id = value.get<std::size_t>();
    if (id >= place.value().size() + kMaxUnusedIds) {
      throw FormatError(place.where() + "[\"" + token + "\"]", "id {} is far above the {} tokens", id,
                        place.value().size());
    }
    if (id >= taken.size()) taken.resize(std::max(id + 1, 2 * taken.size()));
    if (taken[id]) throw FormatError(place.where() + "[\"" + token + "\"]", "id {} occurs twice", id);
    taken[id] = true;
    vocabulary_[token] = static_cast<std::int32_t>(id);
    if (!ignore_merges_) continue;
    const auto spelled = spelling_.byte_level ? byte_level_to_bytes(token) : std::optional<std::string>(token);
    if (spelled) whole_pieces_[*spelled] = static_cast<std::int32_t>(id);
  }
}

void BpeModel::load_alphabet() {
  byte_ids_.fill(-1);
  if (spelling_.byte_level) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      byte_ids_[byte] = find_id(vocabulary_, bytes_to_byte_level(std::string(1, static_cast<char>(byte)))).value_or(-1);
    }
    return;
  }
  for (const auto& [token, id] : vocabulary_) {
    if (token.empty()) continue;
    const Utf8Char c = utf8_char(token, 0);
    if (c.length == token.size()) {
      if (c.code_point >= character_ids_.size()) character_ids_.resize(c.code_point + 1, -1);
      character_ids_[c.code_point] = id;
    }
    // Hugging Face looks for "<0x%02X>", so a lower-case spelling is an ordinary token.
    const bool upper = token.find_first_of("abcdef") == std::string::npos;
    if (const int byte = byte_of_token(token); byte >= 0 && upper) byte_ids_[static_cast<std::size_t>(byte)] = id;
  }
  if (spelling_.spaces_are_u2581 && has_u2581()) character_ids_[' '] = id_of_character(0x2581);
}

void BpeModel::add_cuts(const std::string& token) {
  if (!spelling_.byte_level) return cuts_.add(token);
  if (const auto bytes = byte_level_to_bytes(token)) cuts_.add(*bytes);
}

bool BpeModel::every_character_has_tokens() const {
  const bool has_bytes = std::find(byte_ids_.begin(), byte_ids_.end(), -1) == byte_ids_.end();
  return has_bytes && (spelling_.byte_level || (byte_fallback_ && !byte_tokens_merge_));
}

std::int32_t BpeModel::id_of(const std::string& token, const JsonPlace& merges, std::size_t rank) const {
  if (const auto id = find_id(vocabulary_, token)) return *id;
  throw FormatError(fmt::format("{}[{}]", merges.where(), rank), "token \"{}\" is not in model.vocab", token);
}

void BpeModel::load_merges(const JsonPlace& place) {
  if (!place.value().is_array()) place.fail("expected an array");
  const Json& list = place.value();
  merges_ = MergeTable(list.size());
  StopPoll stop_poll;
  for (std::size_t rank = 0; rank < list.size(); ++rank) {
    stop_poll();
    const auto [left, right] = read_merge(place, rank);
    const Merge merge = {static_cast<std::uint32_t>(rank), id_of(left + right, place, rank)};
    merges_.add(id_of(left, place, rank), id_of(right, place, rank), merge);
    byte_tokens_merge_ = byte_tokens_merge_ || byte_of_token(left) >= 0 || byte_of_token(right) >= 0;
    add_cuts(left + right);
  }
  cuts_.build();
}

void BpeModel::split_bytes(std::string_view piece, Word& word) const {
  for (const char byte : piece) {
    const std::int32_t id = byte_ids_[static_cast<unsigned char>(byte)];
    id >= 0 ? word.add_known(id, 1) : word.add_unknown(1);
  }
}

bool BpeModel::add_fallback(std::string_view character, Word& word) const {
  if (!byte_fallback_) return false;
  for (const char byte : character) {
    if (byte_ids_[static_cast<unsigned char>(byte)] < 0) return false;
  }
  for (const char byte : character) word.add_byte(byte_ids_[static_cast<unsigned char>(byte)]);
  return true;
}

void BpeModel::split_characters(std::string_view piece, Word& word) const {
  for (std::size_t at = 0; at < piece.size();) {
    const Utf8Char c = valid_utf8_char(piece, at);
    const std::int32_t id = id_of_character(c.code_point);
    if (id >= 0)
      word.add_known(id, c.length);
    else if (!add_fallback(piece.substr(at, c.length), word))
      word.add_unknown(c.length);
    at += c.length;
  }
}

void BpeModel::encode(std::string_view piece, std::vector<Symbol>& symbols) const {
  symbols.clear();
  if (ignore_merges_) {
    if (const auto whole = whole_pieces_.find(piece); whole != whole_pieces_.end()) {
      symbols.push_back({whole->second, static_cast<std::uint32_t>(piece.size())});
      return;
    }
  }
  Word word(symbols, unk_id_, fuse_unk_);
  if (spelling_.byte_level)
    split_bytes(piece, word);
  else
    split_characters(piece, word);
  word.finish();
  merge_symbols(merges_, symbols);
}

int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
  int byte = -1;
  const char* digits = token.data() + 3;
  const auto parsed = std::from_chars(digits, digits + 2, byte, 16);
  return parsed.ec == std::errc() && parsed.ptr == digits + 2 && byte >= 0 ? byte : -1;
}

Decoder load_decoder(const JsonPlace& place) {
  if (place.is_null()) return nullptr;
  const std::string& type = place.type();
  if (type == "Sequence") return load_decoder_sequence(place);
  if (type == "Replace") return load_replace_decoder(place);
  if (type == "Strip") return load_strip(place);
  if (type == "Metaspace") return load_metaspace(place);
  if (type == "ByteFallback") return decode_byte_fallback;
  if (type == "Fuse") return fuse;
  if (type == "ByteLevel") return decode_byte_level;
  place.fail("decoder \"" + type +
             "\" is not supported; expected one of Sequence, Replace, ByteFallback, Fuse, Strip, Metaspace, ByteLevel");
}

}  // namespace lora_train::tokenizer
