#include "lora_train/kernels/launch/parallel.h"

#include <ATen/Parallel.h>

#ifndef _OPENMP
#error "compile with -fopenmp: at::parallel_for is serial without it"
#endif

namespace lora_train::kernels {

void parallel_ranges(std::int64_t count, std::int64_t grain,
                     const std::function<void(std::int64_t, std::int64_t)>& body) {
  at::parallel_for(0, count, grain, body);
}

int num_threads() { return at::in_parallel_region() ? 1 : at::get_num_threads(); }

}  // namespace lora_train::kernels
