#include "lora_train/data/model_tokenizer.h"

#include <algorithm>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/tokenizer/chat/chat_template.h"

namespace lora_train::data {
namespace {

std::vector<std::int32_t> init_ids(const NewToken& token, const tokenizer::Tokenizer& tokenizer,
                                   std::int32_t first_new_id) {
  std::vector<std::int32_t> ids = tokenizer.encode(token.init_text).ids;
  const std::string which = fmt::format("init_text of \"{}\"", token.token);
  if (ids.empty()) {
    throw ConfigError("add_tokens", which + " has no tokens, so there is no row to start from. Use other words");
  }
  const auto is_new = [&](std::int32_t id) { return id >= first_new_id; };
  if (const auto found = std::ranges::find_if(ids, is_new); found != ids.end()) {
    throw ConfigError("add_tokens", "{} contains {}; that is also new and has no row to start from. Use other words",
                      which, tokenizer.id_to_token(*found));
  }
  return ids;
}

/// A normaliser that puts a space before words also puts it before the token to find.
void warn_if_not_found(const std::vector<std::string>& tokens, const tokenizer::Tokenizer& tokenizer) {
  for (const std::string& token : tokens) {
    const auto ids = tokenizer.encode("a" + token).ids;
    if (std::ranges::count(ids, tokenizer.token_to_id(token).value()) > 0) continue;
    log_warning("add_tokens: this tokenizer finds \"" + token +
                "\" only after a space or at the beginning of a text, because of its normalizer, as in transformers. "
                "Add it as {token: \"" +
                token + "\", normalized: false}, or write a space in front of it in the data");
    return;
  }
}

}  // namespace

std::unique_ptr<tokenizer::Tokenizer> load_tokenizer(const ModelSection& section, const std::filesystem::path& folder,
                                                     const std::vector<std::int64_t>& trained_ids) {
  const bool may_have_some = !trained_ids.empty() || section.add_tokens.empty();
  auto tokenizer = may_have_some ? tokenizer::load_tokenizer_if_present(folder) : nullptr;
  tokenizer::TokenizerOptions options;
  for (const NewToken& token : section.add_tokens) {
    const auto id = tokenizer ? tokenizer->token_to_id(token.token) : std::nullopt;
    if (id && std::ranges::count(trained_ids, *id) > 0) continue;
    options.new_tokens.push_back(token.token);
    if (!token.normalized) options.verbatim_tokens.push_back(token.token);
  }
  if (!options.new_tokens.empty()) tokenizer = tokenizer::load_tokenizer_if_present(folder, options);
  if (tokenizer) warn_if_not_found(options.new_tokens, *tokenizer);
  if (!tokenizer && !section.add_tokens.empty()) {
    throw ConfigError("add_tokens",
                      folder.string() + " has no tokenizer to add tokens to; copy the tokenizer files into it");
  }
  return tokenizer;
}

std::vector<NewRow> new_rows(const ModelSection& section, const tokenizer::Tokenizer& tokenizer,
                             const std::vector<std::int64_t>& trained_ids) {
  std::vector<NewRow> rows;
  for (const NewToken& token : section.add_tokens) {
    const std::int32_t id = tokenizer.token_to_id(token.token).value();
    if (std::ranges::count(trained_ids, id) > 0) continue;
    const std::int32_t first_new_id = rows.empty() ? id : rows.front().id;
    rows.push_back({id, {}});
    if (section.token_init == TokenInit::kDescription) rows.back().from = init_ids(token, tokenizer, first_new_id);
  }
  return rows;
}

}  // namespace lora_train::data
