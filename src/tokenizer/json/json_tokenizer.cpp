#include "bpe_model.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "normalizer.h"
#include "pre_tokenizer.h"
#include "tokenizer_files.h"

namespace lora_train::tokenizer {
namespace {

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

class JsonTokenizer final : public BpeTokenizer {
 public:
  JsonTokenizer(const JsonPlace& root, const SpecialTokens& special, const TokenizerOptions& options)
      : BpeTokenizer(PreTokenizer(root.section("pre_tokenizer")), root.at("model"), find_space_rule(root).has_value()),
        normalizer_(load_normalizer(root.section("normalizer"))),
        decoder_(load_decoder(root.section("decoder"))),
        space_rule_(model_.has_u2581() ? find_space_rule(root) : std::nullopt) {
    // truncation and padding are per-call settings, which Hugging Face resets; they have no effect here.
    root.allow_only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                     "post_processor", "decoder", "model"});
    num_model_tokens_ = static_cast<std::int32_t>(ids_.size());
    for (const auto& [token, id] : ids_) set_token(id, token);
    if (const auto list = root.find("added_tokens")) {
      for (const JsonPlace& entry : list->elements()) {
        add(read_added_token(entry, entry.at("id").id()), options);
      }
    }
    add_side_tokens(special, options);
    const JsonPlace post_processor = root.section("post_processor");
    if (const auto token = token_in_front(post_processor)) {
      bos_id_ = token_to_id(*token);
      if (!bos_id_) post_processor.fail(fmt::format("\"{}\" is not in the vocabulary", *token));
    }
    adds_bos_ = bos_id_.has_value();
    apply_special_tokens(special);
    warn_of_mistral_pattern(pre_tokenizer_, root.where(), special.model_type);
  }

  std::string decode(std::span<const std::int32_t> ids, bool skip_special) const override;

 private:
  void find_in_texts(const AddedToken& token) override;
  void encode_stretch(std::string_view text, std::size_t begin, std::size_t end, Run& run) const override;

  Normalizer normalizer_;
  Decoder decoder_;
  AddedTokenMatcher in_normalized_;
  std::optional<SpaceRule> space_rule_;  // then text is encoded unchanged, without normalizer and pre-tokenizer
};

void JsonTokenizer::find_in_texts(const AddedToken& token) {
  if (!token.normalized) return in_text_.add(token, token.content);
  NormalizedText content(token.content, 0, token.content.size());
  if (normalizer_) normalizer_(content);
  in_normalized_.add(token, std::string(content.text()));
  if (!in_normalized_.empty()) space_rule_.reset();  // which makes no normalised text
}

void JsonTokenizer::encode_stretch(std::string_view text, std::size_t begin, std::size_t end, Run& run) const {
  if (space_rule_) {
    return run.words.encode_spaced(text, begin, end, space_rule_->wants_prefix(text, begin),
                                   [&](std::int32_t id, ByteRange range) { run.push(id, range); });
  }
  NormalizedText stretch(text, begin, end);
  if (normalizer_) normalizer_(stretch);
  if (in_normalized_.empty()) return encode_pieces(stretch, run);
  for (const auto& part : in_normalized_.split(stretch.text())) {
    if (part.id >= 0) {
      run.push(part.id, stretch.input_range(part.begin, part.end));
    } else {
      NormalizedText slice = stretch.slice(part.begin, part.end);
      encode_pieces(slice, run);
    }
  }
}

std::string JsonTokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::vector<std::string> tokens;
  for (const std::int32_t id : ids) {
    if (!spelling(id).empty() && !(skip_special && is_special(id))) tokens.push_back(spelling(id));
  }
  if (decoder_) decoder_(tokens);
  return join(tokens, decoder_ ? "" : " ");
}

}  // namespace

std::unique_ptr<Tokenizer> make_json_tokenizer(std::string_view bytes, const std::string& file,
                                               const SpecialTokens& special_tokens, const TokenizerOptions& options) {
  const Json json = parse_json(bytes, file);
  return std::make_unique<JsonTokenizer>(JsonPlace(json, file), special_tokens, options);
}

}  // namespace lora_train::tokenizer
