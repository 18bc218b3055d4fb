#include "split.h"

#include <algorithm>
#include <cmath>

#include "lora_train/base/error.h"
#include "lora_train/base/philox.h"
#include "lora_train/base/text.h"
#include "shuffle.h"

namespace lora_train::data {

Split split_rows(std::size_t num_rows, double val_set_size, std::uint64_t seed) {
  const double wanted = val_set_size < 1 ? std::ceil(val_set_size * static_cast<double>(num_rows)) : val_set_size;
  if (wanted >= static_cast<double>(num_rows)) {
    throw DataError("val_set_size", string_printf("%g would hold out %.0f of %zu rows and leave none to train on",
                                                  val_set_size, wanted, num_rows));
  }
  const auto order = shuffled(num_rows, philox_key(seed, RandomPurpose::kSplit, {}));
  const auto cut = order.begin() + static_cast<std::ptrdiff_t>(wanted);
  Split split{{cut, order.end()}, {order.begin(), cut}};
  std::sort(split.train.begin(), split.train.end());
  std::sort(split.held_out.begin(), split.held_out.end());
  return split;
}

}  // namespace lora_train::data
