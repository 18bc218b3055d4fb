// The resolved profile: everything one run does, as plain data in sections. A module takes the section that it reads. A
// member has the name of its key, or its comment names the key; docs/profile.md (generated from
// src/config/keys/fields.cpp) gives range, unit and meaning of each. config/load.h loads profiles.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lora_train/base/kernel_names.h"

namespace lora_train {

/// Limit of lora_r, rank_pattern and the ranks in an adapter file: larger numbers are typos, and sizes based on them
/// overflow.
inline constexpr std::int64_t kMaxLoraRank = 65536;

// Closed sets of values. names_of(E{}) returns the names that a profile uses, in the order of the enumerators.
using Names = std::vector<std::string>;

enum class Device { kAuto, kCuda, kCpu };
inline Names names_of(Device) { return {"auto", "cuda", "cpu"}; }
enum class AdapterKind { kLora, kNone };
inline Names names_of(AdapterKind) { return {"lora", "none"}; }
/// Kinds that PEFT marks with a flag (`use_dora: true`), built here or not.
inline Names flagged_kinds() { return {"dora", "qalora", "bdlora"}; }
enum class BasePrecision { kAuto, kBf16, kFp32, kNf4, kInt8, kFp8 };
inline Names names_of(BasePrecision) { return {"auto", "bf16", "fp32", "nf4", "int8", "fp8"}; }
enum class Precision { kBf16, kFp32 };
inline Names names_of(Precision) { return {"bf16", "fp32"}; }
enum class DatasetType { kAuto, kMessages, kPromptCompletion, kText, kPretokenized, kSharegpt, kAlpaca };
inline Names names_of(DatasetType) {
  return {"auto", "messages", "prompt_completion", "text", "pretokenized", "sharegpt", "alpaca"};
}
enum class LossOn { kAuto, kAssistant, kLast, kCompletion, kAll };
inline Names names_of(LossOn) { return {"auto", "assistant", "last", "completion", "all"}; }
enum class Thinking { kTemplate, kKeep, kDrop, kEmpty };
inline Names names_of(Thinking) { return {"template", "keep", "drop", "empty"}; }
enum class Overlength { kError, kDrop, kTruncate };
inline Names names_of(Overlength) { return {"error", "drop", "truncate"}; }
enum class OnBadRow { kError, kDrop };
inline Names names_of(OnBadRow) { return {"error", "drop"}; }
enum class NullFields { kDrop, kKeep };
inline Names names_of(NullFields) { return {"drop", "keep"}; }
enum class TaskKind { kChoices, kExactMatch, kConfidence };
inline Names names_of(TaskKind) { return {"choices", "exact_match", "confidence"}; }
enum class TokenInit { kMean, kDescription, kZeros };
inline Names names_of(TokenInit) { return {"mean", "description", "zeros"}; }
enum class LossType { kNll, kDft, kKl };
inline Names names_of(LossType) { return {"nll", "dft", "kl"}; }
enum class OptimizerKind { kAdamwTorch, kAdamwTorchFused, kAdamw8bit };
inline Names names_of(OptimizerKind) { return {"adamw_torch", "adamw_torch_fused", "adamw_8bit"}; }
enum class SchedulerKind { kLinear, kCosine, kConstant, kConstantWithWarmup, kCosineWithMinLr };
inline Names names_of(SchedulerKind) {
  return {"linear", "cosine", "constant", "constant_with_warmup", "cosine_with_min_lr"};
}
enum class CheckRanks { kSave, kStep };
inline Names names_of(CheckRanks) { return {"save", "step"}; }
enum class BatchUnit { kRows, kDocuments };
inline Names names_of(BatchUnit) { return {"rows", "documents"}; }
enum class LrScaling { kNone, kSqrt, kLinear };
inline Names names_of(LrScaling) { return {"none", "sqrt", "linear"}; }
enum class GradientCheckpointing { kAuto, kOff, kCheap, kGateUp, kFull };
inline Names names_of(GradientCheckpointing) { return {"auto", "off", "cheap", "gate_up", "full"}; }
enum class ActivationOffload { kAuto, kOn, kOff };
inline Names names_of(ActivationOffload) { return {"auto", "on", "off"}; }
enum class CudaGraphs { kAuto, kOff };
inline Names names_of(CudaGraphs) { return {"auto", "off"}; }
enum class Tuning { kAuto, kOff };
inline Names names_of(Tuning) { return {"auto", "off"}; }
enum class AttnImplementation { kAuto, kReference, kFa2, kCudnn };
inline Names names_of(AttnImplementation) { return {"auto", "reference", "fa2", "cudnn"}; }
enum class Reporter { kTensorboard };
inline Names names_of(Reporter) { return {"tensorboard"}; }
inline Names names_of(KernelSetting) { return {"auto", "reference", "own"}; }

/// The value as a profile spells it.
template <class E>
requires requires(E value) { names_of(value); }
std::string to_string(E value) { return names_of(value).at(static_cast<std::size_t>(value)); }

/// The value with this spelling in a profile, if any.
template <class E>
requires requires(E value) { names_of(value); }
std::optional<E> from_string(const std::string& text) {
  const Names names = names_of(E{});
  const auto found = std::find(names.begin(), names.end(), text);
  if (found == names.end()) return std::nullopt;
  return static_cast<E>(found - names.begin());
}

/// One entry of `datasets` or `eval_datasets`.
struct DatasetSpec {
  std::string path;  ///< file, folder or glob, relative to the working directory; or org/name[@revision] of the Hub
  DatasetType type = DatasetType::kAuto;
  std::map<std::string, std::string> field_map;  ///< our name of a column -> its name in the file; "": not read
  double weight = 1.0;                           ///< > 0: how often its examples occur in an epoch
  std::string name;                              ///< in logs and metrics; empty = made from the file name
  std::string split, subset;  ///< of a folder or a Hub dataset; empty = see data/read/dataset_files.h
  std::optional<std::int64_t> max_samples = {};  ///< the first good examples; nullopt = all
  NullFields null_fields = NullFields::kDrop;    ///< null members of messages, tools and arguments of tool calls
  bool operator==(const DatasetSpec&) const = default;
};

/// One entry of `add_tokens`.
struct NewToken {
  std::string token;
  std::string init_text;   ///< for token_init: description; empty = none
  bool normalized = true;  ///< matched in the normalised text, as Hugging Face does by default; false: in the raw text
  bool operator==(const NewToken&) const = default;
};

/// The linears that get an adapter.
struct LoraTargets {
  enum class Kind { kAllLinear, kList, kRegex };
  Kind kind = Kind::kAllLinear;
  std::vector<std::string> names;  ///< kList: matched as in PEFT (the whole name, or its end after a dot)
  std::string regex;               ///< kRegex: must match a whole module name
  bool operator==(const LoraTargets&) const = default;
};

/// How often something happens: every `value` steps, every `value` share of the whole run (0 < value < 1), once per
/// epoch, or never (kOff: only when the run does it anyway, at its start or end).
struct Cadence {
  enum class Kind { kOff, kSteps, kFraction, kEpoch };
  Kind kind = Kind::kOff;
  double value = 0;
  bool operator==(const Cadence&) const = default;

