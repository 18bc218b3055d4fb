// Records as metrics.jsonl has them.
#pragma once

#include <nlohmann/json.hpp>

#include "lora_train/report/metrics_writer.h"

namespace lora_train::report {

nlohmann::ordered_json to_object(const TrainRecord& record);
nlohmann::ordered_json to_object(const EvalRecord& record);
nlohmann::ordered_json to_object(const TaskRecord& record);

}  // namespace lora_train::report
