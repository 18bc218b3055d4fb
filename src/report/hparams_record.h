// What TensorBoard's hparams plugin reads: tensorboard/plugins/hparams/{api,plugin_data}.proto.
#pragma once

#include <string>

namespace lora_train::report {

/// The start of a session: the scalar keys of a profile (a JSON object) as hyperparameters, and the tags that are its metrics.
/// `group`: equal for what is shown as one row.
std::string hparams_start_records(const std::string& profile_json, const std::string& group, double time);

/// Its end.
std::string hparams_end_record(bool is_success, double time);

}  // namespace lora_train::report
