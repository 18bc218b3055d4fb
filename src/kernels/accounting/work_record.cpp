#include "lora_train/kernels/work_record.h"

#include <utility>

namespace lora_train::kernels {
namespace detail {

WorkRecorder* work_recorder = nullptr;

namespace {
bool is_inside = false;
}

bool enter_work() { return !std::exchange(is_inside, true); }
void leave_work() { is_inside = false; }

}  // namespace detail

namespace {

WorkOperand operand_of(std::string_view name, const at::Tensor& t) {
  return {name, t.sizes().vec(), 0, 0, t.storage().unsafeGetStorageImpl(), t.storage_offset()};
}

}  // namespace

void set_work_recorder(WorkRecorder* recorder) {
  detail::work_recorder = recorder;
  detail::leave_work();
}

Work& Work::reads(std::string_view operand, const at::Tensor& t, std::int64_t times) {
  if (!t.defined()) return *this;
  operands.push_back(operand_of(operand, t));
  operands.back().bytes_read = times * bytes_of(t);
  return *this;
}

Work& Work::reads_bytes(std::string_view operand, std::int64_t bytes) {
  operands.push_back({operand, {}, bytes, 0});
  return *this;
}

Work& Work::writes(std::string_view operand, const at::Tensor& t) {
  if (!t.defined()) return *this;
  operands.push_back(operand_of(operand, t));
  operands.back().bytes_written = bytes_of(t);
  return *this;
}

Work& Work::writes_bytes(std::string_view operand, std::int64_t bytes) {
  operands.push_back({operand, {}, 0, bytes});
  return *this;
}

Work& Work::updates(std::string_view operand, const at::Tensor& t) {
  if (!t.defined()) return *this;
  reads(operand, t);
  operands.back().bytes_written = bytes_of(t);
  return *this;
}

Work& Work::passes_through(std::string_view operand, std::int64_t bytes) {
  operands.push_back({operand, {}, bytes, bytes});
  return *this;
}

Work& Work::multiplies(std::int64_t num_flops) {
  flops += num_flops;
  return *this;
}

Work& Work::launches(std::int64_t count) {
  num_launches = count;
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
  detail::leave_work();
}

}  // namespace lora_train::kernels
