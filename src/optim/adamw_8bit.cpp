#include "lora_train/optim/adamw_8bit.h"

#include <ATen/ATen.h>

#include <atomic>
#include <cmath>
#include <cstring>

#include "adamw_8bit_cpu.h"
#include "checks.h"
#include "lora_train/base/ceil_div.h"
#include "lora_train/base/error.h"
#include "lora_train/kernels/accounting/work_record.h"
#include "lora_train/kernels/dispatch/implementation.h"
#include "lora_train/kernels/launch/parallel.h"

namespace lora_train::optim {
namespace {

using kernels::AdamW8bitGroups;
using kernels::kMomentBlockSize;
using kernels::MomentBlock;
using kernels::ParameterBlock;

constexpr int64_t kMinCodedElements = 4096;
constexpr int64_t kBlockGrain = 16;

int64_t num_moment_blocks(const ParameterBlock& block) { return ceil_div(block.count, kMomentBlockSize); }

AdamW8bitGroups groups_of(std::span<const ParameterBlock> blocks, const AdamWOptions& options) {
  AdamW8bitGroups groups;
  for (const ParameterBlock& group : kernels::merged(blocks)) {
    if (groups.count == AdamW8bitGroups::kMax)
      throw ShapeError("adamw_8bit_step", "too many learning-rate factors; expected at most 8 groups of parameters");
    groups.lr_factor[groups.count] = group.lr_factor;
    groups.weight_decay[groups.count++] = group.decays ? options.weight_decay : 0;
  }
  return groups;
}

kernels::AdamW8bitFactors group_factors(const AdamWOptions& options, double lr_factor, double weight_decay,
                                        const double* scalars) {
  const double learning_rate = scalars[kLearningRate] * lr_factor;
  const double correction2_sqrt = std::sqrt(scalars[kBeta2Correction]);
  return {static_cast<float>(scalars[kClipFactor]),
          static_cast<float>(options.beta1),
          static_cast<float>(1.0 - options.beta1),
          static_cast<float>(options.beta2),
          static_cast<float>(1.0 - options.beta2),
          static_cast<float>(correction2_sqrt * options.epsilon),
          static_cast<float>(-learning_rate * correction2_sqrt / scalars[kBeta1Correction]),
          static_cast<float>(1.0 - learning_rate * weight_decay)};
}

void check_state(const at::Tensor& params, const at::Tensor& grads, const AdamW8bitState& state,
                 std::span<const ParameterBlock> blocks) {
  const int64_t n = params.numel(), coded = num_coded_blocks(blocks), fp32 = num_fp32_blocks(blocks);
  const auto check = [](const char* name, const at::Tensor& t, int64_t size, at::ScalarType dtype) {
    if (t.dim() == 1 && t.numel() == size && t.is_contiguous() && t.scalar_type() == dtype) return;
    throw ShapeError("adamw_8bit_step",
                     std::string(name) + " must be [" + std::to_string(size) + "] " + c10::toString(dtype));
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

int64_t num_coded_moments(std::span<const ParameterBlock> blocks) {
  int64_t count = 0;
  for (const ParameterBlock& block : blocks) count += is_coded(block) ? block.count : 0;
  return count;
}

}  // namespace

bool is_coded(const ParameterBlock& block) { return block.count >= kMinCodedElements && !block.is_embedding; }

int64_t num_coded_blocks(std::span<const ParameterBlock> blocks) {
  int64_t count = 0;
  for (const ParameterBlock& block : blocks) count += is_coded(block) ? num_moment_blocks(block) : 0;
  return count;
}

int64_t num_fp32_blocks(std::span<const ParameterBlock> blocks) {
  int64_t count = 0;
  for (const ParameterBlock& block : blocks) count += is_coded(block) ? 0 : num_moment_blocks(block);
  return count;
}

at::Tensor moment_blocks(std::span<const ParameterBlock> blocks) {
  std::vector<MomentBlock> table;
  const std::vector<ParameterBlock> groups = kernels::merged(blocks);
  for (const bool coded : {true, false}) {
    std::int32_t group = 0;
    for (const ParameterBlock& tensor : blocks) {
      const int64_t end = tensor.begin + tensor.count;
      while (tensor.begin >=
             groups[static_cast<std::size_t>(group)].begin + groups[static_cast<std::size_t>(group)].count)
        ++group;
      if (is_coded(tensor) != coded) continue;
      for (int64_t begin = tensor.begin; begin < end; begin += kMomentBlockSize) {
        table.push_back({begin, static_cast<std::int32_t>(std::min(kMomentBlockSize, end - begin)), group});
      }
    }
  }
  at::Tensor bytes = at::empty({static_cast<int64_t>(table.size() * sizeof(MomentBlock))}, at::kByte);
  if (!table.empty()) std::memcpy(bytes.mutable_data_ptr(), table.data(), table.size() * sizeof(MomentBlock));
  return bytes;
}

void adamw_8bit_step(at::Tensor& params, const at::Tensor& grads, AdamW8bitState state, const AdamWOptions& options,
                     std::span<const ParameterBlock> blocks, at::Tensor& scalars) {
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
    factors[i] = group_factors(options, groups.lr_factor[i], groups.weight_decay[i], s);
  const kernels::AdamW8bitBuffers buffers = buffers_of(params, grads, state);
  std::atomic<int64_t> num_zeroed = 0;
  kernels::parallel_ranges(buffers.num_blocks, kBlockGrain, [&](int64_t first, int64_t last) {
    num_zeroed += adamw_8bit_blocks_cpu(buffers, factors, first, last);
  });
  const int64_t num_moments = num_coded_moments(blocks);
  s[kZeroedMoments] = num_moments > 0 ? static_cast<double>(num_zeroed) / static_cast<double>(num_moments) : 0.0;
}

}  // namespace lora_train::optim