  /// Steps from one time to the next in a run of `total_steps`; 0 for kOff and kEpoch.
  std::int64_t period(std::int64_t total_steps) const {
    if (kind == Kind::kSteps) return static_cast<std::int64_t>(value);
    if (kind != Kind::kFraction) return 0;
    return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(value * static_cast<double>(total_steps))));
  }
};

/// One entry of `eval_tasks`: answers to count, in addition to the loss on eval_datasets.
struct EvalTask {
  std::string name;  ///< in logs and metrics: NAME.accuracy
  TaskKind kind = TaskKind::kExactMatch;
  DatasetSpec data;                         ///< its path, type and field_map
  std::optional<std::int64_t> max_samples;  ///< the first examples; nullopt = eval_max_samples
  std::optional<Cadence> every;             ///< nullopt = with every evaluation
  std::string regex;                        ///< the part of an answer to compare; empty = all of it
  std::int64_t max_new_tokens = 256;        ///< limit for a greedy answer
  bool operator==(const EvalTask&) const = default;
};

/// Native kernels or their references: for all, and for single kernels by name.
struct KernelChoices {
  KernelSetting all = KernelSetting::kAuto;
  std::vector<std::pair<std::string, KernelSetting>> single;
};

// The sections of a profile; a module reads only those that it needs. std::nullopt means `auto` or `null`, as the
// comment says; times are in seconds.

