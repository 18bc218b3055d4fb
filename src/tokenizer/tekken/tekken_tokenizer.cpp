#include "tekken_tokenizer.h"

#include "bpe/word_encoder.h"
#include "json/added_tokens.h"
#include "json/bpe_model.h"
#include "lora_train/base/error.h"
#include "lora_train/base/utf8.h"
#include "split/regex.h"
#include "tekken_file.h"

namespace lora_train::tokenizer {
namespace {

/// Rank-based BPE over bytes. Thread-safe for concurrent const calls.
class TekkenBpe final : public WordModel {
 public:
  /// The id of tokens[rank] is first_id + rank. The first 256 tokens are the bytes.
  TekkenBpe(const std::vector<std::string>& tokens, std::int32_t first_id) : first_id_(first_id) {
    for (std::size_t rank = 0; rank < tokens.size(); ++rank) {
      ids_.emplace(tokens[rank], first_id + static_cast<std::int32_t>(rank));
      cuts_.add(tokens[rank]);
    }
    cuts_.build();
    merges_ = MergeTable(2 * tokens.size());
    for (std::size_t rank = 256; rank < tokens.size(); ++rank) add_merges(tokens[rank], rank);
    for (const auto& [token, id] : ids_) {
      if (!merges_to(token, id)) unreachable_.emplace(token, id);
    }
  }

  void encode(std::string_view word, std::vector<Symbol>& symbols) const override {
    symbols.clear();
    if (const auto whole = unreachable_.find(word); whole != unreachable_.end()) {
      symbols.push_back({whole->second, static_cast<std::uint32_t>(word.size())});
      return;
    }
    merge_bytes(word, symbols);
  }
  /// Null when there are tokens that only a whole piece can become.
  const CutTable* cuts() const override { return unreachable_.empty() ? &cuts_ : nullptr; }
  const Vocabulary& ids() const { return ids_; }

 private:
  void merge_bytes(std::string_view word, std::vector<Symbol>& symbols) const {
    for (const char byte : word) symbols.push_back({first_id_ + static_cast<unsigned char>(byte), 1});
    merge_symbols(merges_, symbols);
  }

  void add_merges(std::string_view token, std::size_t rank) {
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ids_.find(token.substr(0, cut)), right = ids_.find(token.substr(cut));
      if (left == ids_.end() || right == ids_.end()) continue;
      merges_.add(left->second, right->second,
                  {static_cast<std::uint32_t>(rank), first_id_ + static_cast<std::int32_t>(rank)});
    }
  }

  bool merges_to(std::string_view token, std::int32_t id) const {
    std::vector<Symbol> symbols;
    merge_bytes(token, symbols);
    return symbols.size() == 1 && symbols.front().id == id;
  }

  std::int32_t first_id_;
  Vocabulary ids_;
  Vocabulary unreachable_;  // tokens that merging their bytes does not give: only pieces that are just them
  MergeTable merges_;
  CutTable cuts_;
};

class TekkenTokenizer final : public Tokenizer {
 public:
  TekkenTokenizer(TekkenFile tekken, const std::string& file, const SpecialTokens& special,
                  const TokenizerOptions& options)
      : file_(std::move(tekken)),
        num_special_(static_cast<std::int32_t>(file_.special_tokens.size())),
        bpe_(file_.tokens, num_special_),
        pattern_(file_.pattern, file + ": config.pattern") {
    for (std::int32_t id = 0; id < num_special_; ++id) {
      const std::string& token = file_.special_tokens[static_cast<std::size_t>(id)];
      special_ids_.emplace(token, id);
      if (options.special_tokens_in_text) special_tokens_.add({id, token}, token);
    }
    bos_id_ = special_id("<s>");
    eos_id_ = special_id("</s>");
    pad_id_ = special_id("<pad>");
    adds_bos_ = bos_id_.has_value();
    apply_special_tokens(special);
  }

