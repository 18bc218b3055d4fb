#include "lora_train/optim/adamw.h"

#include <algorithm>
#include <atomic>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "adamw_cpu.h"
#include "lora_train/base/ceil_div.h"
#include "lora_train/base/error.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/dispatch/implementation.h"
#include "lora_train/kernels/launch/parallel.h"
#include "lora_train/kernels/quantized_weight/codes.h"

namespace lora_train::optim {
namespace {

/// Throws ShapeError, naming `where`, unless scalars is fp64 [kNumStepScalars], contiguous, on the device of `buffer`,
/// and buffer is flat and contiguous, fp32 or fp64. A failure is a bug in lora-train.
void check_step_buffers(const char* where, const at::Tensor& buffer, const at::Tensor& scalars) {
  const bool is_floating = buffer.scalar_type() == at::kFloat || buffer.scalar_type() == at::kDouble;
  if (buffer.dim() != 1 || !buffer.is_contiguous() || !is_floating) {
    throw ShapeError(where, "every buffer must be flat and contiguous, fp32 or fp64");
  }
  if (scalars.dim() != 1 || scalars.size(0) != kNumStepScalars || !scalars.is_contiguous() ||
      scalars.scalar_type() != at::kDouble || (scalars.device() != buffer.device() && !buffer.is_meta())) {
    throw ShapeError(where, "the scalars must be fp64 [{}], contiguous, on the device of the buffers", kNumStepScalars);
  }
}

/// The same unless the blocks cover [0, n) without gaps or overlaps.
void check_blocks(const char* where, ParameterBlocks blocks, int64_t n) {
  int64_t end = 0;
  for (const kernels::ParameterBlock& block : blocks) {
    if (block.begin != end || block.count < 0)
      throw ShapeError(where, "every block must start at the end of the previous one");
    end += block.count;
  }
  if (end != n) throw ShapeError(where, "the blocks must cover all {} elements", n);
}

constexpr int64_t kChunk = 1 << 16;
constexpr int64_t kLanes = 16;  // independent sums, so that the compiler can vectorise without reordering a sum

double sum_of_squares(const float* x, int64_t n) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) {
      const double value = x[i + j];
      lanes[j] += value * value;
    }
  }
  for (; i < n; ++i) {
    const double value = x[i];
    lanes[i % kLanes] += value * value;
  }
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

