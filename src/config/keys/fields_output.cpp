// Keys of evaluation and of what a run writes.
#include "field_kinds.h"

namespace lora_train {
namespace {

FieldGroup evaluation_group() {
  return {
      "Evaluation",
      {cadence_field("eval_steps", &RunSection::eval_steps,
                     "How often to evaluate between the steps; off: never there. With evaluation data there is always "
                     "an evaluation "
                     "before step 1 (unless eval_on_start is false) and one after the last step.")
           .free_on_resume(),
       flag_field("eval_on_start", &RunSection::eval_on_start,
                  "Evaluate before step 1 where there is evaluation data, whatever eval_steps says.")
           .free_on_resume(),
       integer_field("eval_max_samples", &DataSection::eval_max_samples, Range::at_least(1), "null",
                     "Use at most this many documents of each evaluation dataset. null: all.")
           .free_on_resume(),
       integer_field("eval_micro_batch_size", &ScheduleSection::eval_micro_batch_size, Range::at_least(1), "null",
                     "Rows per rank in one evaluation pass. null: as in training.")
           .free_on_resume(),
       eval_tasks_field("eval_tasks", &TaskSection::eval_tasks,
                        "Answers to count in every evaluation, and in `eval`. kind: choices (rows with choices and "
                        "answer), exact_match "
                        "(greedy answers against the rows' own), confidence (what confidence_tokens say against what "
                        "is right). type and "
                        "field_map as in datasets; max_samples rows (default eval_max_samples); every: like "
                        "eval_steps, of this task; "
                        "regex picks what is compared of an answer; max_new_tokens of an answer (default 256).")
           .free_on_resume(),
       confidence_tokens_field("confidence_tokens", &TaskSection::confidence_tokens,
                               "Tokens with which an answer says how sure it is, and the probability of being right "
                               "that each of them states."),
       flag_field(
           "load_best_model_at_end", &RunSection::load_best_model_at_end,
           "Write the best checkpoint to adapter/ instead of the last step. Every evaluation that is better than all "
           "before it is then saved.")
           .free_on_resume(),
       text_field("metric_for_best_model", &RunSection::metric_for_best_model, "metric",
                  "Metric that decides which step is best: eval_loss, perplexity, token_accuracy or ece over all "
                  "evaluation data, or NAME.metric of one dataset or task (conf.ece)."),
       flag_field("greater_is_better", &RunSection::greater_is_better,
                  "Whether a greater value of the metric is better. null: for token_accuracy, accuracy and auroc."),
       integer_field("early_stopping_patience", &RunSection::early_stopping_patience, Range::at_least(1), "null",
                     "End the run with this many evaluations in a row that are no better than the best before.")
           .free_on_resume(),
       number_field("early_stopping_threshold", &RunSection::early_stopping_threshold, Range::at_least(0),
                    "An evaluation counts as better for early_stopping_patience only if it is better by more.")
           .free_on_resume()}};
}

FieldGroup output_group() {
  return {
      "Output",
      {text_field("output_dir", &RunSection::output_dir, "folder",
                  "Output folder of the run. {key} stands for the value of a key: runs/lr{learning_rate}-r{lora_r}.")
           .free_on_resume(),
       text_field(
           "run_name", &RunSection::run_name, "text",
           "Name in the first line of metrics.jsonl, in the summary and in the model card. Default: the last part of "
           "output_dir.")
           .free_on_resume(),
       integer_field("logging_steps", &RunSection::logging_steps, Range::at_least(1), "Log metrics every N steps.")
           .free_on_resume(),
       reporters_field("report_to", &RunSection::report_to,
                       "metrics.jsonl is always written; tensorboard adds event files in output_dir/tensorboard.")
           .free_on_resume(),
       cadence_field("save_steps", &RunSection::save_steps,
                     "How often to save a checkpoint, in addition to after the last step.")
           .free_on_resume(),
       duration_field("save_interval", &RunSection::save_interval,
                      "Also save when this much time has passed since the last save.")
           .free_on_resume(),
       integer_field("save_total_limit", &RunSection::save_total_limit, Range::at_least(1), "null",
                     "Number of checkpoints to keep, plus the best one. null: all.")
           .free_on_resume(),
       integer_field("max_failed_saves", &RunSection::max_failed_saves, Range::at_least(1),
                     "Stop with exit code 5 after this many failed saves in a row.")
           .free_on_resume(),
       choice_field("save_dtype", &RunSection::save_dtype, "Data type of adapter/; checkpoints are always fp32.")
           .free_on_resume(),
       text_field("resume_from_checkpoint", &RunSection::resume_from_checkpoint, "auto | none | path",
                  "auto resumes from the newest valid checkpoint in output_dir, if there is one.")
           .free_on_resume(),
       number_field(
           "gpu_price_per_hour", &RunSection::gpu_price_per_hour, Range::at_least(0),
           "Price in USD of one GPU, or of the machine for a CPU run, for the cost of the run. Default: the price in "
           "configs/gpus.json, if the GPU is in it; none on a CPU.")
           .free_on_resume(),
       text_field("target_gpu", &RunSection::target_gpu, "null or a GPU of configs/gpus.json: A10G, 4090, H100-80GB",
                  "GPU that the profile is meant for. check and train warn if the run cannot fit it; nothing else "
                  "depends on it.")
           .free_on_resume()}};
}

}  // namespace

std::vector<FieldGroup> output_field_groups() { return {evaluation_group(), output_group()}; }

}  // namespace lora_train