/// The base model, and how text becomes its tokens.
struct ModelSection {
  std::string path;             ///< key `model`: a folder, or org/name[@revision]
  std::string base_model_name;  ///< empty = found from `path`
  Precision precision = Precision::kBf16;
  BasePrecision base_precision = BasePrecision::kAuto;  ///< kAuto: quantised as in the folder, else as `precision`
  bool double_quant = true;
  std::optional<std::int64_t> decoded_layers;  ///< nullopt = as many as fit
  std::string chat_template = "tokenizer";     ///< "tokenizer" or a .jinja file
  std::string template_date;                   ///< "2026-12-01"; empty = auto
  std::vector<NewToken> add_tokens;
  TokenInit token_init = TokenInit::kMean;

  /// True if base_precision asks for quantised weights.
  bool is_quantised() const { return base_precision >= BasePrecision::kNf4; }
  /// True if one of base_precision and precision is bf16 and the other fp32, which is not built.
  bool mixes_precisions() const {
    return (base_precision == BasePrecision::kBf16 && precision == Precision::kFp32) ||
           (base_precision == BasePrecision::kFp32 && precision == Precision::kBf16);
  }
};

/// The adapter, or full fine-tuning.
struct AdapterSection {
  AdapterKind kind = AdapterKind::kLora;  ///< key `adapter`
  std::int64_t lora_r = 16;
  double lora_alpha = 32;
  double lora_dropout = 0;
  LoraTargets lora_target_modules;
  bool use_rslora = false;
  std::vector<std::pair<std::string, std::int64_t>> rank_pattern;  ///< in file order, matched as in PEFT
  std::vector<std::pair<std::string, double>> alpha_pattern;
  std::string init_adapter;  ///< empty = a new adapter
};

/// How files become rows of tokens.
struct DataSection {
  std::vector<DatasetSpec> datasets;
  std::vector<DatasetSpec> eval_datasets;
  double val_set_size = 0;                       ///< below 1: share of the documents; from 1: their number; 0 = none
  std::optional<std::int64_t> eval_max_samples;  ///< documents per dataset; nullopt = all
  LossOn loss_on = LossOn::kAuto;
  Thinking thinking = Thinking::kTemplate;
  std::optional<std::int64_t> max_seq_len;  ///< nullopt = auto
  Overlength overlength = Overlength::kError;
  bool packing = true;
  bool shuffle = true;
  OnBadRow on_bad_row = OnBadRow::kError;
  double max_drop_fraction = 0.01;
  bool drop_duplicates = false;
  std::string dataset_prepared_path;  ///< empty = under the user's cache folder
  std::string stage_dir;              ///< empty = no staging
  std::int64_t dataloader_num_workers = 2;
  bool dataloader_pin_memory = true;
  std::int64_t dataloader_prefetch_factor = 2;
};

/// The teacher, which answers the prompts of `datasets` in `distill`.
struct TeacherSection {
  std::string teacher;         ///< URL of a server, or a model folder; empty = none
  std::string teacher_system;  ///< a file or the text itself, which only the teacher sees; empty = none
  std::string student_system;  ///< the same, which the student sees instead

  bool is_server() const { return teacher.starts_with("http://") || teacher.starts_with("https://"); }
};

/// Tasks for the model during training and in `eval`.
struct TaskSection {
  std::vector<EvalTask> eval_tasks;
  std::vector<std::pair<std::string, double>>
      confidence_tokens;  ///< token and the probability that it states, in order
};

/// The loss that a step minimizes.
struct ObjectiveSection {
  LossType loss_type = LossType::kNll;
  double kd_temperature = 1;  ///< for kl
  double kd_alpha = 0.9;      ///< for kl: the share of the divergence, 0 to 1; the rest is cross entropy
};

/// The update of a step.
struct OptimizerSection {
  OptimizerKind kind = OptimizerKind::kAdamwTorch;  ///< key `optim`
  double learning_rate = 2e-4;
  std::optional<double> loraplus_lr_ratio;  ///< nullopt = no LoRA+
  double weight_decay = 0;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_epsilon = 1e-8;
  double max_grad_norm = 1;  ///< 0 = no clipping
};