double norm_of(const at::Tensor& grads) {
  const int64_t n = grads.numel();
  const auto* x = grads.const_data_ptr<float>();
  std::vector<double> sums(static_cast<std::size_t>(ceil_div(n, kChunk)));
  kernels::parallel_ranges(static_cast<int64_t>(sums.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      sums[static_cast<std::size_t>(c)] = sum_of_squares(x + c * kChunk, std::min(kChunk, n - c * kChunk));
    }
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return std::sqrt(total);
}

constexpr int64_t kGrain = 16384;

using kernels::AdamW8bitGroups;
using kernels::kMomentBlockSize;
using kernels::MomentBlock;
using kernels::ParameterBlock;

constexpr int64_t kMinCodedElements = 4096;
constexpr int64_t kBlockGrain = 16;

int64_t num_moment_blocks(const ParameterBlock& block) { return ceil_div(block.count, kMomentBlockSize); }

AdamW8bitGroups groups_of(ParameterBlocks blocks, const AdamWOptions& options) {
  AdamW8bitGroups groups;
  for (const ParameterBlock& group : kernels::merged(blocks)) {
    if (groups.count == AdamW8bitGroups::kMax)
      throw ShapeError("adamw_8bit_step", "too many learning-rate factors; expected at most 8 groups of parameters");
    groups.lr_factor[groups.count] = group.lr_factor;
    groups.weight_decay[groups.count++] = group.decays ? options.weight_decay : 0;
  }
  return groups;
}

void check_state(const at::Tensor& params, const at::Tensor& grads, const AdamW8bitState& state,
                 ParameterBlocks blocks) {
  const int64_t n = params.numel(), coded = num_coded_blocks(blocks), fp32 = num_fp32_blocks(blocks);
  const auto check = [](const char* name, const at::Tensor& t, int64_t size, at::ScalarType dtype) {
    if (t.dim() == 1 && t.numel() == size && t.is_contiguous() && t.scalar_type() == dtype) return;
    throw ShapeError("adamw_8bit_step", "{} must be [{}] {}", name, size, c10::toString(dtype));
  };
  check("params", params, n, at::kFloat);
  check("grads", grads, n, at::kFloat);
  check("exp_avg_codes", state.exp_avg_codes, coded * kMomentBlockSize, at::kByte);
  check("exp_avg_sq_codes", state.exp_avg_sq_codes, coded * kMomentBlockSize, at::kByte);
  check("exp_avg_scales", state.exp_avg_scales, coded, at::kFloat);
  check("exp_avg_sq_scales", state.exp_avg_sq_scales, coded, at::kFloat);
  check("exp_avg", state.exp_avg, fp32 * kMomentBlockSize, at::kFloat);
  check("exp_avg_sq", state.exp_avg_sq, fp32 * kMomentBlockSize, at::kFloat);
  check("blocks", state.blocks, (coded + fp32) * static_cast<int64_t>(sizeof(MomentBlock)), at::kByte);
}

kernels::AdamW8bitBuffers buffers_of(at::Tensor& params, const at::Tensor& grads, AdamW8bitState& state) {
  return {params.mutable_data_ptr<float>(),
          grads.const_data_ptr<float>(),
          state.exp_avg_codes.mutable_data_ptr<std::uint8_t>(),
          state.exp_avg_sq_codes.mutable_data_ptr<std::uint8_t>(),
          state.exp_avg_scales.mutable_data_ptr<float>(),
          state.exp_avg_sq_scales.mutable_data_ptr<float>(),
          state.exp_avg.mutable_data_ptr<float>(),
          state.exp_avg_sq.mutable_data_ptr<float>(),
          static_cast<const MomentBlock*>(state.blocks.const_data_ptr()),
          state.exp_avg_scales.numel(),
          state.blocks.numel() / static_cast<int64_t>(sizeof(MomentBlock))};
}

int64_t num_coded_moments(ParameterBlocks blocks) {
  int64_t count = 0;
  for (const ParameterBlock& block : blocks) count += is_coded(block) ? block.count : 0;
  return count;
}

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

void measure_gradients(const at::Tensor& grads, double max_norm, at::Tensor& scalars) {
  check_step_buffers("measure_gradients", grads, scalars);
  const kernels::WorkScope recorded("measure_gradients", kernels::WorkClass::kOptimizer,
                                    [&](kernels::Work& work) { work.reads("grads", grads).launches(2); });
  if (grads.is_meta()) return;
  switch (kernels::implementation_for(KernelName::kAdamw, grads)) {
    case kernels::Implementation::kReference: return measure_gradients_reference(grads, max_norm, scalars);
    case kernels::Implementation::kCuda: return kernels::native_measure_gradients(grads, max_norm, scalars);
    case kernels::Implementation::kCpu: break;
  }
  const double norm = norm_of(grads);
  auto* s = scalars.mutable_data_ptr<double>();
  s[kGradNorm] = norm;
  s[kClipFactor] = max_norm == 0 ? 1.0 : std::min(1.0, max_norm / (norm + 1e-6));
  if (!std::isfinite(norm) || !std::isfinite(s[kLossSum])) s[kNonFinite] = 1;
}

void measure_gradients_reference(const at::Tensor& grads, double max_norm, at::Tensor& scalars) {
  const at::Tensor norm = at::linalg_vector_norm(grads, 2, std::nullopt, /*keepdim=*/false, at::kDouble);
  scalars[kGradNorm].copy_(norm);
  if (max_norm == 0) {
    scalars[kClipFactor].fill_(1.0);
  } else {
    scalars[kClipFactor].copy_((norm + 1e-6).reciprocal_().mul_(max_norm).clamp_max_(1.0));
  }
  const at::Tensor is_finite = norm.isfinite().logical_and(scalars[kLossSum].isfinite());
  scalars[kNonFinite].masked_fill_(is_finite.logical_not(), 1.0);
}

void adamw_step(at::Tensor& params, const at::Tensor& grads, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
                const AdamWOptions& options, ParameterBlocks tensors, const at::Tensor& scalars) {
  check_step_buffers("adamw_step", params, scalars);
  const auto n = params.numel();
  for (const at::Tensor* t : {&grads, &std::as_const(exp_avg), &std::as_const(exp_avg_sq)}) {
    if (t->dim() != 1 || t->numel() != n || !t->is_contiguous() || t->scalar_type() != params.scalar_type()) {
      throw ShapeError("adamw_step", "all four buffers must be [{}], contiguous, of one dtype", n);
    }
  }
  check_blocks("adamw_step", tensors, n);
  const std::vector<kernels::ParameterBlock> blocks = kernels::merged(tensors);
  const kernels::WorkScope recorded("adamw_step", kernels::WorkClass::kOptimizer, [&](kernels::Work& work) {
    work.updates("params", params).reads("grads", grads).updates("exp_avg", exp_avg).updates("exp_avg_sq", exp_avg_sq);
    work.launches(std::ssize(blocks));
  });
  if (params.is_meta()) return;
  switch (kernels::implementation_for(KernelName::kAdamw, params)) {
    case kernels::Implementation::kReference:
      return adamw_step_reference(params, grads, exp_avg, exp_avg_sq, options, blocks, scalars);
    case kernels::Implementation::kCuda:
      return kernels::native_adamw_step(params, grads, exp_avg, exp_avg_sq, options, blocks, scalars);
    case kernels::Implementation::kCpu: break;
  }
  const double* s = scalars.const_data_ptr<double>();
  if (s[kNonFinite] != 0) return;
  auto* p = params.mutable_data_ptr<float>();
  const auto* g = grads.const_data_ptr<float>();
  auto* m = exp_avg.mutable_data_ptr<float>();
  auto* v = exp_avg_sq.mutable_data_ptr<float>();
  kernels::parallel_ranges(n, kGrain, [&](int64_t begin, int64_t end) {
    for (const kernels::ParameterBlock& block : blocks) {
      const int64_t first = std::max(begin, block.begin), last = std::min(end, block.begin + block.count);
      if (first >= last) continue;
      adamw_range_cpu(p + first, g + first, m + first, v + first, last - first,
                      kernels::adamw_factors(options, block.lr_factor, block.decays ? options.weight_decay : 0.0, s));
    }
  });
}

void adamw_step_reference(at::Tensor& params, const at::Tensor& grads, at::Tensor& exp_avg, at::Tensor& exp_avg_sq,
                          const AdamWOptions& options, ParameterBlocks blocks, const at::Tensor& scalars) {
  const auto is_stopped = scalars[kNonFinite] != 0;
  for (const kernels::ParameterBlock& block : blocks) {
    const auto part = [&](const at::Tensor& flat) { return flat.narrow(0, block.begin, block.count); };
    const at::Tensor old_p = part(params), old_m = part(exp_avg), old_v = part(exp_avg_sq);
    const auto learning_rate = scalars[kLearningRate] * block.lr_factor;
    const auto g = part(grads) * scalars[kClipFactor];
    auto p = block.decays ? old_p * (1.0 - learning_rate * options.weight_decay) : old_p.clone();
    const auto m = old_m.lerp(g, 1.0 - options.beta1);
    const auto v = (old_v * options.beta2).addcmul_(g, g, 1.0 - options.beta2);
    const auto denominator = v.sqrt().div_(scalars[kBeta2Correction].sqrt()).add_(options.epsilon);
    p.add_((m * (-learning_rate / scalars[kBeta1Correction])).div_(denominator));
    old_p.copy_(at::where(is_stopped, old_p, p));
    old_m.copy_(at::where(is_stopped, old_m, m));
    old_v.copy_(at::where(is_stopped, old_v, v));
  }
}

std::array<double, kNumFirstScalars> first_scalars(std::int64_t step, double loss_denominator, double learning_rate,
                                                   const AdamWOptions& options) {
  if (step < 1) throw ShapeError("first_scalars: step", "is {}, expected 1 or more", step);
  std::array<double, kNumFirstScalars> scalars{};
  scalars[kLossDenominator] = loss_denominator;
  scalars[kLearningRate] = learning_rate;
  scalars[kBeta1Correction] = 1.0 - std::pow(options.beta1, static_cast<double>(step));
  scalars[kBeta2Correction] = 1.0 - std::pow(options.beta2, static_cast<double>(step));
  return scalars;
}

bool is_coded(const ParameterBlock& block) { return block.count >= kMinCodedElements && !block.is_embedding; }

int64_t num_coded_blocks(ParameterBlocks blocks) {
  int64_t count = 0;
  for (const ParameterBlock& block : blocks) count += is_coded(block) ? num_moment_blocks(block) : 0;
  return count;
}

int64_t num_fp32_blocks(ParameterBlocks blocks) {
  int64_t count = 0;
  for (const ParameterBlock& block : blocks) count += is_coded(block) ? 0 : num_moment_blocks(block);
  return count;
}

at::Tensor moment_blocks(ParameterBlocks blocks) {
  std::vector<MomentBlock> table;
  const std::vector<ParameterBlock> groups = kernels::merged(blocks);
  for (const bool coded : {true, false}) {
    auto group = groups.begin();
    for (const ParameterBlock& tensor : blocks) {
      const int64_t end = tensor.begin + tensor.count;
      while (tensor.begin >= group->begin + group->count) ++group;
      if (is_coded(tensor) != coded) continue;
      for (int64_t begin = tensor.begin; begin < end; begin += kMomentBlockSize) {
        table.push_back({begin, static_cast<std::int32_t>(std::min(kMomentBlockSize, end - begin)),
                         static_cast<std::int32_t>(group - groups.begin())});
      }
    }
  }
  at::Tensor bytes = at::empty({static_cast<int64_t>(table.size() * sizeof(MomentBlock))}, at::kByte);
  if (!table.empty()) std::memcpy(bytes.mutable_data_ptr(), table.data(), table.size() * sizeof(MomentBlock));
  return bytes;
}

void adamw_8bit_step(at::Tensor& params, const at::Tensor& grads, AdamW8bitState state, const AdamWOptions& options,
                     ParameterBlocks blocks, at::Tensor& scalars) {
  check_step_buffers("adamw_8bit_step", params, scalars);
  check_blocks("adamw_8bit_step", blocks, params.numel());
  check_state(params, grads, state, blocks);
  const AdamW8bitGroups groups = groups_of(blocks, options);
  const kernels::WorkScope recorded("adamw_8bit_step", kernels::WorkClass::kOptimizer, [&](kernels::Work& work) {
    work.updates("params", params).reads("grads", grads).reads("blocks", state.blocks);
    work.updates("exp_avg_codes", state.exp_avg_codes).updates("exp_avg_sq_codes", state.exp_avg_sq_codes);
    work.updates("exp_avg_scales", state.exp_avg_scales).updates("exp_avg_sq_scales", state.exp_avg_sq_scales);
    work.updates("exp_avg", state.exp_avg).updates("exp_avg_sq", state.exp_avg_sq).launches(2);
  });
  if (params.is_meta()) return;
  switch (kernels::implementation_for(KernelName::kAdamw, params)) {
    case kernels::Implementation::kReference:
      return adamw_8bit_step_reference(params, grads, std::move(state), options, blocks, scalars);
    case kernels::Implementation::kCuda:
      return kernels::native_adamw_8bit_step(buffers_of(params, grads, state), groups, options,
                                             num_coded_moments(blocks), scalars);
    case kernels::Implementation::kCpu: break;
  }
  auto* s = scalars.mutable_data_ptr<double>();
  if (s[kNonFinite] != 0) return;
  kernels::AdamW8bitFactors factors[AdamW8bitGroups::kMax];
  for (int i = 0; i < groups.count; ++i)
    factors[i] = kernels::adamw_8bit_factors(options, groups.lr_factor[i], groups.weight_decay[i], s);
  const kernels::AdamW8bitBuffers buffers = buffers_of(params, grads, state);
  std::atomic<int64_t> num_zeroed = 0;
  kernels::parallel_ranges(buffers.num_blocks, kBlockGrain, [&](int64_t first, int64_t last) {
    num_zeroed += adamw_8bit_blocks_cpu(buffers, factors, first, last);
  });
  const int64_t num_moments = num_coded_moments(blocks);
  s[kZeroedMoments] = num_moments > 0 ? static_cast<double>(num_zeroed) / static_cast<double>(num_moments) : 0.0;
}

void adamw_8bit_step_reference(at::Tensor& params, const at::Tensor& grads, AdamW8bitState state,
                               const AdamWOptions& options, ParameterBlocks blocks, at::Tensor& scalars) {
  const at::Tensor is_stopped = scalars[kNonFinite] != 0;
  const auto replace = [&](const at::Tensor& old, const at::Tensor& by) { old.copy_(at::where(is_stopped, old, by)); };
  int64_t next[2] = {}, num_moments = 0;  // for fp32 and coded blocks
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
