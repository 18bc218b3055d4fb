// Keys of the data and its loader.
#include "field_kinds.h"

namespace lora_train {
namespace {

FieldGroup data_group() {
  return {
      "Data",
      {datasets_field(
           "datasets", &DataSection::datasets,
           "Training data: file, folder or glob, relative to the working directory, or org/name[@revision] in the "
           "local Hugging Face cache, with its split (default train) and subset. type is " +
               choice_text(names_of(DatasetType{})) +
               "; field_map maps our name of a column "
               "to its name in the file, or to null: not read; weight > 0 is how often each row occurs in an epoch, on "
               "average; max_samples "
               "takes "
               "the first rows.")
           .default_is("required"),
       datasets_field("eval_datasets", &DataSection::eval_datasets,
                      "Evaluation data. Of a dataset of the Hub, name the split. Alternative: val_set_size."),
       number_field(
           "val_set_size", &DataSection::val_set_size, Range::at_least(0),
           "Holds out a part of the training data for evaluation: below 1 a share of the documents, from 1 on their "
           "number.")
           .silent_when([](const Profile& profile) { return profile.data.val_set_size == 0; })
           .default_is("0"),
       choice_field(
           "loss_on", &DataSection::loss_on,
           "Which tokens are trained. auto: assistant turns of chats, the completion of prompt/completion rows, "
           "all of text, the labels of pre-tokenised rows. last: the last assistant turn. A message's own `weight` is "
           "what "
           "each of its tokens counts for in the loss (docs/data.md)."),
       integer_field("max_seq_len", &DataSection::max_seq_len, Range::at_least(1), "auto",
                     "Tokens per row. auto: the longest row rounded up to 64, capped by the model's maximum and by 4 "
                     "times the 99th percentile (at least 2048)."),
       choice_field("overlength", &DataSection::overlength,
                    "What to do with rows longer than max_seq_len: error (reports what drop and truncate would lose), "
                    "drop, or truncate "
                    "(keeps the start)."),
       flag_field(
           "packing", &DataSection::packing,
           "Pack several documents into one row. Attention never crosses documents, and positions restart at each."),
       flag_field("shuffle", &DataSection::shuffle,
                  "Shuffle the documents in every epoch. false keeps the order of the files."),
       choice_field("on_bad_row", &DataSection::on_bad_row,
                    "What to do with malformed rows: stop, or drop and count them."),
       number_field("max_drop_fraction", &DataSection::max_drop_fraction, Range::between(0, 1),
                    "Largest share of rows that may be dropped before the run fails."),
       flag_field("drop_duplicates", &DataSection::drop_duplicates,
                  "Train each row once: drop training rows with the same tokens and labels as an earlier one, and "
                  "evaluation rows that are also training rows. false counts them."),
       text_field("dataset_prepared_path", &DataSection::dataset_prepared_path, "folder",
                  "Where the token cache is stored. Default: ~/.cache/lora-train/tokens.")
           .free_on_resume(),
       text_field(
           "stage_dir", &DataSection::stage_dir, "folder on a local disk, or auto",
           "Copy the token cache there first, for data on a network disk. auto: a folder of this user in the temporary "
           "folder.")
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
                      "Who answers the prompts of datasets and eval_datasets in `distill`: an OpenAI-compatible server "
                      "(http://host:8000/v1), or a model of this machine."),
           text_field("teacher_system", &TeacherSection::teacher_system, "file, or text",
                      "System message that only the teacher sees."),
           text_field("student_system", &TeacherSection::student_system, "file, or text",
                      "System message that the student sees in its place.")}};
}

}  // namespace

std::vector<FieldGroup> data_field_groups() { return {data_group(), teacher_group()}; }

}  // namespace lora_train
