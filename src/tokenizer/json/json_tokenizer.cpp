#include <unordered_set>

#include "bpe/bpe.h"
#include "bpe_model.h"
#include "lora_train/base/log.h"
#include "normalizer.h"
#include "pre_tokenizer.h"
#include "tokenizer_files.h"

namespace lora_train::tokenizer {
namespace {

const Json kNull;

JsonPlace section(const JsonPlace& root, const std::string& key, const std::string& file) {
  const auto found = root.find(key);
  return found ? *found : JsonPlace(kNull, file, key);
}

// The token added before a plain text; fails for post-processors that would do anything else to a single text.
std::optional<std::string> token_in_front(const JsonPlace& place) {
  if (place.is_null()) return std::nullopt;
  const std::string& type = place.type();
  if (type == "ByteLevel") return std::nullopt;
  if (type == "Sequence") {
    std::optional<std::string> token;
    for (const JsonPlace& part : place.at("processors").elements()) {
      if (auto found = token_in_front(part)) token = std::move(found);
    }
    return token;
  }
  if (type != "TemplateProcessing") {
    place.fail("post-processor \"" + type +
               "\" is not supported; expected one of ByteLevel, TemplateProcessing, Sequence");
  }
  const JsonPlace single = place.at("single");
  const auto steps = single.elements();
  const bool has_token = steps.size() == 2;
  if (steps.empty() || steps.size() > 2 || !steps.back().find("Sequence")) {
    single.fail("is not supported; expected the text alone, or with one special token before it");
  }
  return has_token ? std::optional(steps.front().at("SpecialToken").at("id").string()) : std::nullopt;
}

// Until November 2025, conversions of Mistral's tekken tokenizers had Llama 3's split pattern (fix_mistral_regex in
// transformers). The file's ids are kept: an adapter must match its server.
void warn_of_mistral_pattern(const PreTokenizer& pre_tokenizer, const std::string& file,
                             const std::string& model_type) {
  const bool is_mistral = model_type == "mistral" || model_type == "mistral3" || model_type == "ministral" ||
                          model_type == "pixtral" || model_type == "voxtral";
  if (!is_mistral || !pre_tokenizer.has_llama3_pattern()) return;
  log_warning(
      file +
      ": pre_tokenizer has Llama 3's pattern instead of Mistral's, as in early conversions (transformers: "
      "fix_mistral_regex). It is used unchanged; serve the adapter with this same file, or train with tekken.json or a "
      "newer tokenizer.json");
}

class JsonTokenizer final : public Tokenizer {
 public:
  JsonTokenizer(const JsonPlace& root, const std::string& file, const SpecialTokens& special,
                const TokenizerOptions& options)
      : normalizer_(load_normalizer(section(root, "normalizer", file))),
        pre_tokenizer_(section(root, "pre_tokenizer", file)),
        space_rule_(
            find_space_rule(section(root, "normalizer", file).value(), section(root, "pre_tokenizer", file).value())),
        model_(root.at("model"), {pre_tokenizer_.is_byte_level(), space_rule_.has_value()}),
        decoder_(load_decoder(section(root, "decoder", file))) {
    // truncation and padding are per-call settings, which Hugging Face resets; they have no effect here.
    root.allow_only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                     "post_processor", "decoder", "model"});
    for (const auto& [token, id] : model_.vocabulary()) set_spelling(id, token);
    load_added(section(root, "added_tokens", file), special, options);
    choose_space_rule();
    if (const auto token = token_in_front(section(root, "post_processor", file))) {
      bos_id_ = token_to_id(*token);
      if (!bos_id_) throw FormatError(file + ": post_processor", "\"{}\" is not in the vocabulary", *token);
    }
    adds_bos_ = bos_id_.has_value();
    apply_special_tokens(special);
    warn_of_mistral_pattern(pre_tokenizer_, file, special.model_type);
  }

  Encoding encode(std::string_view text, bool with_offsets) const override;
  std::string decode(std::span<const std::int32_t> ids, bool skip_special) const override;
  std::optional<std::int32_t> token_to_id(std::string_view token) const override;
  std::string id_to_token(std::int32_t id) const override { return spelling(id) ? *spelling(id) : std::string(); }
  bool is_special(std::int32_t id) const override { return special_.contains(id); }
  std::int32_t vocab_size() const override { return static_cast<std::int32_t>(spellings_.size()); }

 protected:
  // As in tokenizers: AddedVocabulary::add_tokens.
  std::optional<std::int32_t> next_added_id() const override {
    std::int64_t next = std::ssize(model_.vocabulary());
    for (const auto& [token, id] : added_ids_) next = std::max<std::int64_t>(next, id + 1);
    return static_cast<std::int32_t>(next);
  }
  void add_token(const AddedToken& token) override {
    add_token(token, {}, "add_tokens");
    choose_space_rule();
  }

 private:
  struct Run;  // the state of one encode call

  void load_added(const JsonPlace& place, const SpecialTokens& special, const TokenizerOptions& options);
  void add_token(const AddedToken& token, const TokenizerOptions& options, const std::string& where);
  void choose_space_rule();
  void set_spelling(std::int32_t id, const std::string& token);
  const std::string* spelling(std::int32_t id) const;
  void encode_stretch(NormalizedText stretch, Run& run) const;
  void encode_normalized(NormalizedText& text, Run& run) const;

  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  std::optional<SpaceRule> space_rule_;  // then text is encoded unchanged, without normalizer and pre-tokenizer
  BpeModel model_;
  Decoder decoder_;
  AddedTokenMatcher raw_added_, normalized_added_;
  Vocabulary added_ids_;
  std::unordered_set<std::int32_t> special_;
  std::vector<std::string> spellings_;  // by id; "" = none
  std::uint64_t serial_ = WordCache::next_serial();
};

