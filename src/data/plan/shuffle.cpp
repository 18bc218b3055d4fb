#include "shuffle.h"

#include <numeric>
#include <utility>

#include "lora_train/base/stop_request.h"
namespace lora_train::data {
namespace {

// Uniform in [0, bound) by multiplying a 64-bit number: the bias is below bound / 2^64.
std::uint64_t random_below(PhiloxKey key, std::uint32_t stream, std::uint64_t counter, std::uint64_t bound) {
  const PhiloxCounter bits =
      philox4x32({static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32), stream, 0}, key);
  const std::uint64_t value = (std::uint64_t{bits[1]} << 32) | bits[0];
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(value) * bound) >> 64);
}

}  // namespace

std::vector<std::uint32_t> shuffled(std::size_t n, PhiloxKey key, std::uint32_t stream) {
  std::vector<std::uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0U);
  StopPoll stop_poll;
  for (std::size_t i = n; i > 1; --i) {
    stop_poll();
    std::swap(order[i - 1], order[random_below(key, stream, i, i)]);
  }
  return order;
}

}  // namespace lora_train::data
