#include "lora_train/kernels/dropout/dropout.h"

#include <cmath>

#include "dispatch/arguments.h"
#include "dropout_parts.h"
#include "lora_train/base/error.h"
#include "lora_train/base/philox.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/aten.h"

namespace lora_train::kernels {

void dropout_forward(const at::Tensor& x, const at::Tensor& token_document, const at::Tensor& token_position,
                     const at::Tensor& key, double p, at::Tensor& y) {
  constexpr auto kName = "dropout_forward";
  check_floating(kName, "x", x, {-1, -1});
  check_rows(kName, "y", y, x.sizes(), x.scalar_type());
  check_vector(kName, "token_document", token_document, x.size(0), at::kInt);
  check_vector(kName, "token_position", token_position, x.size(0), at::kInt);
  check_vector(kName, "key", key, 2, at::kInt);
  if (!(p >= 0 && p < 1)) throw ShapeError("dropout_forward: p", "is {}, expected [0, 1)", p);
  const WorkScope recorded(kName, WorkClass::kDropout, [&](Work& work) {
    work.reads("x", x).reads("token_document", token_document).reads("token_position", token_position).writes("y", y);
  });
  const auto reference = [&] { dropout_forward_reference(x, token_document, token_position, key, p, y); };
  run_kernel(KernelName::kDropout, x, reference, [&]<class T>(ElementType<T>, Implementation how) {
    run_native<T>(how, dropout_forward_cpu<T>, &NativeKernelsOf<T>::dropout_forward, read_rows<T>(x),
                  read<std::int32_t>(token_document), read<std::int32_t>(token_position),
                  reinterpret_cast<const PhiloxKey*>(read<std::int32_t>(key)),
                  static_cast<std::uint32_t>(std::ceil(p * 16777216.0)), static_cast<float>(1.0 / (1.0 - p)),
                  write_rows<T>(y), x.size(0), x.size(1));
  });
}

namespace {

constexpr int64_t kLowBits = 0xFFFFFFFF;

// Philox4x32-10 on int64 tensors that hold 32-bit words; products wrap at 64 bits, which keeps both halves exact.
at::Tensor philox_words(std::array<at::Tensor, 4> c, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const auto p0 = c[0] * int64_t{0xD2511F53};
    const auto p1 = c[2] * int64_t{0xCD9E8D57};
    const auto high0 = (p0.bitwise_right_shift(32)).bitwise_and(kLowBits);
    const auto high1 = (p1.bitwise_right_shift(32)).bitwise_and(kLowBits);
    c = {high1.bitwise_xor(c[1]).bitwise_xor(int64_t{key.k0}), p1.bitwise_and(kLowBits),
         high0.bitwise_xor(c[3]).bitwise_xor(int64_t{key.k1}), p0.bitwise_and(kLowBits)};
    key.k0 += 0x9E3779B9u;
    key.k1 += 0xBB67AE85u;
  }
  return at::stack({c[0], c[1], c[2], c[3]}, -1);
}

}  // namespace

void dropout_forward_reference(const at::Tensor& x, const at::Tensor& token_document, const at::Tensor& token_position,
                               const at::Tensor& key, double p, at::Tensor& y) {
  const int64_t num_tokens = x.size(0), num_groups = (x.size(1) + 3) / 4;
  const auto options = x.options().dtype(at::kLong);
  const auto column = [&](const at::Tensor& t) {
    return t.to(at::kLong).bitwise_and(kLowBits).unsqueeze(1).expand({num_tokens, num_groups});
  };
  const at::Tensor on_host = key.cpu();
  const auto word = [&](int i) { return static_cast<std::uint32_t>(on_host.const_data_ptr<std::int32_t>()[i]); };
  const auto group = at::arange(num_groups, options).unsqueeze(0).expand({num_tokens, num_groups});
  const auto words =
      philox_words({column(token_document), column(token_position), group, at::zeros_like(group)}, {word(0), word(1)});
  const auto uniform24 = words.view({num_tokens, num_groups * 4}).narrow(1, 0, x.size(1)).bitwise_right_shift(8);
  const auto is_kept = uniform24 >= static_cast<int64_t>(std::ceil(p * 16777216.0));
  y.copy_(at::where(is_kept, to_math(x) * (1.0 / (1.0 - p)), 0.0));
}

}  // namespace lora_train::kernels
