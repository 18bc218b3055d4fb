#include "lora_train/kernels/accounting/work_record.h"

namespace lora_train::kernels {

namespace detail {
WorkRecorder* work_recorder = nullptr;
bool is_inside_work = false;
}  // namespace detail

void set_work_recorder(WorkRecorder* recorder) {
  detail::work_recorder = recorder;
  detail::is_inside_work = false;
}

Work& Work::moves(std::string_view operand, const at::Tensor& t, std::int64_t num_reads, std::int64_t num_writes) {
  if (!t.defined()) return *this;
  operands.push_back({operand, t.sizes().vec(), num_reads * bytes_of(t), num_writes * bytes_of(t),
                      t.storage().unsafeGetStorageImpl(), t.storage_offset()});
  return *this;
}

Work& Work::moves_bytes(std::string_view operand, std::int64_t num_read, std::int64_t num_written) {
  operands.push_back({operand, {}, num_read, num_written});
  return *this;
}

std::int64_t Work::bytes_read() const {
  std::int64_t sum = 0;
  for (const auto& operand : operands) sum += operand.bytes_read;
  return sum;
}

std::int64_t Work::bytes_written() const {
  std::int64_t sum = 0;
  for (const auto& operand : operands) sum += operand.bytes_written;
  return sum;
}

void WorkScope::finish() {
  if (detail::work_recorder != nullptr) detail::work_recorder->end(*work_);
  detail::is_inside_work = false;
}

}  // namespace lora_train::kernels
