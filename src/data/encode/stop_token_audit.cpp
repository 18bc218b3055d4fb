#include "stop_token_audit.h"

#include <algorithm>

#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "lora_train/tokenizer/tokenizer.h"

namespace lora_train::data {
namespace {

std::string named(const tokenizer::Tokenizer& tokenizer, std::int32_t id) {
  return fmt::format("{} (id {})", tokenizer.id_to_token(id), id);
}

std::int64_t count_trained(const DocumentStore& store, std::int32_t id) {
  std::int64_t count = 0;
  StopPoll stop_poll;
  for (std::size_t i = 0; i < store.size(); ++i) {
    stop_poll();
    const auto labels = store.labels(i);
    count += std::count(labels.begin() + 1, labels.end(), id);
  }
  return count;
}

// Empty if a server that reads the folder stops at `id`.
std::optional<std::string> not_an_end_token(const tokenizer::Tokenizer& tokenizer, std::int32_t id) {
  std::vector<std::int32_t> ends = tokenizer.generation_eos_ids();
  const bool has_file = !ends.empty();
  if (!has_file && tokenizer.eos_id()) {
    ends = {*tokenizer.eos_id()};
  }
  if (std::find(ends.begin(), ends.end(), id) != ends.end()) return std::nullopt;
  std::vector<std::string> names;
  for (const std::int32_t end : ends) {
    names.push_back(named(tokenizer, end));
  }
  return fmt::format(
      "the chat template ends a turn with {}, but {} names {}. The result and a merged model list it too; a server "
      "that loads the base with the adapter stops there only if you add {} to eos_token_id in the base's "
      "generation_config.json",
      named(tokenizer, id), has_file ? "generation_config.json" : "the tokenizer",
      names.empty() ? "no end token" : join(names) + " as the end", id);
}

}  // namespace

StopTokenAudit audit_stop_token(const tokenizer::Tokenizer& tokenizer, const tokenizer::ChatTemplate& chat_template,
                                const DocumentStore& train) {
  StopTokenAudit audit;
  audit.id = tokenizer::end_of_turn_id(chat_template, tokenizer);
  if (const auto end = tokenizer::end_of_turn_in_pieces(chat_template, tokenizer)) {
    audit.warnings.push_back(
        fmt::format("the chat template ends a turn with \"{}\", which this tokenizer cuts into {} ordinary tokens: it "
                    "was made for another tokenizer, and generation will not stop at the end of an answer. Use the "
                    "model's own template (chat_template: tokenizer) or one whose tokens this tokenizer has, or add "
                    "them with add_tokens",
                    visible_text(*end), tokenizer.encode(*end).ids.size()));
    return audit;
  }
  if (!audit.id) {
    audit.warnings.push_back(
        "the chat template writes no token that ends an answer (to a plain question): a model trained with it may not "
        "learn to stop. Use a template that ends a turn (chat_template: a .jinja file)");
    return audit;
  }
  if (auto warning = not_an_end_token(tokenizer, *audit.id)) {
    audit.warnings.push_back(std::move(*warning));
  }
  if (!train.empty() && count_trained(train, *audit.id) == 0) {
    audit.warnings.push_back(
        "the end of a turn, " + named(tokenizer, *audit.id) +
        ", is not trained in any example, so the model does not learn to stop. See what is trained with `tokenize "
        "--show 2`; it depends on loss_on and overlength: truncate");
  }
  return audit;
}

std::optional<std::string> audit_end_of_text(const tokenizer::Tokenizer& tokenizer) {
  if (tokenizer.eos_id()) return std::nullopt;
  return "the model folder names no end token, so nothing marks the end of an example and the model does not learn to "
         "stop. Name one: eos_token in tokenizer_config.json, or eos_token_id in generation_config.json";
}

}  // namespace lora_train::data
