#include "native_kernels.h"

namespace lora_train::kernels {

const NativeKernels& linked_native_kernels() {
  static const NativeKernels table;
  return table;
}

}  // namespace lora_train::kernels
