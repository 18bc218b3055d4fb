#include "answer_request.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"
#include "lora_train/storage/model_weights.h"

namespace lora_train::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string hash_of_adapter(const std::filesystem::path& adapter) {
  std::string hashes;
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    if (std::filesystem::exists(adapter / name)) hashes += hash_file(adapter / name).hash;
  }
  return hash128_hex(hashes);
}

}  // namespace

std::vector<std::int64_t> answer_lengths(const std::vector<data::Prompt>& prompts, std::int64_t max_new_tokens,
                                         std::int64_t context) {
  std::vector<std::int64_t> lengths;
  std::size_t num_short = 0;
  for (const auto& prompt : prompts) {
    const auto num_tokens = static_cast<std::int64_t>(prompt.ids.size());
    if (num_tokens >= context) {
      throw DataError(prompt.source, "the prompt has " + format_count(num_tokens) +
                                         " tokens and leaves no room for an answer: "
                                         "the model's context (max_position_embeddings) is " +
                                         format_count(context) + ". Shorten or remove it");
    }
    lengths.push_back(std::min(max_new_tokens, context - num_tokens));
    num_short += lengths.back() < max_new_tokens ? 1 : 0;
  }
  if (num_short > 0) {
    log_warning(format_count(static_cast<long long>(num_short)) + " of " +
                format_count(static_cast<long long>(prompts.size())) + " prompts leave room for fewer than " +
                format_count(max_new_tokens) + " tokens in the context of " + format_count(context));
  }
  return lengths;
}

GenerationSettings model_settings(const ModelSection& section, const std::string& adapter, const ModelFolders& folders,
                                  bool is_raw) {
  const std::string model =
      hash128_hex(hash_file(folders.config.path).hash + storage::open_model_weights(folders.model).fingerprint());
  const auto text = [](const std::string& value) { return Json(repair_utf8(value)).dump(); };
  const bool is_chat = !is_raw && folders.chat_template != nullptr;
  return {{"model", text(section.path)},
          {"model_fingerprint", text(model)},
          {"tokenizer_fingerprint", text(folders.tokenizer->fingerprint())},
          {"adapter", adapter.empty() ? "null" : text(adapter)},
          {"adapter_fingerprint", adapter.empty() ? "null" : text(hash_of_adapter(folders.adapter))},
          {"precision", text(to_string(section.precision))},
          {"chat_template_fingerprint", is_chat ? text(folders.chat_template->fingerprint()) : "null"}};
}

GenerationSettings sampling_settings(const SamplingOptions& sampling) {
  return {{"temperature", Json(sampling.temperature).dump()},
          {"top_p", Json(sampling.top_p).dump()},
          {"top_k", Json(sampling.top_k).dump()},
          {"min_p", Json(sampling.min_p).dump()},
          {"seed", sampling.temperature > 0 ? Json(sampling.seed).dump() : "null"}};
}

}  // namespace lora_train::cli
