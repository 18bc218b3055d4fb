#include "lora_train/kernels/causal_conv/causal_conv.h"

#include "causal_conv_parts.h"
#include "dispatch/arguments.h"
#include "lora_train/base/error.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/aten.h"

namespace lora_train::kernels {
namespace {

void check_convolution(const char* kernel, const at::Tensor& x, const at::Tensor& weight, const Sequences& sequences,
                       const char* name, const at::Tensor& y) {
  check_floating(kernel, "x", x, {-1, -1});
  check_rows(kernel, "weight", weight, {x.size(1), -1}, x.scalar_type());
  check_contiguous(kernel, "weight", weight);
  if (weight.size(1) < 1 || weight.size(1) > kMaxConvTaps) {
    throw ShapeError(std::string(kernel) + ": weight", "{} taps, expected 1 to {}", weight.size(1), kMaxConvTaps);
  }
  check_rows(kernel, name, y, x.sizes(), x.scalar_type());
  check_sequences(kernel, sequences, x.size(0));
}

template <class T>
ConvFilter<T> conv_filter(const at::Tensor& weight) {
  return {read<T>(weight), weight.size(0), static_cast<int>(weight.size(1))};
}

/// The inputs of a sequence after those of its state, or zeros; and the sums of its tokens.
struct SequenceSums {
  at::Tensor inputs;  ///< [T - 1 + tokens, C]
  at::Tensor sums;    ///< [tokens, C]
};

SequenceSums convolve_sequence(const at::Tensor& x, const at::Tensor& weight, std::int64_t begin, std::int64_t tokens,
                               const at::Tensor& state) {
  const at::Tensor w = to_math(weight);
  const std::int64_t T = w.size(1);
  const at::Tensor before = state.defined() ? to_math(state).t() : at::zeros({T - 1, w.size(0)}, w.options());
  SequenceSums result{at::cat({before, to_math(x.narrow(0, begin, tokens))}),
                      at::zeros({tokens, w.size(0)}, w.options())};
  for (std::int64_t j = 0; j < T; ++j) result.sums.add_(result.inputs.narrow(0, j, tokens) * w.select(1, j));
  return result;
}

}  // namespace

void causal_conv_forward(const at::Tensor& x, const at::Tensor& weight, const Sequences& sequences, at::Tensor& state,
                         at::Tensor& y) {
  constexpr auto kName = "causal_conv_forward";
  check_convolution(kName, x, weight, sequences, "y", y);
  const bool has_states = sequences.state_rows.defined();
  if (has_states) check_rows(kName, "state", state, {-1, x.size(1), weight.size(1) - 1}, x.scalar_type());
  const WorkScope recorded(kName, WorkClass::kGatedDelta, [&](Work& work) {
    work.reads("x", x).reads("weight", weight).writes("y", y);
    const std::int64_t row = x.size(1) * (weight.size(1) - 1) * static_cast<std::int64_t>(x.element_size());
    if (has_states) work.passes_through("state", sequences.size() * row);
  });
  const auto reference = [&] { causal_conv_forward_reference(x, weight, sequences, state, y); };
  run_kernel(KernelName::kGatedDelta, x, reference, [&]<class T>(ElementType<T>, Implementation how) {
    const Rows<T> states = has_states ? write_rows<T>(state) : Rows<T>{nullptr, 0};
    if (how == Implementation::kCpu) {
      return causal_conv_forward_cpu(read_rows<T>(x), conv_filter<T>(weight), host_ranges(sequences, x.size(0)), states,
                                     write_rows<T>(y));
    }
    native_kernels_of<T>().causal_conv_forward(read_rows<T>(x), conv_filter<T>(weight),
                                               device_ranges(kName, sequences, x.size(0)), states, write_rows<T>(y),
                                               native_stream());
  });
}

void causal_conv_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                          const Sequences& sequences, at::Tensor& dx, at::Tensor& dweight) {
  constexpr auto kName = "causal_conv_backward";
  check_convolution(kName, x, weight, sequences, "dy", dy);
  check_rows(kName, "dx", dx, x.sizes(), x.scalar_type());
  const bool needs_dweight = dweight.defined();
  if (needs_dweight) {
    check_rows(kName, "dweight", dweight, weight.sizes(), math_dtype(x));
    check_contiguous(kName, "dweight", dweight);
  }
  if (sequences.state_rows.defined()) throw ShapeError("causal_conv_backward: state_rows", "sequences with states");
  const WorkScope recorded(kName, WorkClass::kGatedDelta, [&](Work& work) {
    const std::int64_t passes = needs_dweight ? 2 : 1;
    work.reads("dy", dy, passes).reads("x", x, passes).reads("weight", weight).writes("dx", dx);
    if (needs_dweight) work.updates("dweight", dweight).launches(3);
  });
  const auto reference = [&] { causal_conv_backward_reference(dy, x, weight, sequences, dx, dweight); };
  run_kernel(KernelName::kGatedDelta, x, reference, [&]<class T>(ElementType<T>, Implementation how) {
    const ConvFilter<T> filter = conv_filter<T>(weight);
    if (how == Implementation::kCpu) {
      return causal_conv_backward_cpu(read_rows<T>(dy), read_rows<T>(x), filter, host_ranges(sequences, x.size(0)),
                                      write_rows<T>(dx), write<float>(dweight));
    }
    const NativeKernelsOf<T>& own = native_kernels_of<T>();
    const DeviceRanges lists = device_ranges(kName, sequences, x.size(0));
    own.causal_conv_backward(read_rows<T>(dy), read_rows<T>(x), filter, lists, write_rows<T>(dx), native_stream());
    if (!needs_dweight) return;
    own.causal_conv_weight_gradient(read_rows<T>(dy), read_rows<T>(x), filter, lists, write<float>(dweight),
                                    native_workspace(causal_conv_workspace(filter.channels)), native_stream());
  });
}

