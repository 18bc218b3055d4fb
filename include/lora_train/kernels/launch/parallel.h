// A parallel loop over ATen's threads. The template at::parallel_for runs serially in sources compiled without OpenMP, so
// kernels call this instead.
#pragma once

#include <cstdint>
#include <functional>

namespace lora_train::kernels {

/// Calls body(begin, end) on disjoint ranges that cover [0, count): one range per thread, none smaller than `grain` unless
/// count is. Ranges depend only on count, grain and the thread count. Rethrows an exception from `body`. Nested calls run
/// serially.
void parallel_ranges(std::int64_t count, std::int64_t grain,
                     const std::function<void(std::int64_t, std::int64_t)>& body);

}  // namespace lora_train::kernels
