#include "bpe_model.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <unordered_map>

#include "bpe/valid_utf8.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/utf8.h"

namespace lora_train::tokenizer {
namespace {

// The two halves of a merge, written "a b" or ["a", "b"].
std::pair<std::string, std::string> read_merge(const Json& merge, const JsonPlace& merges, std::size_t rank) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  if (!merge.is_string()) merges.element(rank).fail("expected \"a b\" or [\"a\", \"b\"]");
  const auto& text = merge.get_ref<const std::string&>();
  const std::size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
    merges.element(rank).fail(fmt::format("expected two tokens with one space between them, found \"{}\"", text));
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

void load_vocabulary(const JsonPlace& place, Vocabulary& vocabulary) {
  if (!place.value().is_object()) place.fail("expected an object of token: id");
  const std::size_t count = place.value().size();
  vocabulary.reserve(2 * count);
  std::vector<bool> taken(count + kMaxUnusedIds);
  StopPoll stop_poll;
  for (const auto& [token, value] : place.value().items()) {
    stop_poll();
    const auto fail = [&, &key = token](const std::string& message) {
      throw FormatError(fmt::format("{}[\"{}\"]", place.where(), key), message);
    };
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= (1U << 24U)) fail("expected an id in [0, 2^24)");
    const auto id = value.get<std::size_t>();
    if (id >= taken.size()) fail(fmt::format("id {} is far above the {} tokens", id, count));
    if (taken[id]) fail(fmt::format("id {} occurs twice", id));
    taken[id] = true;
    vocabulary[token] = static_cast<std::int32_t>(id);
  }
}

// What a token of the vocabulary stands for in a piece; empty if it has a character outside the byte-level alphabet.
std::optional<std::string> text_of(const std::string& token, BpeModel::Spelling spelling) {
  return spelling.byte_level ? byte_level_to_bytes(token) : std::optional(token);
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

template <void (*decode)(std::vector<std::string>&)>
Decoder plain(const JsonPlace&) {
  return decode;
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

BpeModel::BpeModel(const JsonPlace& place, Spelling spelling, Vocabulary& vocabulary)
    : spelling_(spelling), cuts_(spelling.spaces_are_u2581) {
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
  if (spelling_.byte_level && byte_fallback_)
    place.at("byte_fallback").fail("byte fallback under a ByteLevel pre-tokenizer is not supported");
  load_vocabulary(place.at("vocab"), vocabulary);
  if (const auto unk = place.find("unk_token")) {
    unk_id_ = find_id(vocabulary, unk->string());
    if (!unk_id_) unk->fail(fmt::format("\"{}\" is not in model.vocab", unk->string()));
  }
  load_alphabet(vocabulary);
  load_merges(place.at("merges"), vocabulary);
  const bool ignore_merges = place.boolean_or("ignore_merges", false);
  can_cut_ = !ignore_merges && every_character_has_tokens();
  if (!ignore_merges) return;
  for (const auto& [token, id] : vocabulary) {
    if (const auto spelled = text_of(token, spelling_)) whole_pieces_.emplace(*spelled, id);
  }
}

BpeModel::BpeModel(const std::vector<std::string>& tokens, std::int32_t first_id) : spelling_{.byte_level = true} {
  std::unordered_map<std::string_view, Merge> known;
  for (std::uint32_t rank = 0; rank < tokens.size(); ++rank) {
    known.emplace(tokens[rank], Merge{rank, first_id + static_cast<std::int32_t>(rank)});
    cuts_.add(tokens[rank]);
  }
  cuts_.build();
  std::iota(byte_ids_.begin(), byte_ids_.end(), first_id);
  merges_ = MergeTable(2 * tokens.size());
  for (const auto& [token, merge] : known) {
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = known.find(token.substr(0, cut)), right = known.find(token.substr(cut));
      if (left != known.end() && right != known.end()) merges_.add(left->second.id, right->second.id, merge);
    }
  }
  std::vector<Symbol> symbols;
  for (const auto& [token, merge] : known) {  // tokens that merging their bytes cannot reach are whole pieces
    encode(token, symbols);
    if (symbols.size() != 1 || symbols.front().id != merge.id) whole_pieces_.emplace(token, merge.id);
  }
  can_cut_ = whole_pieces_.empty();
}

void BpeModel::load_alphabet(const Vocabulary& vocabulary) {
  byte_ids_.fill(-1);
  if (spelling_.byte_level) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      byte_ids_[byte] = find_id(vocabulary, bytes_to_byte_level(std::string(1, static_cast<char>(byte)))).value_or(-1);
    }
    return;
  }
  for (const auto& [token, id] : vocabulary) {
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

bool BpeModel::every_character_has_tokens() const {
  const bool has_bytes = std::find(byte_ids_.begin(), byte_ids_.end(), -1) == byte_ids_.end();
  return has_bytes && (spelling_.byte_level || (byte_fallback_ && !byte_tokens_merge_));
}

void BpeModel::load_merges(const JsonPlace& place, const Vocabulary& vocabulary) {
  if (!place.value().is_array()) place.fail("expected an array");
  const Json& list = place.value();
  merges_ = MergeTable(list.size());
  StopPoll stop_poll;
  for (std::size_t rank = 0; rank < list.size(); ++rank) {
    stop_poll();
    const auto id_of = [&](const std::string& token) {
      if (const auto id = find_id(vocabulary, token)) return *id;
      place.element(rank).fail(fmt::format("token \"{}\" is not in model.vocab", token));
    };
    const auto [left, right] = read_merge(list[rank], place, rank);
    const std::string whole = left + right;
    const std::int32_t whole_id = id_of(whole);  // before its parts, so that every compiler names the same token
    merges_.add(id_of(left), id_of(right), {static_cast<std::uint32_t>(rank), whole_id});
    byte_tokens_merge_ = byte_tokens_merge_ || byte_of_token(left) >= 0 || byte_of_token(right) >= 0;
    if (const auto spelled = text_of(whole, spelling_)) cuts_.add(*spelled);
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
  if (const auto whole = whole_pieces_.empty() ? std::nullopt : find_id(whole_pieces_, piece)) {
    symbols.push_back({*whole, static_cast<std::uint32_t>(piece.size())});
    return;
  }
  Word word(symbols, unk_id_, fuse_unk_);
  if (spelling_.byte_level)
    split_bytes(piece, word);
  else
    split_characters(piece, word);
  word.finish();
  merge_symbols(merges_, symbols);
}

Encoding BpeTokenizer::encode(std::string_view text, bool with_offsets) const {
  check_input_text(text);
  Run run{with_offsets, WordEncoder(model_)};
  run.out.ids.reserve(text.size() / 3);
  for (const auto& part : in_text_.split(text)) {
    if (part.id < 0)
      encode_stretch(text, part.begin, part.end, run);
    else
      run.push(part.id, {static_cast<std::uint32_t>(part.begin), static_cast<std::uint32_t>(part.end)});
  }
  return std::move(run.out);
}

void BpeTokenizer::encode_stretch(std::string_view text, std::size_t begin, std::size_t end, Run& run) const {
  NormalizedText stretch(text, begin, end);
  encode_pieces(stretch, run);
}

void BpeTokenizer::encode_pieces(NormalizedText& text, Run& run) const {
  pre_tokenizer_.split(text, run.pieces);
  const std::string_view all = text.text();
  for (const auto& piece : run.pieces) {
    const std::size_t begin = piece.first;
    run.words.encode_piece(all.substr(begin, piece.second - begin),
                           [&](std::size_t at, std::span<const Symbol> symbols) {
                             for (const Symbol& symbol : symbols) run.out.ids.push_back(symbol.id);
                             if (!run.with_offsets) return;
                             at += begin;
                             for (const Symbol& symbol : symbols) {
                               run.out.offsets.push_back(text.input_range(at, at + symbol.length));
                               at += symbol.length;
                             }
                           });
  }
}

int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
  int byte = -1;
  const char* digits = token.data() + 3;
  const auto parsed = std::from_chars(digits, digits + 2, byte, 16);
  return parsed.ec == std::errc() && parsed.ptr == digits + 2 && byte >= 0 ? byte : -1;
}

Decoder load_decoder(const JsonPlace& place) {
  constexpr std::pair<const char*, Decoder (*)(const JsonPlace&)> kTypes[] = {
      {"Sequence", load_decoder_sequence},
      {"Replace", load_replace_decoder},
      {"ByteFallback", plain<decode_byte_fallback>},
      {"Fuse", plain<fuse>},
      {"Strip", load_strip},
      {"Metaspace", load_metaspace},
      {"ByteLevel", plain<decode_byte_level>}};
  return place.is_null() ? nullptr : place.at("type").one_of(kTypes)(place);
}

}  // namespace lora_train::tokenizer
