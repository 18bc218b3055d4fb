#include "special_tokens.h"

#include <algorithm>
#include <charconv>

#include "lora_train/base/error.h"
#include "lora_train/storage/model_file.h"
#include "lora_train/tokenizer/tokenizer.h"

namespace lora_train::tokenizer {
namespace {

// A token is written as a string or as an added-token object.
std::optional<std::string> token_text(const JsonPlace& place) {
  if (place.is_null()) return std::nullopt;
  return place.value().is_object() ? place.at("content").string() : place.string();
}

void read_named(const JsonPlace& root, SpecialTokens& out) {
  if (!root.value().is_object()) root.fail("expected an object");
  for (const auto& [key, value] : root.value().items()) {
    const bool is_token = key.ends_with("_token") && !key.starts_with("add_") && !value.is_boolean();
    if (!is_token || out.named.contains(key)) continue;
    out.named[key] = token_text(root.at(key));
  }
}

void read_added(const JsonPlace& place, SpecialTokens& out) {
  if (!place.value().is_object()) place.fail("expected an object");
  for (const auto& [key, value] : place.value().items()) {
    std::int32_t id = 0;
    const auto parsed = std::from_chars(key.data(), key.data() + key.size(), id);
    if (parsed.ec != std::errc() || parsed.ptr != key.data() + key.size() || id < 0 || id >= (1 << 24)) {
      place.fail("\"" + key + "\" is not a token id");
    }
    out.added.push_back(read_added_token(place.at(key), id));
  }
  std::sort(out.added.begin(), out.added.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
}

// A list of tokens, or an object of name: token.
void read_additional(const JsonPlace& root, const char* key, SpecialTokens& out) {
  const auto list = root.find(key);
  if (!list) return;
  const auto add = [&](const JsonPlace& place) {
    if (const auto token = token_text(place)) out.additional.push_back(*token);
  };
  if (list->value().is_object()) {
    for (const auto& [name, value] : list->value().items()) add(list->at(name));
  } else {
    for (const JsonPlace& element : list->elements()) add(element);
  }
}

void read_token_map(const JsonPlace& root, SpecialTokens& out) {
  read_named(root, out);
  read_additional(root, "additional_special_tokens", out);
  read_additional(root, "extra_special_tokens", out);
}

// {token: id}, what transformers wrote before added_tokens_decoder.
void read_added_tokens_file(const JsonPlace& root, SpecialTokens& out) {
  if (!root.value().is_object()) root.fail("expected an object of token: id");
  const std::vector<std::string> special = out.in_text();
  for (const auto& [content, value] : root.value().items()) {
    AddedToken token{.id = root.at(content).id(), .content = content, .normalized = false};
    token.special = std::find(special.begin(), special.end(), content) != special.end();
    out.added.push_back(std::move(token));
  }
  std::sort(out.added.begin(), out.added.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
}

void read_tokenizer_config(const JsonPlace& root, SpecialTokens& out) {
  read_token_map(root, out);
  if (const auto add_bos = root.find("add_bos_token")) out.add_bos_token = add_bos->boolean();
  out.legacy = root.boolean_or("legacy", true);
  if (const auto added = root.find("added_tokens_decoder")) read_added(*added, out);
}

void read_generation_config(const JsonPlace& root, SpecialTokens& out) {
  const auto eos = root.find("eos_token_id");
  if (!eos) return;
  if (!eos->value().is_array()) {
    out.generation_eos_ids.push_back(eos->id());
    return;
  }
  for (const JsonPlace& id : eos->elements()) out.generation_eos_ids.push_back(id.id());
}

}  // namespace

std::optional<std::string> SpecialTokens::name(const std::string& key) const {
  const auto found = named.find(key);
  return found == named.end() ? std::nullopt : found->second;
}

std::vector<std::string> SpecialTokens::in_text() const {
  std::vector<std::string> tokens = additional;
  for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    if (auto token = name(key); token && !token->empty()) tokens.push_back(std::move(*token));
  }
  return tokens;
}

SpecialTokens read_special_tokens(const std::filesystem::path& folder) {
  SpecialTokens out;
  const auto read = [&](const char* file, void (*use)(const JsonPlace&, SpecialTokens&)) {
    const std::filesystem::path path = folder / file;
    if (!std::filesystem::exists(path)) return;
    const std::string bytes = storage::read_model_file(path);
    const Json json = parse_json(bytes, path.string());
    use(JsonPlace(json, path.string()), out);
    out.bytes += bytes;
    out.bytes += '\0';
  };
  read("tokenizer_config.json", read_tokenizer_config);
  read("special_tokens_map.json", read_token_map);
  if (out.added.empty() && !std::filesystem::exists(folder / "tokenizer.json")) {
    read("added_tokens.json", read_added_tokens_file);
  }
  read("generation_config.json", read_generation_config);
  if (const auto config = folder / "config.json"; std::filesystem::exists(config)) {  // decides no ids
    const Json json = parse_json_file(config);
    out.model_type = JsonPlace(json, config.string()).string_or("model_type", "");
  }
  return out;
}

void Tokenizer::apply_special_tokens(const SpecialTokens& special_tokens) {
  const auto set = [&](const char* key, std::optional<std::int32_t>& id) {
    if (!special_tokens.named.contains(key)) return;
    const auto name = special_tokens.name(key);
    id = name ? token_to_id(*name) : std::nullopt;
    if (!name || id) return;
    throw FormatError("tokenizer_config.json or special_tokens_map.json: " + std::string(key),
                      "\"" + *name + "\" is not in the vocabulary; name a token that is, or null");
  };
  generation_eos_ids_ = special_tokens.generation_eos_ids;
  if (!eos_id_ && !generation_eos_ids_.empty()) eos_id_ = generation_eos_ids_.front();
  set("bos_token", bos_id_);
  set("eos_token", eos_id_);
  set("pad_token", pad_id_);
  adds_bos_ = special_tokens.add_bos_token.value_or(adds_bos_) && bos_id_.has_value();
}

}  // namespace lora_train::tokenizer
