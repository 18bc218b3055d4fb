#include <ATen/ATen.h>

#include <cfloat>

#include "lora_train/base/ceil_div.h"
#include "lora_train/kernels/quantized_weight/dynamic_map.h"
#include "lora_train/optim/adamw_8bit.h"

namespace lora_train::optim {
namespace {

using kernels::kMomentBlockSize;

at::Tensor table(std::span<const float> values, const at::Tensor& like) {
  return at::tensor(at::ArrayRef<float>(values.data(), values.size()), at::kFloat).to(like.device());
}

/// The moments of C codes, flat.
at::Tensor decoded(const at::Tensor& codes, const at::Tensor& scales, const kernels::DynamicMap& map) {
  const at::Tensor values = table(map.values, codes).index_select(0, codes.to(at::kLong));
  return (values.view({-1, kMomentBlockSize}) * scales.unsqueeze(1)).flatten();
}

struct Coded {
  at::Tensor codes, scales;
};

Coded coded(const at::Tensor& values, const kernels::DynamicMap& map) {
  const at::Tensor rows = values.view({-1, kMomentBlockSize});
  const at::Tensor scales = rows.abs().amax(1);
  const at::Tensor x = rows * scales.reciprocal().clamp_max(FLT_MAX).unsqueeze(1);
  const at::Tensor codes = at::bucketize(x, table(map.thresholds, values));
  const at::Tensor loses_sign = (rows < 0).logical_and(codes == 127);  // a negative moment stays negative
  return {codes.sub(loses_sign.to(at::kLong)).to(at::kByte).flatten(), scales};
}

struct Updated {
  at::Tensor p, m, v;
};

/// m and v may be longer than p: their last elements stay zeros.
Updated updated(const at::Tensor& p, const at::Tensor& grads, const at::Tensor& m, const at::Tensor& v,
                const AdamWOptions& options, const kernels::ParameterBlock& block, const at::Tensor& scalars) {
  const at::Tensor rate = scalars[kLearningRate] * block.lr_factor, correction2_sqrt = scalars[kBeta2Correction].sqrt();
  const at::Tensor g = at::constant_pad_nd(grads * scalars[kClipFactor], {0, m.numel() - grads.numel()});
  const at::Tensor new_m = m * options.beta1 + g * (1.0 - options.beta1);
  const at::Tensor new_v = v * options.beta2 + (g * (1.0 - options.beta2)) * g;
  const at::Tensor direction = new_m / (new_v.sqrt() + correction2_sqrt * options.epsilon);
  const at::Tensor step = direction.narrow(0, 0, p.numel()) * (-rate * correction2_sqrt / scalars[kBeta1Correction]);
  const double weight_decay = block.decays ? options.weight_decay : 0;
  return {(p + step) * (1.0 - rate * weight_decay), new_m, new_v};
}

}  // namespace

void adamw_8bit_step_reference(at::Tensor& params, const at::Tensor& grads, AdamW8bitState state,
                               const AdamWOptions& options, std::span<const kernels::ParameterBlock> blocks,
                               at::Tensor& scalars) {
  const at::Tensor is_stopped = scalars[kNonFinite] != 0;
  const auto replace = [&](const at::Tensor& old, const at::Tensor& by) { old.copy_(at::where(is_stopped, old, by)); };
  int64_t next[2] = {}, num_moments = 0;  // of fp32 and coded blocks
  at::Tensor num_zeroed = at::zeros({}, scalars.options());
  for (const kernels::ParameterBlock& tensor : blocks) {
    const int64_t num_blocks = ceil_div(tensor.count, kMomentBlockSize);
    const int64_t first = next[is_coded(tensor)];
    next[is_coded(tensor)] += num_blocks;
    const at::Tensor p = params.narrow(0, tensor.begin, tensor.count), g = grads.narrow(0, tensor.begin, tensor.count);
    const auto scales = [&](const at::Tensor& all) { return all.narrow(0, first, num_blocks); };
    const auto moments = [&](const at::Tensor& all) {
      return all.narrow(0, first * kMomentBlockSize, num_blocks * kMomentBlockSize);
    };
    if (!is_coded(tensor)) {
      const at::Tensor m = moments(state.exp_avg), v = moments(state.exp_avg_sq);
      const Updated now = updated(p, g, m, v, options, tensor, scalars);
      replace(p, now.p);
      replace(m, now.m);
      replace(v, now.v);
      continue;
    }
    const at::Tensor m_codes = moments(state.exp_avg_codes), v_codes = moments(state.exp_avg_sq_codes);
    const at::Tensor m_scales = scales(state.exp_avg_scales), v_scales = scales(state.exp_avg_sq_scales);
    const Updated now = updated(p, g, decoded(m_codes, m_scales, kernels::kSignedMap),
                                decoded(v_codes, v_scales, kernels::kUnsignedMap), options, tensor, scalars);
    const Coded m = coded(now.m, kernels::kSignedMap), v = coded(now.v, kernels::kUnsignedMap);
    num_moments += tensor.count;
    num_zeroed += (now.v > 0).logical_and(v.codes == 0).sum();
    replace(p, now.p);
    replace(m_codes, m.codes);
    replace(m_scales, m.scales);
    replace(v_codes, v.codes);
    replace(v_scales, v.scales);
  }
  if (num_moments > 0) num_zeroed = num_zeroed / num_moments;
  replace(scalars[kZeroedMoments], num_zeroed);
}

}  // namespace lora_train::optim
