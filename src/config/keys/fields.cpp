// Every key of a profile: name, help, limits, other names, and what may change on resume.

#include "field_kinds.h"
#include "lora_train/base/text.h"
#include "lora_train/config/keys/aliases.h"

namespace lora_train {
namespace {

// init_adapter brings these values; a key that was not given stays silent in what is written.
std::function<bool(const Profile&)> comes_from_adapter(const std::string& key) {
  return [key](const Profile& profile) { return !profile.adapter.init_adapter.empty() && !profile.is_given(key); };
}

const Words kStrategies = {{"steps", ""}, {"epoch", "epoch"}, {"no", "off"}, {"off", "off"}, {"false", "off"}};

/// Reads cuda:0 and gpu as cuda; the error for another vendor's device names it.
Rewrite other_device(const Value& value) {
  Rewrite rewrite;
  if (is_word(value, "gpu") || is_word(value, "cuda:0")) return becomes("device", value, "cuda");
  for (const char* const other : {"mps", "xpu", "npu", "tpu", "hpu", "rocm", "hip"}) {
    if (!is_word(value, other)) continue;
    rewrite.error = fmt::format(
        "\"{}\" is not supported: lora-train runs on NVIDIA GPUs and on CPUs. Use auto, cuda or cpu.", other);
  }
  return rewrite;
}

Rewrite qlora(const Value& value) {
  Rewrite rewrite;
  if (is_word(value, "qlora")) {
    rewrite.entries = {{"adapter", text_at(value, "lora")}};
    rewrite.implied = {{"base_precision", text_at(value, "nf4")}};
    rewrite.note = "qlora is read as adapter: lora with base_precision: nf4";
  }
  return rewrite;
}

/// TRL's false trains whole chats, which is not the default here.
Rewrite refuse_false(const Value& value) {
  Rewrite rewrite;
  if (value.is_scalar() && parse_bool(value.text) == false) {
    rewrite.error =
        "in TRL, false trains every token of a chat. Set loss_on: all for that, or remove it: assistant turns are "
        "trained.";
  }
  return rewrite;
}

Rewrite tokens_as_they_are(const Value& value) {
  Rewrite rewrite;
  rewrite.entries = {{"add_tokens", verbatim_tokens(value)}};
  rewrite.note = "is read as add_tokens with normalized: false, as in that tool";
  return rewrite;
}

Rewrite bare_batch_size(const Value& value) {
  Rewrite rewrite;
  rewrite.entries = {{"micro_batch_size", value}};
  rewrite.warning =
      "is read as micro_batch_size (rows per rank and forward pass); other tools mean the batch of a whole step. Use "
      "micro_batch_size or global_batch_size.";
  return rewrite;
}

Rewrite warmup_share(const Value& value) {
  const auto number = value.is_scalar() ? parse_number(value.text) : std::nullopt;
  if (!number || *number <= 0 || *number >= 1) return {};
  Rewrite rewrite;
  rewrite.entries = {{"warmup_ratio", value}};
  rewrite.note = value.text + " is a share of all steps; it is read as warmup_ratio";
  return rewrite;
}

Rewrite other_metric(const Value& value) {
  const std::string ours = value.is_scalar() ? metric_from(value.text) : "";
  return ours.empty() || ours == value.text ? Rewrite{} : spelled("metric_for_best_model", value, ours);
}

/// The losses of preference training.
Rewrite other_loss(const Value& value) {
  constexpr const char* kLosses[] = {"sigmoid",      "dpo",      "cdpo",  "robust", "hinge", "ipo",
                                     "sigmoid_norm", "apo_zero", "simpo", "orpo",   "kto"};
  Rewrite rewrite;
  if (value.is_scalar() && std::ranges::count(kLosses, lower_case(value.text)) > 0)
    rewrite.error = value.text + " is preference training, which is not built yet. Use nll on the chosen answers.";
  return rewrite;
}

/// best: only better evaluations are saved.
Rewrite save_best(const Value& value) {
  if (!is_word(value, "best")) return {};
  Rewrite rewrite = becomes("save_steps", value, "off");
  rewrite.entries.emplace_back("load_best_model_at_end", text_at(value, "true"));
  rewrite.note =
      "best is read as save_steps: off, load_best_model_at_end: true; adapter/ is then the best step as well";
  return rewrite;
}

FieldGroup model_group() {
  return {
      "Model and device",
      {text_field("model", &ModelSection::path, "folder, or org/name[@revision]",
                  "Base model: a Hugging Face folder, or a name in the local Hugging Face cache (the network is never "
                  "used).")
           .also({"model_name_or_path", "base_model", "model_name", "model_path"})
           .default_is("required"),
       text_field("base_model_name", &ModelSection::base_model_name, "org/name",
                  "Name written into adapter_config.json and the model card when `model` is a folder outside the "
                  "cache. Default: the name found in the cache, else the path.")
           .free_on_resume(),
       choice_field("device", &RunSection::device,
                    "Where to compute. auto uses the CPU only if the machine has no NVIDIA device (/dev/nvidia0).")
           .respelled(other_device)
           .free_on_resume(),
       choice_field("precision", &ModelSection::precision,
                    "Data type of the computation. LoRA weights, their gradients, optimizer state, norms, softmax and "
                    "loss stay in fp32 even with bf16.")
           .also_as({"bf16"}, {{"true", "bf16"}, {"auto", "bf16"}, {"false", "fp32"}})
           .also_as({"mixed_precision", "torch_dtype", "dtype"}, {{"bf16", "bf16"},
                                                                  {"bfloat16", "bf16"},
                                                                  {"auto", "bf16"},
                                                                  {"fp32", "fp32"},
                                                                  {"float32", "fp32"},
                                                                  {"no", "fp32"}})
           .also_as({"recipe"}, {{"bf16", "bf16"}}),
       choice_field("base_precision", &ModelSection::base_precision,
                    "Format in memory of the frozen linears in the decoder layers. auto: quantised if the folder is, "
                    "else as `precision`. nf4, int8, fp8: quantised while reading. bf16, fp32 (equal to `precision`): "
                    "decoded once if the folder is quantised.")
           .also_switch({"load_in_4bit", "qlora_bnb"}, "nf4", "")
           .also_switch({"load_in_8bit"}, "int8", "")
           .also_switch({"qlora_fp8"}, "fp8", "")
           .also_as({"quantization_bit"}, {{"4", "nf4"}, {"8", "int8"}}),
       flag_field("tf32", &RunSection::tf32, "Allow TF32 in fp32 matrix products on a GPU. No effect on a CPU."),
       flag_field("double_quant", &ModelSection::double_quant, "Quantise the scales of base_precision: nf4 as well.")
           .also(
               {"use_bnb_nested_quant", "bnb_4bit_use_double_quant", "qlora_bnb_double_quant", "double_quantization"}),
       integer_field("decoded_layers", &ModelSection::decoded_layers, Range::at_least(0), "auto",
                     "Layers of a quantised base that are decoded once and stay in memory as `precision`; the others "
                     "are decoded at every use. auto: as many as fit. The numbers do not change.")
           .free_on_resume(),
       text_field("chat_template", &ModelSection::chat_template,
                  "tokenizer, chatml, qwen2.5, qwen3, mistral-v1, mistral-v3, mistral-v7, mistral-v11, mistral-v13, "
                  "mistral-v15, llama3, "
                  "gemma, or a .jinja file",
                  "Template that turns chats into text: the tokenizer's own, a built-in one, or a file (docs/data.md).")
           .also({"chat_template_path"}),
       date_field(
           "template_date", &ModelSection::template_date,
           "The day that a template with strftime_now writes, at noon. auto: the day on which the run starts, also "
           "after a resume (docs/data.md)."),
       new_tokens_field("add_tokens", &ModelSection::add_tokens,
                        "New tokens, added to the tokenizer as Hugging Face's add_tokens does. Their rows of embedding "
                        "and head are trained and saved with the adapter (docs/models.md).")
           .also({"add_new_tokens"})
           .also("tokens", "with normalized: false", tokens_as_they_are)
           .also("add_special_tokens", "with normalized: false", tokens_as_they_are),
       choice_field("token_init", &ModelSection::token_init,
                    "Initial values of new rows. mean: the mean of all other tokens' rows. description: the mean of "
                    "the rows of init_text's tokens. zeros: zeros.")
           .also({"init_special_tokens"})}};
}

FieldGroup adapter_group() {
  return {
      "Adapter",
      {choice_field("adapter", &AdapterSection::kind, "Kind of adapter; none trains all weights (full fine-tuning).")
           .also_switch({"use_peft", "lora"}, "lora", "none")
           .also_as({"finetuning_type", "fine_tune_type"}, {{"lora", "lora"}, {"full", "none"}})
           .respelled(qlora),
       integer_field("lora_r", &AdapterSection::lora_r, Range::between(1, kMaxLoraRank), "Rank.")
           .also({"r", "lora_rank", "rank"})
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
           .also({"target_modules", "lora_target"})
           .also_switch({"lora_target_linear"}, "all-linear", "")
           .silent_when(comes_from_adapter("lora_target_modules")),
       flag_field("use_rslora", &AdapterSection::use_rslora, "Scale by alpha / sqrt(r).")
           .also({"peft_use_rslora"})
           .silent_when(comes_from_adapter("use_rslora")),
       rank_pattern_field("rank_pattern", &AdapterSection::rank_pattern,
                          "Ranks of individual modules; the first matching pattern wins, as in PEFT. A pattern without "
                          "effect is an error.")
           .silent_when(comes_from_adapter("rank_pattern")),
       alpha_pattern_field("alpha_pattern", &AdapterSection::alpha_pattern,
                           "lora_alpha of individual modules, by the same rules as rank_pattern.")
           .silent_when(comes_from_adapter("alpha_pattern")),
       text_field("init_adapter", &AdapterSection::init_adapter, "PEFT folder",
                  "Start from this adapter. Its r, alpha, patterns, rsLoRA and targets apply; a profile that "
                  "contradicts them is an error.")
           .also({"lora_model_dir", "adapter_name_or_path"})}};
}

std::string datasets_help() {
  return "Training data: file, folder or glob, or org/name[@revision] in the local Hugging Face cache, with its "
         "split (default train) and subset. type is " +
         choice_text(names_of(DatasetType{})) +
         "; field_map maps our column names to those in the file, or to null to leave a column unread; weight > 0 "
         "is how often an example occurs in an epoch, on average; max_samples keeps only the first examples; "
         "null_fields: keep keeps null members of messages and tools.";
}

FieldGroup data_group() {
  return {
      "Data",
      {datasets_field("datasets", &DataSection::datasets, datasets_help())
           .also({"train_dataset", "train_data", "data_path", "train_file", "dataset_name", "dataset", "data"})
           .default_is("required"),
       datasets_field("eval_datasets", &DataSection::eval_datasets,
                      "Evaluation data. For a Hub dataset, name the split. Alternative: val_set_size.")
           .also({"eval_data", "eval_data_path", "eval_file", "validation_file", "test_datasets", "eval_dataset"}),
       number_field("val_set_size", &DataSection::val_set_size, Range::at_least(0),
                    "Part of the training data to hold out for evaluation: a share of the documents if below 1, else "
                    "their number.")
           .also({"val_size", "validation_split_ratio"})
           .silent_when([](const Profile& profile) { return profile.data.val_set_size == 0; })
           .default_is("0"),
       choice_field(
           "loss_on", &DataSection::loss_on,
           "Tokens to train. auto: assistant turns of chats, the completion of prompt/completion examples, every token "
           "of texts, the labels of pre-tokenised examples. last: the last assistant turn. A message's own `weight` "
           "scales the loss of each of its tokens (docs/data.md).")
           .also_as({"assistant_only_loss"}, {{"true", "assistant"}}, refuse_false, ", false is refused")
           .also_switch({"completion_only_loss"}, "completion", "all")
           .also_switch({"train_on_inputs", "train_on_prompt"}, "all", "")
           .also_switch({"mask_prompt"}, "", "all")
           .also_switch({"mask_history"}, "last", ""),
       choice_field("thinking", &DataSection::thinking,
                    "Thoughts of assistant turns (`<think>` blocks, reasoning_content; docs/data.md). template: as the "
                    "chat template writes them. keep: in every turn, or the example is bad. drop: removed before the "
                    "template writes the chat. empty: the same, with enable_thinking: false for the template."),
       integer_field(
           "max_seq_len", &DataSection::max_seq_len, Range::at_least(1), "auto",
           "Tokens per row. auto: the longest example rounded up to 64, capped by the model's maximum and by 4 "
           "times the 99th percentile (at least 2048).")
           .also({"max_length", "sequence_len", "cutoff_len", "max_seq_length", "model_max_length"}),
       choice_field(
           "overlength", &DataSection::overlength,
           "What to do with examples longer than max_seq_len: error (reports what drop and truncate would lose), drop, "
           "or truncate (keeps the start).")
           .also_as({"truncation_mode"}, {{"keep_start", "truncate"}})
           .also_as({"excess_length_strategy"}, {{"drop", "drop"}, {"truncate", "truncate"}, {"raise", "error"}})
           .also_as({"truncation_strategy"},
                    {{"delete", "drop"}, {"right", "truncate"}, {"truncate", "truncate"}, {"raise", "error"}}),
       flag_field(
           "packing", &DataSection::packing,
           "Pack several documents into one row. Attention never crosses documents, and positions restart at each.")
           .also({"sample_packing"}),
       flag_field("shuffle", &DataSection::shuffle,
                  "Shuffle the documents in every epoch. false keeps the order of the files."),
       choice_field("on_bad_row", &DataSection::on_bad_row,
                    "What to do with malformed examples: stop, or drop and count them."),
       number_field("max_drop_fraction", &DataSection::max_drop_fraction, Range::between(0, 1),
                    "Largest share of examples that may be dropped before the run fails."),
       flag_field(
           "drop_duplicates", &DataSection::drop_duplicates,
           "Train each example once: drop training examples with the same tokens and labels as an earlier one, and "
           "evaluation examples that are also training examples. false only counts them."),
       text_field("dataset_prepared_path", &DataSection::dataset_prepared_path, "folder",
                  "Where the token cache is stored. Default: ~/.cache/lora-train/tokens.")
           .also({"tokenized_path"})
           .free_on_resume(),
       text_field("stage_dir", &DataSection::stage_dir, "folder on a local disk, or auto",
                  "Copy the token cache here first, for data on a network disk. auto: a folder of this user in the "
                  "temporary folder.")
           .free_on_resume(),
       integer_field("dataloader_num_workers", &DataSection::dataloader_num_workers, Range::between(0, 256),
                     "Threads that prepare batches; 0 prepares them in the training thread.")
           .free_on_resume(),
       flag_field("dataloader_pin_memory", &DataSection::dataloader_pin_memory,
                  "Keep batches in page-locked memory, so that copies overlap with computation. No effect on a CPU.")
           .free_on_resume(),
       integer_field("dataloader_prefetch_factor", &DataSection::dataloader_prefetch_factor, Range::between(1, 1024),
                     "Batches prepared ahead by each worker.")
           .free_on_resume()}};
}

FieldGroup teacher_group() {
  return {"Distillation",
          {text_field("teacher", &TeacherSection::teacher, "URL, or folder",
                      "Answers the prompts of datasets and eval_datasets in `distill`: an OpenAI-compatible server "
                      "(http://host:8000/v1), or a model on this machine."),
           text_field("teacher_system", &TeacherSection::teacher_system, "file, or text",
                      "System message that only the teacher sees."),
           text_field("student_system", &TeacherSection::student_system, "file, or text",
                      "System message that the student sees instead.")}};
}

constexpr double kMaxSeed = 9007199254740991.0;  // 2^53 - 1: every JSON reader keeps it

FieldGroup batch_group() {
  return {
      "Batch size and run length",
      {integer_field("micro_batch_size", &ScheduleSection::micro_batch_size, Range::at_least(1), "auto",
                     "Rows per rank in one forward pass. auto: the fastest that fits into GPU memory (on a CPU, about "
                     "4096 tokens) and divides the rows of a step.")
           .also({"per_device_train_batch_size", "micro_batch_size_per_gpu", "train_micro_batch_size_per_gpu"})
           .also("batch_size", "with a warning", bare_batch_size),
       integer_field("global_batch_size", &ScheduleSection::global_batch_size, Range::at_least(1), "null",
                     "Rows (or documents, see batch_unit) per optimizer step, over all ranks. Alternative: "
                     "gradient_accumulation_steps.")
           .default_is("16"),
       integer_field("gradient_accumulation_steps", &ScheduleSection::gradient_accumulation_steps, Range::at_least(1),
                     "null", "Forward passes per optimizer step. Alternative: global_batch_size.")
           .also({"grad_accumulation", "grad_accumulation_steps", "gradient_accumulation"}),
       choice_field("batch_unit", &ScheduleSection::batch_unit,
                    "What global_batch_size counts. With packing, a row holds several documents: rows keeps the number "
                    "of tokens in a step about the same; documents fixes the number of documents in a step, as "
                    "trainers without packing do, and packs them into as few rows as they need. With documents, the "
                    "step of a rank has micro_batch_size times gradient_accumulation_steps documents."),
       number_field("num_epochs", &ScheduleSection::num_epochs, Range::above(0),
                    "Passes over the data. If max_steps is set too, the run ends at whichever comes first; with "
                    "max_steps alone, epochs are not limited.")
           .also({"num_train_epochs", "epochs"})
           .may_grow_on_resume(),
       integer_field("max_steps", &ScheduleSection::max_steps, Range::at_least(1), "null", "Optimizer steps.")
           .also({"iters"})
           .respelled({{"-1", "null"}})
           .may_grow_on_resume(),
       duration_field("max_time", &ScheduleSection::max_time,
                      "After this time, save a checkpoint and stop with exit code 75; the same command resumes.")
           .free_on_resume()}};
}

FieldGroup optimizer_group() {
  return {
      "Loss, optimizer and schedule",
      {choice_field("loss_type", &ObjectiveSection::loss_type,
                    "nll: cross entropy. dft: Dynamic Fine-Tuning, which multiplies the cross entropy of a token by "
                    "its probability p, treated as a constant: -p log p. It computes logits twice and runs without "
                    "CUDA graphs. kl: the divergence from a teacher whose log-probabilities are in the examples "
                    "(docs/teach.md), also without CUDA graphs. Evaluation always reports cross entropy.")
           .respelled(other_loss),
       number_field(
           "kd_alpha", &ObjectiveSection::kd_alpha, Range::between(0, 1),
           "With loss_type: kl, share of the divergence from the teacher in the loss; the rest is cross entropy."),
       number_field("kd_temperature", &ObjectiveSection::kd_temperature, Range::above(0),
                    "With loss_type: kl, temperature T of teacher and student in the divergence, which is multiplied "
                    "by T squared."),
       choice_field(
           "optim", &OptimizerSection::kind,
           "AdamW with decoupled weight decay. adamw_torch and adamw_torch_fused are the same code. adamw_8bit "
           "keeps moments in 8 bits, as bitsandbytes does on a GPU, except for embeddings and tensors of fewer "
           "than 4096 elements.")
           .also({"optimizer"})
           .respelled({{"paged_adamw_8bit", "adamw_8bit"},
                       {"adamw_bnb_8bit", "adamw_8bit"},
                       {"paged_adamw_32bit", "adamw_torch"},
                       {"adamw", "adamw_torch"}}),
       number_field("learning_rate", &OptimizerSection::learning_rate, Range::above(0), "Peak learning rate.")
           .also({"lr"}),
       number_field("loraplus_lr_ratio", &OptimizerSection::loraplus_lr_ratio, Range::above(0),
                    "LoRA+: the B matrices learn at this multiple of the scheduled learning rate."),
       choice_field("lr_scheduler_type", &ScheduleSection::lr_scheduler_type,
                    "Learning rate schedule after warm-up. constant has no warm-up.")
           .also({"lr_scheduler"}),
       number_field("warmup_ratio", &ScheduleSection::warmup_ratio, Range::from_to_below(0, 1),
                    "Share of all steps over which the learning rate rises from 0. Alternative: warmup_steps.")
           .silent_when([](const Profile& profile) { return profile.schedule.warmup_steps.has_value(); }),
       integer_field("warmup_steps", &ScheduleSection::warmup_steps, Range::at_least(0), "null",
                     "Steps over which the learning rate rises from 0. Alternative: warmup_ratio.")
           .also({"warmup"})
           .respelled(warmup_share),
       number_field("min_lr_ratio", &ScheduleSection::min_lr_ratio, Range::between(0, 1),
                    "Final learning rate as a share of the peak, for cosine_with_min_lr.")
           .also({"cosine_min_lr_ratio", "final_lr_fraction"}),
       choice_field("lr_scaling", &ScheduleSection::lr_scaling,
                    "Scale learning_rate by the global batch size / lr_base_batch (linear), or by the square root of "
                    "this ratio (sqrt)."),
       integer_field("lr_base_batch", &ScheduleSection::lr_base_batch, Range::at_least(1), "null",
                     "Global batch size for which learning_rate was chosen; required by lr_scaling."),
       number_field("weight_decay", &OptimizerSection::weight_decay, Range::at_least(0),
                    "Decoupled weight decay. In full fine-tuning, biases and norms are not decayed."),
       number_field("adam_beta1", &OptimizerSection::adam_beta1, Range::from_to_below(0, 1),
                    "Decay rate of the first moment.")
           .also({"adamw_beta1", "beta1"}),
       number_field("adam_beta2", &OptimizerSection::adam_beta2, Range::from_to_below(0, 1),
                    "Decay rate of the second moment.")
           .also({"adamw_beta2", "beta2"}),
       number_field("adam_epsilon", &OptimizerSection::adam_epsilon, Range::above(0),
                    "Added to the denominator, outside the square root.")
           .also({"adamw_epsilon", "adam_eps"}),
       number_field("max_grad_norm", &OptimizerSection::max_grad_norm, Range::at_least(0),
                    "Clip the gradient norm to this value. 0 or null: no clipping.")
           .also({"grad_clip", "clip_grad_norm", "gradient_clipping"})
           .null_means("0"),
       integer_field("seed", &RunSection::seed, Range::between(0, kMaxSeed),
                     "Seed of adapter initialisation, data order and dropout.")
           .also({"train_seed"})}};
}

FieldGroup compute_group() {
  return {
      "Computation",
      {choice_field("gradient_checkpointing", &RunSection::gradient_checkpointing,
                    "Recompute activations in the backward pass instead of keeping them: "
                    "cheap recomputes norms and SwiGLU, gate_up also the GEMM before it, "
                    "full whole layers; auto recomputes as little as memory allows. The numbers "
                    "do not change.",
                    GradientCheckpointing::kFull)
           .also({"use_gradient_checkpointing", "recompute", "grad_checkpoint", "enable_activation_checkpointing"})
           .also_switch({"disable_gradient_checkpointing"}, "off", "")
           .respelled({{"unsloth", "full"}})
           .free_on_resume(),
       choice_field("activation_offload", &RunSection::activation_offload,
                    "Keep the layers' inputs in page-locked host memory from forward to backward, for longer rows on "
                    "one GPU (docs/long_context.md). auto: on a GPU, if the run does not fit otherwise. The numbers do "
                    "not change.",
                    ActivationOffload::kOn)
           .free_on_resume(),
       integer_field("mlp_tile_tokens", &RunSection::mlp_tile_tokens, Range::at_least(0), "auto",
                     "Run each layer's MLP on this many tokens at a time, for longer rows on one GPU "
                     "(docs/long_context.md). auto: on a GPU, 4096 (1024 for rows of up to 4096) if the run does not "
                     "fit otherwise. off (0): never. A number implies gradient_checkpointing: full. Gradients differ "
                     "by rounding only.")
           .word_means("off", "0")
           .free_on_resume(),
       choice_field("cuda_graphs", &RunSection::cuda_graphs,
                    "Capture a step as CUDA graphs and replay them, where possible. The numbers do not change.",
                    CudaGraphs::kAuto)
           .also({"use_cuda_graphs"})
           .also_switch({"torch_compile", "compile"}, "auto", "off")
           .free_on_resume(),
       choice_field("tuning", &RunSection::tuning,
                    "Autotuning on a GPU: choose the attention backend, GEMM algorithms, row pitch and rows of a loss "
                    "chunk by measuring before step 1, once per shape (docs/gpu.md). off: choose by rule, as with "
                    "deterministic: true.",
                    Tuning::kAuto)
           .free_on_resume(),
       choice_field("check_ranks", &RunSection::check_ranks,
                    "When several ranks compare their trained parameters, which must be equal bit for bit: at the "
                    "start and before every save, or after every step too (docs/multi_gpu.md).")
           .free_on_resume(),
       choice_field("attn_implementation", &RunSection::attn_implementation,
                    "Attention backend. auto: the fastest for the device. reference: plain LibTorch operations, slow.")
           .also_switch({"flash_attention", "use_flash_attention_2", "use_flash_attn"}, "auto", "")
           .also_as({"flash_attn"}, {{"auto", "auto"}, {"fa2", "fa2"}, {"sdpa", "auto"}, {"disabled", "reference"}})
           .respelled(
               {{"sdpa", "auto"}, {"flash_attention_2", "auto"}, {"flash_attention_3", "auto"}, {"eager", "reference"}})
           .free_on_resume(),
       kernels_field("kernels", &RunSection::kernels,
                     "auto uses our native kernels where they exist, own requires them, reference uses plain LibTorch "
                     "operations. A map chooses per kernel: {rms_norm: reference}; the name all stands for the rest.")
           .free_on_resume(),
       flag_field("deterministic", &RunSection::deterministic,
                  "Get the same bits in every run on a GPU, at some cost in speed. A CPU always does.")}};
}

FieldGroup evaluation_group() {
  return {
      "Evaluation",
      {cadence_field("eval_steps", &RunSection::eval_steps,
                     "How often to evaluate between steps; off: never. With evaluation data, a run always evaluates "
                     "before step 1 (unless eval_on_start is false) and after the last step.")
           .also({"steps_per_eval", "run_val_every_n_steps"})
           .also_as({"eval_strategy", "evaluation_strategy"}, kStrategies)
           .free_on_resume(),
       flag_field("eval_on_start", &RunSection::eval_on_start,
                  "Evaluate before step 1 if there is evaluation data, whatever eval_steps says.")
           .free_on_resume(),
       integer_field("eval_max_samples", &DataSection::eval_max_samples, Range::at_least(1), "null",
                     "Use at most this many documents of each evaluation dataset. null: all.")
           .free_on_resume(),
       integer_field("eval_micro_batch_size", &ScheduleSection::eval_micro_batch_size, Range::at_least(1), "null",
                     "Rows per rank in one evaluation pass. null: as in training.")
           .also({"per_device_eval_batch_size", "eval_batch_size", "batch_size_val"})
           .free_on_resume(),
       eval_tasks_field(
           "eval_tasks", &TaskSection::eval_tasks,
           "Tasks to score in every evaluation and in `eval`. kind: choices (examples with choices and "
           "answer), exact_match (compares greedy answers with the examples' own), confidence (compares the confidence "
           "that answers state with how often they are right). type and field_map as in datasets; max_samples: "
           "examples to use (default eval_max_samples); every: like eval_steps, for this task; regex: the "
           "part of an answer to compare; max_new_tokens: length of an answer (default 256).")
           .free_on_resume(),
       confidence_tokens_field("confidence_tokens", &TaskSection::confidence_tokens,
                               "Tokens with which an answer states its confidence, each with the probability of being "
                               "right that it stands for."),
       flag_field("load_best_model_at_end", &RunSection::load_best_model_at_end,
                  "Write the best checkpoint to adapter/ instead of the last step. A checkpoint is then saved after "
                  "every new best evaluation.")
           .free_on_resume(),
       text_field("metric_for_best_model", &RunSection::metric_for_best_model, "metric",
                  "Metric that decides which step is best: eval_loss, perplexity, token_accuracy or ece over all "
                  "evaluation data, or NAME.metric of one dataset or task (conf.ece).")
           .respelled(other_metric),
       flag_field("greater_is_better", &RunSection::greater_is_better,
                  "true: a greater value of the metric is better. null: true for token_accuracy, accuracy and auroc."),
       integer_field("early_stopping_patience", &RunSection::early_stopping_patience, Range::at_least(1), "null",
                     "End the run after this many evaluations in a row that are no better than the best before.")
           .free_on_resume(),
       number_field(
           "early_stopping_threshold", &RunSection::early_stopping_threshold, Range::at_least(0),
           "For early_stopping_patience, an evaluation counts as better only if it is better by more than this.")
           .free_on_resume()}};
}

FieldGroup output_group() {
  return {
      "Output",
      {text_field("output_dir", &RunSection::output_dir, "folder",
                  "Output folder of the run. {key} stands for the value of a key: runs/lr{learning_rate}-r{lora_r}.")
           .also({"adapter_path"})
           .free_on_resume(),
       text_field(
           "run_name", &RunSection::run_name, "text",
           "Name in the first line of metrics.jsonl, in the summary and in the model card. Default: the last part of "
           "output_dir.")
           .free_on_resume(),
       integer_field("logging_steps", &RunSection::logging_steps, Range::at_least(1), "Log metrics every N steps.")
           .also({"steps_per_report"})
           .free_on_resume(),
       reporters_field("report_to", &RunSection::report_to,
                       "metrics.jsonl is always written; tensorboard adds event files in output_dir/tensorboard.")
           .also_switch({"use_tensorboard"}, "tensorboard", "none")
           .free_on_resume(),
       cadence_field("save_steps", &RunSection::save_steps,
                     "How often to save a checkpoint between steps; the last step is always saved.")
           .also({"save_every"})
           .also_as({"save_strategy"}, kStrategies, save_best, ", best = off with load_best_model_at_end: true")
           .free_on_resume(),
       duration_field("save_interval", &RunSection::save_interval,
                      "Also save when this much time has passed since the last save.")
           .free_on_resume(),
       integer_field("save_total_limit", &RunSection::save_total_limit, Range::at_least(1), "null",
                     "Number of checkpoints to keep, plus the best one. null: all.")
           .also({"ckpt_keep_n"})
           .free_on_resume(),
       integer_field("max_failed_saves", &RunSection::max_failed_saves, Range::at_least(1),
                     "Stop with exit code 5 after this many failed saves in a row.")
           .free_on_resume(),
       choice_field("save_dtype", &RunSection::save_dtype, "Data type of adapter/; checkpoints are always fp32.")
           .free_on_resume(),
       text_field("resume_from_checkpoint", &RunSection::resume_from_checkpoint, "auto | none | path",
                  "auto resumes from the newest valid checkpoint in output_dir, if there is one.")
           .also_switch({"auto_resume_from_checkpoints"}, "auto", "none")
           .respelled({{"false", "none"}, {"off", "none"}, {"no", "none"}, {"true", "auto"}, {"on", "auto"}})
           .free_on_resume(),
       number_field("gpu_price_per_hour", &RunSection::gpu_price_per_hour, Range::at_least(0),
                    "Price in USD per hour of one GPU (of the machine, for a run on a CPU), used for the cost of the "
                    "run. Default: the price in configs/gpus.json, if the GPU is in it; none on a CPU.")
           .free_on_resume(),
       text_field("target_gpu", &RunSection::target_gpu, "null or a GPU in configs/gpus.json: A10G, 4090, H100-80GB",
                  "GPU that the profile is meant for. check and train warn if the run cannot fit it; nothing else "
                  "depends on it.")
           .free_on_resume()}};
}

}  // namespace

const std::vector<FieldGroup>& field_groups() {
  static const std::vector<FieldGroup> groups = {model_group(),   adapter_group(),    data_group(),
                                                 teacher_group(), batch_group(),      optimizer_group(),
                                                 compute_group(), evaluation_group(), output_group()};
  return groups;
}

}  // namespace lora_train