  Encoding encode(std::string_view text, bool with_offsets) const override;
  std::string decode(std::span<const std::int32_t> ids, bool skip_special) const override;
  std::optional<std::int32_t> token_to_id(std::string_view token) const override {
    if (const auto id = special_id(token)) return id;
    const auto found = bpe_.ids().find(token);
    return found == bpe_.ids().end() ? std::nullopt : std::optional<std::int32_t>(found->second);
  }
  std::string id_to_token(std::int32_t id) const override {
    if (id < 0 || id >= vocab_size()) return {};
    return is_special(id) ? file_.special_tokens[static_cast<std::size_t>(id)] : repair_utf8(bytes_of(id));
  }
  bool is_special(std::int32_t id) const override { return id >= 0 && id < num_special_; }
  std::int32_t vocab_size() const override { return num_special_ + static_cast<std::int32_t>(file_.tokens.size()); }

 private:
  std::optional<std::int32_t> special_id(std::string_view token) const {
    const auto found = special_ids_.find(token);
    return found == special_ids_.end() ? std::nullopt : std::optional<std::int32_t>(found->second);
  }
  const std::string& bytes_of(std::int32_t id) const {
    return file_.tokens[static_cast<std::size_t>(id - num_special_)];
  }
  void encode_stretch(std::string_view text, std::size_t begin, std::size_t end, WordEncoder& words, bool with_offsets,
                      Encoding& out) const;

  TekkenFile file_;
  std::int32_t num_special_;
  TekkenBpe bpe_;
  Regex pattern_;
  Vocabulary special_ids_;
  AddedTokenMatcher special_tokens_;
  std::uint64_t serial_ = WordCache::next_serial();
};

Encoding TekkenTokenizer::encode(std::string_view text, bool with_offsets) const {
  check_input_text(text);
  WordEncoder words(bpe_, serial_);
  Encoding out;
  out.ids.reserve(text.size() / 3);
  for (const auto& part : special_tokens_.split(text)) {
    if (part.id < 0) {
      encode_stretch(text, part.begin, part.end, words, with_offsets, out);
      continue;
    }
    out.ids.push_back(part.id);
    if (!with_offsets) continue;
    out.offsets.emplace_back(static_cast<std::uint32_t>(part.begin), static_cast<std::uint32_t>(part.end));
  }
  return out;
}

void TekkenTokenizer::encode_stretch(std::string_view text, std::size_t begin, std::size_t end, WordEncoder& words,
                                     bool with_offsets, Encoding& out) const {
  const std::string_view stretch = text.substr(begin, end - begin);
  Regex::Scan scan(pattern_, stretch);
  for (std::size_t at = 0, from = 0, to = 0; at < stretch.size(); at = to) {
    if (!scan.next(at, from, to) || from != at) {
      throw FormatError("tekken.json: config.pattern", "the pattern skips byte " + std::to_string(begin + at) +
                                                           " of a text; no part of a text may be dropped");
    }
    words.encode_piece(stretch.substr(from, to - from), [&](std::size_t position, std::span<const Symbol> symbols) {
      std::size_t symbol_begin = begin + from + position;
      for (const Symbol& symbol : symbols) {
        out.ids.push_back(symbol.id);
        if (with_offsets) out.offsets.push_back(whole_characters(text, symbol_begin, symbol_begin + symbol.length));
        symbol_begin += symbol.length;
      }
    });
  }
}

std::string TekkenTokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string text, bytes;  // bytes: of the tokens since the last special one
  for (const std::int32_t id : ids) {
    if (id < 0 || id >= vocab_size()) continue;
    if (!is_special(id)) {
      bytes += bytes_of(id);
      continue;
    }
    text += repair_utf8(bytes);
    bytes.clear();
    if (!skip_special) text += id_to_token(id);
  }
  return text + repair_utf8(bytes);
}

}  // namespace

std::unique_ptr<Tokenizer> make_tekken(std::string_view bytes, const std::string& file,
                                       const SpecialTokens& special_tokens, const TokenizerOptions& options) {
  return std::make_unique<TekkenTokenizer>(parse_tekken(bytes, file), file, special_tokens, options);
}

}  // namespace lora_train::tokenizer
