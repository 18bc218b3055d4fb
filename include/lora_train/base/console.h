// stderr, whose reader may stop reading: mpirun once it has been asked to stop, a pager, a terminal after Ctrl-S.
#pragma once

#include <chrono>

namespace lora_train {

/// From here on, a process does not wait longer than this for the reader: lines are lost (run.log has them) until it reads again.
/// Before, it waits as long as it takes.
void never_wait_for_stderr(std::chrono::milliseconds patience = std::chrono::seconds(2));

/// Whether a line of up to 4096 bytes can be written to stderr without waiting. Thread-safe.
bool can_write_to_stderr();

}  // namespace lora_train
