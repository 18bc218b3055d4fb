#include "lora_train/lora/usage_section.h"

namespace lora_train::lora {
namespace {

constexpr const char* kHeading = "## Use\n\nPEFT:\n";

/// The values that vLLM accepts for --max-lora-rank; the largest rank of an adapter is rounded up. Source: vllm/config/lora.py.
std::string vllm_command(const AdapterUse& use) {
  for (const std::int64_t rank : {8, 16, 32, 64, 128, 256, 320, 512}) {
    if (rank < use.largest_rank) continue;
    return "```sh\nvllm serve " + use.base + " --enable-lora --lora-modules my-adapter=" + use.adapter +
           " --max-lora-rank " + std::to_string(rank) + "\n```";
  }
  return "not possible: vLLM supports ranks up to 512, and this adapter has " + std::to_string(use.largest_rank) + ".";
}

std::string what_is_refused(const AdapterUse& use) {
  if (use.is_plain) return "Plain LoRA: all three support it.\n";
  return "This adapter uses rsLoRA or rank and alpha patterns. PEFT supports them; llama.cpp ignores rsLoRA and vLLM "
         "ignores patterns, so both would scale it wrongly. For them, convert it first:\n\n```sh\nlora-train merge "
         "--portable --adapter " +
         use.adapter + " --output-dir " + use.adapter + "-portable\n```\n";
}

}  // namespace

std::string usage_section(const AdapterUse& use) {
  return std::string(kHeading) +
         "\n```python\nfrom peft import PeftModel\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n"
         "model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(\"" +
         use.base + "\"), \"" + use.adapter + "\")\ntokenizer = AutoTokenizer.from_pretrained(\"" + use.adapter +
         "\")\n```\n\nvLLM:\n\n" + vllm_command(use) +
         "\n\nllama.cpp:\n\n```sh\npython convert_lora_to_gguf.py --base " + use.base + " " + use.adapter +
         "\n```\n\n" + what_is_refused(use) +
         "\nAs a whole model, where a server takes no adapters:\n\n```sh\nlora-train merge --model " + use.base +
         " --adapter " + use.adapter + " --output-dir " + use.adapter + "-merged\n```\n";
}

std::string with_usage_section(const std::string& card, const AdapterUse& use) {
  const std::size_t begin = card.find(kHeading);
  return begin == std::string::npos ? card : card.substr(0, begin) + usage_section(use);
}

}  // namespace lora_train::lora
