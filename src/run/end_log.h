// What the log says at the end of a run that was not failed: where its time went, and what comes next.
#pragma once

#include "lora_train/config/profile.h"
#include "lora_train/report/summary.h"

namespace lora_train::run {

void log_end(const report::RunSummary& summary, const Profile& profile);

}  // namespace lora_train::run
