// Keys of the model, the device and the adapter.
#include "field_kinds.h"

namespace lora_train {
namespace {

// init_adapter brings these values; a key that was not given stays silent in what is written.
std::function<bool(const Profile&)> comes_from_adapter(const std::string& key) {
  return [key](const Profile& profile) { return !profile.adapter.init_adapter.empty() && !profile.is_given(key); };
}

FieldGroup model_group() {
  return {
      "Model and device",
      {text_field("model", &ModelSection::path, "folder, or org/name[@revision]",
                  "Base model: a Hugging Face folder, or a name in the local Hugging Face cache "
                  "(the network is never touched).")
           .default_is("required"),
       text_field("base_model_name", &ModelSection::base_model_name, "org/name",
                  "Name written into adapter_config.json and the model card when `model` is a folder outside the "
                  "cache. Default: the name found in the cache, else the path.")
           .free_on_resume(),
       choice_field("device", &RunSection::device,
                    "Where to compute. auto uses the CPU only if the machine has no NVIDIA device (/dev/nvidia0).")
           .free_on_resume(),
       choice_field("precision", &ModelSection::precision,
                    "Data type of the computation. LoRA weights, their gradients, optimizer state, norms, softmax "
                    "and loss stay in fp32 under bf16 too."),
       choice_field(
           "base_precision", &ModelSection::base_precision,
           "How the frozen linears of the decoder layers are kept in memory. auto: quantised if the folder is, "
           "else as `precision`. nf4, int8, fp8: quantised while they are read. bf16, fp32 (equal to "
           "`precision`): decoded once if the folder is quantised."),
       flag_field("tf32", &RunSection::tf32, "Allow TF32 in fp32 matrix products on a GPU. No effect on a CPU."),
       flag_field("double_quant", &ModelSection::double_quant, "Quantise the scales of base_precision: nf4 as well."),
       integer_field("decoded_layers", &ModelSection::decoded_layers, Range::at_least(0), "auto",
                     "Layers of a quantised base that are decoded once and stay in memory as `precision`; the others "
                     "are decoded whenever they are used. auto: as many as fit. The numbers are the same.")
           .free_on_resume(),
       text_field("chat_template", &ModelSection::chat_template,
                  "tokenizer, chatml, qwen2.5, qwen3, mistral-v1, mistral-v3, llama3, gemma, or a .jinja file",
                  "Template that turns chats into text: the tokenizer's own, a built-in one (for chats without tools), "
                  "or a file."),
       new_tokens_field("add_tokens", &ModelSection::add_tokens,
                        "New tokens, added to the tokenizer as Hugging Face's add_tokens does. Their rows of embedding "
                        "and head are trained and saved with the adapter (docs/models.md)."),
       choice_field("token_init", &ModelSection::token_init,
                    "What new rows start as. mean: the mean of the rows of all other tokens. description: the mean of "
                    "the rows of the tokens of init_text. zeros: zeros.")}};
}

FieldGroup adapter_group() {
  return {
      "Adapter",
      {choice_field("adapter", &AdapterSection::kind, "Kind of adapter; none trains all weights (full fine-tuning)."),
       integer_field("lora_r", &AdapterSection::lora_r, Range::between(1, kMaxLoraRank), "Rank.")
           .silent_when(comes_from_adapter("lora_r")),
       number_field("lora_alpha", &AdapterSection::lora_alpha, Range::above(0),
                    "Scale of the adapter: alpha / r, or alpha / sqrt(r) with use_rslora.")
           .silent_when(comes_from_adapter("lora_alpha")),
       number_field("lora_dropout", &AdapterSection::lora_dropout, Range::from_to_below(0, 1),
                    "Dropout on the input of each adapter during training."),
       targets_field(
           "lora_target_modules", &AdapterSection::lora_target_modules,
           "Linears that get an adapter. all-linear: every linear of the decoder layers, but not the head. A name "
           "matches as in PEFT: the whole module name, or its end after a dot.")
           .silent_when(comes_from_adapter("lora_target_modules")),
       flag_field("use_rslora", &AdapterSection::use_rslora, "Scale by alpha / sqrt(r).")
           .silent_when(comes_from_adapter("use_rslora")),
       rank_pattern_field("rank_pattern", &AdapterSection::rank_pattern,
                          "Ranks of single modules; the first matching pattern wins, as in PEFT. A pattern "
                          "without effect is an error.")
           .silent_when(comes_from_adapter("rank_pattern")),
       alpha_pattern_field("alpha_pattern", &AdapterSection::alpha_pattern,
                           "Alphas of single modules, by the same rules.")
           .silent_when(comes_from_adapter("alpha_pattern")),
       text_field("init_adapter", &AdapterSection::init_adapter, "PEFT folder",
                  "Start from this adapter. Its r, alpha, patterns, rsLoRA and targets apply; a profile that "
                  "contradicts them is an error.")}};
}

}  // namespace

std::vector<FieldGroup> model_field_groups() { return {model_group(), adapter_group()}; }

}  // namespace lora_train
