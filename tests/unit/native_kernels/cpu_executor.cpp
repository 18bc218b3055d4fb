#include <new>

#include "support/kernel_executor.h"
#include "support/on_cpu.h"

namespace lora_train::testing_support {

namespace on_cpu = kernels::on_cpu;

void* allocate_for_kernels(std::size_t bytes) { return ::operator new(bytes); }
void free_for_kernels(void* memory) { ::operator delete(memory); }
void wait_for_kernels() {}
void set_descending_order(bool is_descending) {
  on_cpu::set_order(is_descending ? on_cpu::Order::kDescending : on_cpu::Order::kAscending);
}
std::int64_t num_launches() { return on_cpu::num_launches(); }
std::string start_executor() { return {}; }

}  // namespace lora_train::testing_support
