#include "lora_train/kernels/rope/rope.h"

#include <ATen/ATen.h>

#include "dispatch/checks.h"
#include "dispatch/native_arguments.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "rope_cpu.h"

namespace lora_train::kernels {

RopeTable make_rope_table(const at::Tensor& inv_freq, int64_t num_positions, double attention_factor) {
  check_rows("make_rope_table", "inv_freq", inv_freq, {-1}, at::kFloat);
  const auto angles = at::arange(num_positions, inv_freq.options()).unsqueeze(1) * inv_freq;
  return {angles.cos().mul_(attention_factor), angles.sin().mul_(attention_factor)};
}

void rope_in_place(at::Tensor& x, const at::Tensor& positions, const RopeTable& table, bool inverse) {
  constexpr auto kName = "rope_in_place";
  check_rows(kName, "x", x, {-1, -1, 2 * table.cos.size(-1)});
  check_floating(kName, "x", x);
  check_vector(kName, "positions", positions, x.size(0), at::kInt);
  check_rows(kName, "table.cos", table.cos, {-1, -1}, at::kFloat);
  check_rows(kName, "table.sin", table.sin, table.cos.sizes(), at::kFloat);
  const WorkScope recorded(kName, WorkClass::kRope,
                           [&](Work& work) { work.updates("x", x).reads("positions", positions); });
  if (x.is_meta()) return;
  const Implementation how = implementation_for(KernelName::kRope, x);
  if (how == Implementation::kReference) return rope_in_place_reference(x, positions, table, inverse);
  dispatch_dtype(x, [&]<class T>(ElementType<T>) {
    if (how == Implementation::kCuda) {
      const RotationTable turns{read<std::int32_t>(positions), read_rows<float>(table.cos),
                                read_rows<float>(table.sin)};
      return native_kernels_of<T>().rope(write_rows<T>(x), turns, inverse, x.size(0), {x.size(1), 0, x.size(2)},
                                         native_stream());
    }
    rope_in_place_cpu(write_rows<T>(x), read<std::int32_t>(positions), read_rows<float>(table.cos),
                      read_rows<float>(table.sin), inverse, x.size(0), x.size(1), x.size(2));
  });
}

void rope_in_place_reference(at::Tensor& x, const at::Tensor& positions, const RopeTable& table, bool inverse) {
  const auto cos = table.cos.index_select(0, positions).unsqueeze(1);
  auto sin = table.sin.index_select(0, positions).unsqueeze(1);
  if (inverse) {
    sin = -sin;
  }
  const auto halves = to_math(x).chunk(2, -1);
  const auto first = halves[0] * cos - halves[1] * sin;
  const auto second = halves[1] * cos + halves[0] * sin;
  x.copy_(at::cat({first, second}, -1));
}

}  // namespace lora_train::kernels
