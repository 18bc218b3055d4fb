#include "lora_train/tokenizer/tokenizer_data.h"

#include <sentencepiece_processor.h>

#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

#include "json/bpe_model.h"
#include "json/json_place.h"
#include "json/pre_tokenizer.h"
#include "lora_train/base/error.h"
#include "lora_train/storage/model_file.h"
#include "tokenizer_files.h"

namespace lora_train::tokenizer {
namespace {

using sentencepiece::SentencePieceProcessor;

/// An added token without a piece of its own is user-defined.
TokenKind kind_of_piece(const SentencePieceProcessor& processor, const SentencePieceFile& model,
                        const Tokenizer& tokenizer, int id) {
  const std::string text = tokenizer.id_to_token(id);
  const bool is_piece = id < processor.GetPieceSize();
  if (text.empty()) return TokenKind::kUnused;
  if (is_piece && processor.IsUnknown(id)) return TokenKind::kUnknown;
  if (tokenizer.is_special(id)) return TokenKind::kControl;
  if (!is_piece || processor.IsUnused(id) || model.user_defined.contains(text)) return TokenKind::kUserDefined;
  return processor.IsByte(id) ? TokenKind::kByte : TokenKind::kNormal;
}

/// Other formats hold only the pieces, and read text unchanged.
void check_exportable(const SentencePieceFile& model, const std::string& file) {
  if (!model.is_bpe) throw FormatError(file + ": trainer_spec.model_type", "only BPE models can be exported");
  if (!model.byte_fallback) throw FormatError(file + ": trainer_spec.byte_fallback", "false cannot be exported");
  if (model.has_charsmap)
    throw FormatError(file + ": normalizer_spec.precompiled_charsmap",
                      "a model that normalises text cannot be exported");
  if (model.remove_extra_whitespaces)
    throw FormatError(file + ": normalizer_spec.remove_extra_whitespaces", "true cannot be exported");
}

/// Throws FormatError for a model that is not BPE, has no byte pieces, or changes text first.
TokenizerData sentencepiece_data(std::string_view bytes, const std::string& file, const Tokenizer& tokenizer) {
  const SentencePieceFile model = check_sentencepiece_file(bytes, file);
  check_exportable(model, file);
  SentencePieceProcessor processor;
  if (const auto status = processor.LoadFromSerializedProto(model.bytes); !status.ok()) {
    throw FormatError(file, "SentencePiece refuses the model: " + std::string(status.message()));
  }
  TokenizerData data;
  data.model = TokenizerModel::kSentencePieceBpe;
  data.adds_space_prefix = model.add_dummy_prefix;
  for (int id = 0; id < tokenizer.vocab_size(); ++id) {
    data.tokens.push_back({tokenizer.id_to_token(id), kind_of_piece(processor, model, tokenizer, id),
                           id < processor.GetPieceSize() ? processor.GetScore(id) : 0});
  }
  if (processor.unk_id() >= 0) data.unk_id = processor.unk_id();
  return data;
}

const char* const kNotExported = " cannot be exported";

std::vector<JsonPlace> pre_tokenizer_steps(const JsonPlace& root) {
  const auto place = root.find("pre_tokenizer");
  if (!place) return {};
  return place->type() == "Sequence" ? place->at("pretokenizers").elements() : std::vector<JsonPlace>{*place};
}

std::vector<std::string> split_steps(const JsonPlace& root) {
  std::vector<std::string> steps;
  for (const JsonPlace& step : pre_tokenizer_steps(root)) {
    if (step.type() == "ByteLevel") {
      if (step.boolean_or("add_prefix_space", true)) step.fail("a prefix space" + std::string(kNotExported));
      if (step.boolean_or("use_regex", true)) steps.emplace_back("byte-level");
    } else if (step.type() == "Digits" && step.boolean_or("individual_digits", false)) {
      steps.emplace_back("digits");
    } else if (step.type() == "Split" && step.at("pattern").find("Regex") &&
               step.at("behavior").string() == "Isolated" && !step.boolean_or("invert", false)) {
      steps.push_back(step.at("pattern").at("Regex").string());
    } else {
      step.fail(fmt::format("\"{}\"{}", step.type(), kNotExported));
    }
  }
  return steps;
}

/// "a b" for a merge, in either form.
std::string merge_text(const JsonPlace& merge) {
  if (merge.value().is_string()) return merge.string();
  const std::string one = merge.element(0).string(), other = merge.element(1).string();
  if ((one + other).find(' ') != std::string::npos) merge.fail("holds a space, which" + std::string(kNotExported));
  return fmt::format("{} {}", one, other);
}

/// A token's score comes from its first merge; of two merges the earlier one comes first.
std::unordered_map<std::string, float> scores_of(const JsonPlace& merges) {
  std::unordered_map<std::string, float> scores;
  const std::size_t count = merges.value().size();
  for (std::size_t i = 0; i < count; ++i) {
    std::string text = merge_text(merges.element(i));
    text.erase(text.find(' ', 1), 1);
    scores.emplace(std::move(text), -static_cast<float>(i));
  }
  return scores;
}

/// True if text gets a space in front, in a pipeline whose spaces are U+2581.
bool has_space_prefix(const JsonPlace& root, const std::string& file) {
  const auto normalizer = root.find("normalizer"), pre_tokenizer = root.find("pre_tokenizer");
  if (const auto rule = find_space_rule(root)) return rule->prefix != SpaceRule::Prefix::kNever;
  const Json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\xE2\x96\x81"}};
  // Gemma cuts at spaces after replacing them all.
  const bool cuts_at_spaces = pre_tokenizer && pre_tokenizer->type() == "Split" &&
                              pre_tokenizer->at("pattern").value() == Json{{"String", " "}};
  if (normalizer && normalizer->value() == replace && (!pre_tokenizer || cuts_at_spaces)) return false;
  throw FormatError(file + ": normalizer", "this combination with pre_tokenizer" + std::string(kNotExported));
}

TokenKind kind_of(const std::string& text, bool is_added, bool is_special, bool is_unknown) {
  if (is_unknown) return TokenKind::kUnknown;
  if (is_special) return TokenKind::kControl;
  return is_added ? TokenKind::kUserDefined : byte_of_token(text) >= 0 ? TokenKind::kByte : TokenKind::kNormal;
}

std::set<std::string> added_tokens_of(const JsonPlace& root) {
  std::set<std::string> contents;
  const auto list = root.find("added_tokens");
  for (const JsonPlace& token : list ? list->elements() : std::vector<JsonPlace>())
    contents.insert(token.at("content").string());
  return contents;
}

TokenizerData json_data(const std::string& bytes, const std::string& file, const Tokenizer& tokenizer) {
  const Json json = parse_json(bytes, file);
  const JsonPlace root(json, file), model = root.at("model");
  TokenizerData data;
  const bool byte_level = PreTokenizer(root.section("pre_tokenizer")).is_byte_level();
  data.model = byte_level ? TokenizerModel::kByteLevelBpe : TokenizerModel::kSentencePieceBpe;
  const JsonPlace merges = model.at("merges"), vocabulary = model.at("vocab");
  std::unordered_map<std::string, float> scores;
  if (byte_level) {
    data.split = split_steps(root);
    data.ignore_merges = model.boolean_or("ignore_merges", false);
    for (std::size_t i = 0; i < merges.value().size(); ++i) data.merges.push_back(merge_text(merges.element(i)));
  } else {
    if (!model.boolean_or("byte_fallback", false)) model.fail("without byte_fallback" + std::string(kNotExported));
    data.adds_space_prefix = has_space_prefix(root, file);
    scores = scores_of(merges);
  }
  if (const auto unk = model.find("unk_token")) data.unk_id = tokenizer.token_to_id(unk->string());
  const std::set<std::string> added = added_tokens_of(root);
  const auto lowest = -static_cast<float>(merges.value().size());
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    TokenData token{tokenizer.id_to_token(id)};
    if (!token.text.empty()) {
      const bool is_added = added.contains(token.text) || !vocabulary.value().contains(token.text);
      token.kind = kind_of(token.text, is_added, tokenizer.is_special(id), !byte_level && id == data.unk_id);
      const auto score = scores.find(token.text);
      if (token.kind == TokenKind::kNormal && !byte_level) token.score = score == scores.end() ? lowest : score->second;
    }
    data.tokens.push_back(std::move(token));
  }
  return data;
}

}  // namespace

TokenizerData read_tokenizer_data(const std::filesystem::path& folder, const Tokenizer& tokenizer) {
  if (const auto file = folder / "tokenizer.json"; std::filesystem::exists(file)) {
    return json_data(storage::read_model_file(file), file.string(), tokenizer);
  }
  if (const auto file = folder / "tokenizer.model"; std::filesystem::exists(file)) {
    return sentencepiece_data(storage::read_model_file(file), file.string(), tokenizer);
  }
  const std::filesystem::path file = folder / "tekken.json";
  const std::string json = tekken_as_json(storage::read_model_file(file), file.string());
  return json_data(json, file.string(), *make_json_tokenizer(json, file.string(), read_special_tokens(folder), {}));
}

}  // namespace lora_train::tokenizer