struct JsonTokenizer::Run {
  bool with_offsets;
  WordEncoder words;
  Encoding out;
  Pieces pieces;

  void push(std::int32_t id, ByteRange range) {
    out.ids.push_back(id);
    if (with_offsets) out.offsets.push_back(range);
  }
};

// Normalised added tokens are matched in the normalised text, which the rule does not make.
void JsonTokenizer::choose_space_rule() {
  if (!normalized_added_.empty() || !model_.has_u2581()) space_rule_.reset();
}

void JsonTokenizer::set_spelling(std::int32_t id, const std::string& token) {
  const auto index = static_cast<std::size_t>(id);
  if (index >= spellings_.size()) spellings_.resize(index + 1);
  spellings_[index] = token;
}

const std::string* JsonTokenizer::spelling(std::int32_t id) const {
  const auto index = static_cast<std::size_t>(id);
  return id >= 0 && index < spellings_.size() ? &spellings_[index] : nullptr;
}

void JsonTokenizer::load_added(const JsonPlace& place, const SpecialTokens& special, const TokenizerOptions& options) {
  if (!place.is_null()) {
    for (const JsonPlace& entry : place.elements()) {
      add_token(read_added_token(entry, entry.at("id").id()), options, entry.where());
    }
  }
  // Hugging Face adds tokens that only tokenizer_config.json has; for the others, the flags of tokenizer.json apply.
  for (const AddedToken& token : special.added) {
    if (!added_ids_.contains(token.content)) add_token(token, options, "tokenizer_config.json: added_tokens_decoder");
  }
  for (const std::string& name : special.in_text()) {
    const auto id = token_to_id(name);
    if (!id || added_ids_.contains(name)) continue;
    add_token({.id = *id, .content = name, .normalized = false, .special = true}, options, "tokenizer_config.json");
  }
}

void JsonTokenizer::add_token(const AddedToken& token, const TokenizerOptions& options, const std::string& where) {
  const std::string* taken = spelling(token.id);
  if (taken != nullptr && !taken->empty() && *taken != token.content) {
    throw FormatError(where, "id {} of added token \"{}\" already belongs to \"{}\"", token.id, token.content, *taken);
  }
  const auto refuse_other_id = [&](const Vocabulary& ids, const char* place) {
    if (const std::int32_t other = find_id(ids, token.content).value_or(token.id); other != token.id)
      throw FormatError(where, "added token \"{}\" has id {} here and id {} {}", token.content, token.id, other, place);
  };
  refuse_other_id(added_ids_, "before");
  refuse_other_id(model_.vocabulary(), "in model.vocab");
  if (static_cast<std::size_t>(token.id) >= spellings_.size() + kMaxUnusedIds) {
    throw FormatError(where, "id {} of added token \"{}\" is far above the {} tokens", token.id, token.content,
                      spellings_.size());
  }
  set_spelling(token.id, token.content);
  added_ids_[token.content] = token.id;
  if (token.special) special_.insert(token.id);
  if (token.special && !options.special_tokens_in_text) return;
  if (!token.normalized || !normalizer_) {
    (token.normalized ? normalized_added_ : raw_added_).add(token, token.content);
    return;
  }
  NormalizedText content(token.content, 0, token.content.size());
  normalizer_(content);
  normalized_added_.add(token, std::string(content.text()));
}

Encoding JsonTokenizer::encode(std::string_view text, bool with_offsets) const {
  check_input_text(text);
  Run run{with_offsets, WordEncoder(model_, serial_), {}, {}};
  run.out.ids.reserve(text.size() / 3);
  for (const auto& part : raw_added_.split(text)) {
    if (part.id >= 0) {
      run.push(part.id, {static_cast<std::uint32_t>(part.begin), static_cast<std::uint32_t>(part.end)});
    } else if (space_rule_) {
      run.words.encode_spaced(text, part.begin, part.end, space_rule_->wants_prefix(text, part.begin),
                              [&](std::int32_t id, ByteRange range) { run.push(id, range); });
    } else {
      encode_stretch(NormalizedText(text, part.begin, part.end), run);
    }
  }
  return std::move(run.out);
}

void JsonTokenizer::encode_stretch(NormalizedText stretch, Run& run) const {
  if (normalizer_) normalizer_(stretch);
  if (normalized_added_.empty()) return encode_normalized(stretch, run);
  for (const auto& part : normalized_added_.split(stretch.text())) {
    if (part.id >= 0) {
      run.push(part.id, stretch.input_range(part.begin, part.end));
    } else {
      NormalizedText slice = stretch.slice(part.begin, part.end);
      encode_normalized(slice, run);
    }
  }
}

void JsonTokenizer::encode_normalized(NormalizedText& text, Run& run) const {
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

std::string JsonTokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::vector<std::string> tokens;
  for (const std::int32_t id : ids) {
    const std::string* token = spelling(id);
    if (token != nullptr && !token->empty() && !(skip_special && is_special(id))) tokens.push_back(*token);
  }
  if (decoder_) decoder_(tokens);
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0 && !decoder_) text += ' ';
    text += tokens[i];
  }
  return text;
}

std::optional<std::int32_t> JsonTokenizer::token_to_id(std::string_view token) const {
  const auto added = find_id(added_ids_, token);
  return added ? added : find_id(model_.vocabulary(), token);
}

}  // namespace

std::unique_ptr<Tokenizer> make_json_tokenizer(std::string_view bytes, const std::string& file,
                                               const SpecialTokens& special_tokens, const TokenizerOptions& options) {
  const Json json = parse_json(bytes, file);
  return std::make_unique<JsonTokenizer>(JsonPlace(json, file), file, special_tokens, options);
}

}  // namespace lora_train::tokenizer
