#include "prompt_tokenizer.h"

#include <algorithm>
#include <memory>

#include "lora_train/base/error.h"
#include "lora_train/storage/resolve_model.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "lora_train/tokenizer/model_folder.h"

namespace lora_train::cli {
namespace {

using Ids = std::vector<std::int32_t>;

/// Answers begin with a letter, a digit, a bracket, a quote, a mark, a letter of several bytes.
constexpr const char* kAnswers[] = {"Yes.",  "no",  "42",  "(a)",           "<b>",
                                    "\"c\"", "- d", "`e`", "\u00c9t\u00e9", "\u4e2d\u6587"};

Ids joined(Ids first, const Ids& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

bool keeps_apart(const tokenizer::Tokenizer& tokenizer, const std::string& prompt, const std::string& opening) {
  const Ids ids = tokenizer.encode(prompt).ids;
  return std::ranges::all_of(kAnswers, [&](const std::string& answer) {
    return tokenizer.encode(prompt + opening + answer).ids == joined(ids, tokenizer.encode(opening + answer).ids);
  });
}

std::string end_of_turn(const std::filesystem::path& folder, const tokenizer::Tokenizer& tokenizer) {
  try {
    const auto own = tokenizer::load_chat_template("tokenizer", folder, /*is_quiet=*/true);
    const auto id = own ? tokenizer::end_of_turn_id(*own, tokenizer) : std::nullopt;
    return id ? tokenizer.id_to_token(*id) : "";
  } catch (const Error&) {  // the run will say what is wrong with it
    return "";
  }
}

}  // namespace

std::optional<PromptTokens> find_prompt_tokens(const std::string& model) {
  try {
    const std::filesystem::path folder = storage::resolve_model(model).folder;
    const std::shared_ptr<const tokenizer::Tokenizer> tokenizer = tokenizer::load_tokenizer_if_present(folder);
    if (!tokenizer) return std::nullopt;
    return PromptTokens{tokenizer->adds_bos(),
                        [tokenizer](const std::string& prompt, const std::string& opening) {
                          return keeps_apart(*tokenizer, prompt, opening);
                        },
                        tokenizer->eos_id() ? tokenizer->id_to_token(*tokenizer->eos_id()) : "",
                        end_of_turn(folder, *tokenizer),
                        [tokenizer](const std::string& token) { return tokenizer->token_to_id(token).has_value(); }};
  } catch (const Error&) {  // not on this machine, or not ours to judge
    return std::nullopt;
  }
}

}  // namespace lora_train::cli
