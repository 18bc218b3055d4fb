#include "lora_train/kernels/launch/parallel.h"

#include <ATen/Parallel.h>

#ifndef _OPENMP
#error "compile with -fopenmp: at::parallel_for is serial without it"
#endif

namespace lora_train::kernels {
namespace {

bool is_avx512_allowed = true;

}  // namespace

void parallel_ranges(std::int64_t count, std::int64_t grain,
                     const std::function<void(std::int64_t, std::int64_t)>& body) {
  at::parallel_for(0, count, grain, body);
}

int num_threads() { return at::in_parallel_region() ? 1 : at::get_num_threads(); }

bool has_avx512() {
#if defined(__x86_64__)
  return is_avx512_allowed && __builtin_cpu_supports("x86-64-v4");
#else
  return false;
#endif
}

void allow_avx512(bool allowed) { is_avx512_allowed = allowed; }

}  // namespace lora_train::kernels