/// Rows or documents per step, the number of steps, and the learning rate over them.
struct ScheduleSection {
  // Exactly one of global_batch_size and gradient_accumulation_steps has a value.
  std::optional<std::int64_t> micro_batch_size;       ///< nullopt = auto
  std::optional<std::int64_t> eval_micro_batch_size;  ///< nullopt = as micro_batch_size
  std::optional<std::int64_t> global_batch_size = 16;
  std::optional<std::int64_t> gradient_accumulation_steps;
  BatchUnit batch_unit = BatchUnit::kRows;  ///< for both
  std::optional<double> num_epochs = 3;     ///< nullopt = no limit (only if max_steps is given)
  std::optional<std::int64_t> max_steps;    ///< nullopt = no limit
  std::optional<double> max_time;           ///< nullopt = no limit
  SchedulerKind lr_scheduler_type = SchedulerKind::kCosine;
  double warmup_ratio = 0.03;  ///< share of all steps; ignored if warmup_steps has a value
  std::optional<std::int64_t> warmup_steps;
  double min_lr_ratio = 0.1;  ///< share of the peak; used by cosine_with_min_lr
  LrScaling lr_scaling = LrScaling::kNone;
  std::optional<std::int64_t> lr_base_batch;  ///< set if lr_scaling is not none
};

/// How and where a run computes, when it evaluates, and what it writes.
struct RunSection {
  Device device = Device::kAuto;
  std::int64_t seed = 42;
  bool tf32 = false;
  GradientCheckpointing gradient_checkpointing = GradientCheckpointing::kAuto;
  ActivationOffload activation_offload = ActivationOffload::kAuto;
  std::optional<std::int64_t> mlp_tile_tokens;  ///< nullopt = auto, 0 = off
  CudaGraphs cuda_graphs = CudaGraphs::kAuto;
  Tuning tuning = Tuning::kAuto;
  CheckRanks check_ranks = CheckRanks::kSave;
  AttnImplementation attn_implementation = AttnImplementation::kAuto;
  KernelChoices kernels;
  bool deterministic = false;

  Cadence eval_steps = {Cadence::Kind::kSteps, 200};
  bool eval_on_start = true;
  bool load_best_model_at_end = false;
  std::string metric_for_best_model = "eval_loss";
  std::optional<bool> greater_is_better;                ///< nullopt = depends on the metric: true for accuracies
  std::optional<std::int64_t> early_stopping_patience;  ///< evaluations without gain; nullopt = off
  double early_stopping_threshold = 0;                  ///< a gain must exceed this to count for the patience

  std::string output_dir = "runs/my-run";  ///< {key} already replaced
  std::string run_name;                    ///< empty = the last part of output_dir
  std::int64_t logging_steps = 1;
  std::vector<Reporter> report_to = {Reporter::kTensorboard};
  Cadence save_steps = {Cadence::Kind::kSteps, 500};
  std::optional<double> save_interval = 600;         ///< nullopt = off
  std::optional<std::int64_t> save_total_limit = 2;  ///< nullopt = keep all
  std::int64_t max_failed_saves = 3;
  Precision save_dtype = Precision::kFp32;
  std::string resume_from_checkpoint = "auto";  ///< "auto", "none" or a path
  std::optional<double> gpu_price_per_hour;
  std::string target_gpu;  ///< name in configs/gpus.json, in any case; empty = none
};

/// Loading checks all values (ranges and contradictions); no other code checks them again.
struct Profile {
  ModelSection model;
  AdapterSection adapter;
  DataSection data;
  TeacherSection teacher;
  TaskSection tasks;
  ObjectiveSection objective;
  OptimizerSection optimizer;
  ScheduleSection schedule;
  RunSection run;

  /// Sorted names of the keys that a file, --set or a flag set. Needed where an unset key differs from one set to the
  /// default: init_adapter brings r, alpha, patterns, rsLoRA and targets, and only a given key can contradict it. Not a
  /// key itself: in no hash, comparison or file.
  std::vector<std::string> given_keys;
  bool is_given(const std::string& key) const;

  /// True if a step packs a fixed number of documents (batch_unit: documents). Without packing, a document is a row.
  bool packs_documents() const { return data.packing && schedule.batch_unit == BatchUnit::kDocuments; }
};

}  // namespace lora_train
