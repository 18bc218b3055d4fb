// Work shared among ATen's threads. at::parallel_for itself is a template that runs serially in any source not compiled
// with OpenMP, so ours call this instead.
#pragma once

#include <cstdint>
#include <functional>

namespace lora_train::kernels {

/// Calls body(begin, end) on disjoint ranges that cover [0, count), one range per thread and none smaller than `grain`
/// unless count is. Ranges depend only on count, grain and the thread count. An exception of a body is thrown here.
/// Inside a body it runs serially.
void parallel_ranges(std::int64_t count, std::int64_t grain,
                     const std::function<void(std::int64_t, std::int64_t)>& body);

}  // namespace lora_train::kernels
