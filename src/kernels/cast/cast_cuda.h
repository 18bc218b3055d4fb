// Contract in cast.h, on a GPU in stream order: pointers are device memory. From and To are float or Bf16. No torch here.
#pragma once

#include <cstdint>

#include "launch/rows.h"

namespace lora_train::kernels {

template <class From, class To>
void scaled_copy_cuda(Rows<const From> from, float scale, Rows<To> to, std::int64_t num_rows, std::int64_t width,
                      Stream stream);

}  // namespace lora_train::kernels
