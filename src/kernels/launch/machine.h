// Code for the vectors of the CPU that runs it. Not target_clones: the vectors themselves differ, so that the sums of a
// tile fit the available registers. No torch.
#pragma once

#include "elements.h"

namespace lora_train::kernels {

/// A machine has vectors of F; kRows: rows of a tile of two vectors, which its registers hold; and call(), which
/// compiles a function for it. This one is any machine.
template <class F>
struct AnyMachine {
  typedef F Vector __attribute__((vector_size(16)));
  static constexpr int kRows = 4;
  template <auto kFunction, class... Arguments>
  __attribute__((noinline)) static void call(Arguments&&... arguments) {
    kFunction(arguments...);
  }
};

#if defined(__x86_64__)
/// AVX512-BF16: pairs of bf16 are multiplied, and floats rounded to bf16, by one instruction.
inline const bool kHasAvx512Bf16 = __builtin_cpu_supports("avx512bf16");

struct MachineV4 {
  typedef float Vector __attribute__((vector_size(64)));
  static constexpr int kRows = 8;
  template <auto kFunction, class... Arguments>
  __attribute__((noinline, target("arch=x86-64-v4"))) static void call(Arguments&&... arguments) {
    kFunction(arguments...);
  }
};
struct MachineV3 {
  typedef float Vector __attribute__((vector_size(32)));
  static constexpr int kRows = 4;
  template <auto kFunction, class... Arguments>
  __attribute__((noinline, target("arch=x86-64-v3"))) static void call(Arguments&&... arguments) {
    kFunction(arguments...);
  }
};
#endif

/// Calls run(machine) with this machine.
template <class Run>
void on_this_machine(const Run& run) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("x86-64-v4")) return run(MachineV4());
  if (__builtin_cpu_supports("x86-64-v3")) return run(MachineV3());
#endif
  run(AnyMachine<float>());
}

/// Without it gcc loads a value again for every product, and loads become the limit.
template <class Vector>
LORA_TRAIN_INLINE void hold_in_register(Vector& value) {
#if defined(__x86_64__)
  asm("" : "+v"(value));
#endif
}

}  // namespace lora_train::kernels
