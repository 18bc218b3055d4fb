#include "lora_train/lora/usage_section.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lora_train/base/utf8.h"

namespace lora_train::lora {
namespace {

/// For a POSIX shell.
std::string shell_word(const std::string& text) {
  constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./=:@%+,";
  if (!text.empty() && text.front() != '-' && text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? "'\\''" : std::string(1, c);
  return word + "'";
}

/// A literal of Python, YAML and JSON.
std::string literal(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

constexpr const char* kHeading = "## Use\n\nPEFT:\n";

/// The values that vLLM accepts for --max-lora-rank; the largest rank of an adapter is rounded up. Source:
/// vllm/config/lora.py.
std::string vllm_command(const AdapterUse& use) {
  if (use.has_token_rows) return "not possible: vLLM does not support trained token rows; serve the merged model.";
  for (const std::int64_t rank : {8, 16, 32, 64, 128, 256, 320, 512}) {
    if (rank < use.largest_rank) continue;
    const std::string names = use.base_class.empty()
                                  ? ""
                                  : fmt::format(
                                        "\n\nThe adapter has the names of {}, the class that vLLM serves this "
                                        "base as; a text-only copy of the base does not fit it.",
                                        use.base_class);
    return fmt::format("```sh\nvllm serve {} --enable-lora --lora-modules {} --max-lora-rank {}\n```{}",
                       shell_word(use.base), shell_word("my-adapter=" + use.adapter), rank, names);
  }
  return fmt::format("not possible: vLLM supports ranks up to 512, and this adapter has {}.", use.largest_rank);
}

std::string llama_cpp_command(const AdapterUse& use) {
  if (use.has_token_rows)
    return "not possible: llama.cpp does not support trained token rows; convert the merged model.";
  return fmt::format("```sh\nlora-train export --gguf adapter.gguf --model {} --adapter {}\n```", shell_word(use.base),
                     shell_word(use.adapter));
}

std::string peft_lines(const AdapterUse& use) {
  const std::string resize =
      use.vocab_size == 0 ? "" : fmt::format("base.resize_token_embeddings({})\n", use.vocab_size);
  const std::string of_class = use.base_class.empty() ? "AutoModelForCausalLM" : use.base_class;
  return "from peft import PeftModel\nfrom transformers import " + of_class + ", AutoTokenizer\nbase = " + of_class +
         ".from_pretrained(" + literal(use.base) + ")\n" + resize + "model = PeftModel.from_pretrained(base, " +
         literal(use.adapter) + ")\ntokenizer = AutoTokenizer.from_pretrained(" + literal(use.adapter) + ")\n";
}

std::string what_is_refused(const AdapterUse& use) {
  if (use.has_token_rows) return "This adapter has trained token rows, which only PEFT supports.\n";
  if (use.is_plain) return "Plain LoRA: all three support it.\n";
  return fmt::format(
      "This adapter uses rsLoRA or rank and alpha patterns. PEFT and `lora-train export` support them; older vLLM "
      "versions ignore patterns, and llama.cpp's own converter ignores rsLoRA. For these, convert it "
      "first:\n\n```sh\nlora-train merge --portable --adapter {} --output-dir {}\n```\n",
      shell_word(use.adapter), shell_word(use.adapter + "-portable"));
}

}  // namespace

std::string one_line(const std::string& text) {
  std::string line = visible_text(text);
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

std::string card_head(const std::string& base, const std::string& library) {
  return fmt::format("---\nbase_model: {}\nlibrary_name: {}\n", literal(base), library);
}

std::string usage_section(const AdapterUse& given) {
  AdapterUse use = given;
  use.base = one_line(use.base);
  use.adapter = one_line(use.adapter);
  return std::string(kHeading) + "\n```python\n" + peft_lines(use) + "```\n\nvLLM:\n\n" + vllm_command(use) +
         "\n\nllama.cpp:\n\n" + llama_cpp_command(use) + "\n\n" + what_is_refused(use) +
         "\nAs a whole model, for servers that do not take adapters:\n\n```sh\nlora-train merge --model " +
         shell_word(use.base) + " --adapter " + shell_word(use.adapter) + " --output-dir " +
         shell_word(use.adapter + "-merged") + "\n```\n";
}

std::string with_usage_section(const std::string& card, const AdapterUse& use) {
  const std::size_t begin = card.find(kHeading);
  return begin == std::string::npos ? card : card.substr(0, begin) + usage_section(use);
}

}  // namespace lora_train::lora