void causal_conv_forward_reference(const at::Tensor& x, const at::Tensor& weight, const Sequences& sequences,
                                   at::Tensor& state, at::Tensor& y) {
  const auto& cu = sequences.cu_seqlens;
  const at::Tensor rows = sequences.state_rows.defined() ? sequences.state_rows.cpu() : at::Tensor();
  for (std::size_t s = 0; s + 1 < cu.size(); ++s) {
    const std::int64_t tokens = cu[s + 1] - cu[s];
    if (tokens == 0) continue;
    const at::Tensor own = rows.defined() ? state.select(0, rows.const_data_ptr<std::int64_t>()[s]) : at::Tensor();
    const auto [inputs, sums] = convolve_sequence(x, weight, cu[s], tokens, own);
    y.narrow(0, cu[s], tokens).copy_(at::silu(sums));
    if (own.defined()) own.copy_(inputs.narrow(0, tokens, weight.size(1) - 1).t());
  }
  y.narrow(0, cu.back(), y.size(0) - cu.back()).zero_();
}

void causal_conv_backward_reference(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                                    const Sequences& sequences, at::Tensor& dx, at::Tensor& dweight) {
  const auto& cu = sequences.cu_seqlens;
  const std::int64_t T = weight.size(1);
  const at::Tensor w = to_math(weight);
  for (std::size_t s = 0; s + 1 < cu.size(); ++s) {
    const std::int64_t tokens = cu[s + 1] - cu[s];
    const auto [inputs, sums] = convolve_sequence(x, weight, cu[s], tokens, {});
    const at::Tensor sigmoid = at::sigmoid(sums);
    const at::Tensor dc = to_math(dy.narrow(0, cu[s], tokens)) * sigmoid * (1 + sums * (1 - sigmoid));
    const at::Tensor after = at::cat({dc, at::zeros({T - 1, w.size(0)}, w.options())});
    at::Tensor d = at::zeros_like(dc);
    for (std::int64_t j = 0; j < T; ++j) {
      d.add_(after.narrow(0, T - 1 - j, tokens) * w.select(1, j));
      if (dweight.defined()) dweight.select(1, j).add_((dc * inputs.narrow(0, j, tokens)).sum(0));
    }
    dx.narrow(0, cu[s], tokens).copy_(d);
  }
  dx.narrow(0, cu.back(), dx.size(0) - cu.back()).zero_();
}

}  // namespace lora_train::kernels
