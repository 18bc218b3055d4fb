// Keys of evaluation and of what a run writes.
#include "field_kinds.h"

namespace lora_train {
namespace {

FieldGroup evaluation_group() {
  return {"Evaluation",
          {cadence_field("eval_steps", &RunSection::eval_steps,
                         "How often to evaluate, besides before step 1 and after the last step.")
               .free_on_resume(),
           flag_field("eval_on_start", &RunSection::eval_on_start, "Evaluate before step 1.").free_on_resume(),
           integer_field("eval_max_samples", &DataSection::eval_max_samples, Range::at_least(1), "null",
                         "At most this many documents of each evaluation data set. null: all.")
               .free_on_resume(),
           integer_field("eval_micro_batch_size", &ScheduleSection::eval_micro_batch_size, Range::at_least(1), "null",
                         "Rows per rank in one evaluation pass. null: as in training.")
               .free_on_resume(),
           flag_field("load_best_model_at_end", &RunSection::load_best_model_at_end,
                      "adapter/ is the best checkpoint instead of the last step."),
           text_field("metric_for_best_model", &RunSection::metric_for_best_model, "metric of an eval line",
                      "What best means."),
           integer_field("early_stopping_patience", &RunSection::early_stopping_patience, Range::at_least(1), "null",
                         "Stop after this many evaluations without a better metric.")}};
}

FieldGroup output_group() {
  return {
      "Output",
      {text_field("output_dir", &RunSection::output_dir, "folder",
                  "Folder of the run. {key} stands for the value of a key: runs/lr{learning_rate}-r{lora_r}.")
           .free_on_resume(),
       text_field(
           "run_name", &RunSection::run_name, "text",
           "Name in the first line of metrics.jsonl, in the summary and in the model card. Default: the last part of "
           "output_dir.")
           .free_on_resume(),
       integer_field("logging_steps", &RunSection::logging_steps, Range::at_least(1),
                     "Steps between two metrics lines.")
           .free_on_resume(),
       reporters_field("report_to", &RunSection::report_to,
                       "metrics.jsonl is always written; tensorboard adds event files in output_dir/tensorboard.")
           .free_on_resume(),
       cadence_field("save_steps", &RunSection::save_steps, "How often to save, besides after the last step.")
           .free_on_resume(),
       duration_field("save_interval", &RunSection::save_interval, "Save after this time without a save as well.")
           .free_on_resume(),
       integer_field("save_total_limit", &RunSection::save_total_limit, Range::at_least(1), "null",
                     "Checkpoints that are kept; the best one comes on top. null: all.")
           .free_on_resume(),
       integer_field("max_failed_saves", &RunSection::max_failed_saves, Range::at_least(1),
                     "Failed saves in a row after which the run stops with exit code 5.")
           .free_on_resume(),
       choice_field("save_dtype", &RunSection::save_dtype, "Number format of adapter/; checkpoints are always fp32.")
           .free_on_resume(),
       text_field("resume_from_checkpoint", &RunSection::resume_from_checkpoint, "auto | none | path",
                  "auto goes on from the newest good checkpoint of output_dir, if there is one.")
           .free_on_resume(),
       number_field("gpu_price_per_hour", &RunSection::gpu_price_per_hour, Range::at_least(0),
                    "Price of one GPU, or of the machine on a CPU, for cost_usd in the summary.")
           .free_on_resume()}};
}

}  // namespace

std::vector<FieldGroup> output_field_groups() { return {evaluation_group(), output_group()}; }

}  // namespace lora_train
