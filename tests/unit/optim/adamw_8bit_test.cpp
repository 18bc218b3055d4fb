#include <ATen/Parallel.h>

#include <limits>

#include "lora_train/kernels/quantized_weight/codes.h"
#include "lora_train/optim/adamw.h"
#include "lora_train/optim/optimizer.h"
#include "optim_goldens.h"
#include "support/kernel_test.h"

namespace lora_train::optim {
namespace {

using namespace testing_support;

using Tensors = std::vector<kernels::ParameterBlock>;
using Step8bit = void (*)(at::Tensor&, const at::Tensor&, AdamW8bitState, const AdamWOptions&, ParameterBlocks,
                          at::Tensor&);

AdamWOptions options_8bit(double weight_decay) {
  OptimizerSection section;
  section.kind = OptimizerKind::kAdamw8bit;
  section.weight_decay = weight_decay;
  return adamw_options(section);
}

const Optimizer& row_8bit() { return optimizer_for(OptimizerKind::kAdamw8bit); }

/// Parameters with their state.
struct Trained8bit {
  at::Tensor params;
  OptimizerState state;

  Trained8bit(at::Tensor values, const Tensors& tensors, at::Device device)
      : params(values.to(device, values.scalar_type(), false, /*copy=*/true)), state(row_8bit(), tensors, device) {}
  AdamW8bitState views() {
    const auto& t = state.tensors;
    return {t[0], t[1], t[2], t[3], t[4], t[5], t[6]};
  }
  void step(Step8bit function, const at::Tensor& grads, const AdamWOptions& options, const Tensors& tensors,
            at::Tensor& scalars) {
    function(params, grads.to(params.device()), views(), options, tensors, scalars);
  }
  std::vector<at::Tensor> all() const {
    std::vector<at::Tensor> every = {params};
    every.insert(every.end(), state.tensors.begin(), state.tensors.end());
    return every;
  }
};

bool equal(const Trained8bit& a, const Trained8bit& b) {
  const auto first = a.all(), second = b.all();
  for (std::size_t i = 0; i < first.size(); ++i) {
    if (!at::equal(first[i].cpu(), second[i].cpu())) return false;
  }
  return true;
}

/// As scripts/make_goldens.py computes them.
at::Tensor hashed(int64_t count, int64_t seed) {
  const at::Tensor bits = (at::arange(count, at::kLong) * 2654435761 + seed * 40503).bitwise_and(0xFFFFFFFF);
  return bits.bitwise_right_shift(8).to(at::kFloat) / 8388608.0 - 1;
}

at::Tensor codes_of_hex(const std::string& hex) {
  at::Tensor codes = at::empty({std::ssize(hex) / 2}, at::kByte);
  for (int64_t i = 0; i < codes.numel(); ++i) {
    codes.mutable_data_ptr<std::uint8_t>()[i] =
        static_cast<std::uint8_t>(std::stoi(hex.substr(static_cast<std::size_t>(2 * i), 2), nullptr, 16));
  }
  return codes;
}

::testing::AssertionResult has_codes(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor difference = (got.cpu().to(at::kLong) - want.to(at::kLong)).abs();
  const auto worst = difference.max().item<int64_t>(), count = (difference != 0).sum().item<int64_t>();
  if (worst <= 1 && 1000 * count <= want.numel()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << count << " of " << want.numel() << " codes differ, by up to " << worst;
}

void expect_cuda_rule(Step8bit function, at::Device device) {
  ASSERT_EQ(kAdamW8bitGoldens.size(), 1u);
  const AdamW8bitGolden& golden = kAdamW8bitGoldens.front();
  const Tensors tensors = {{0, 4357}, {4357, 4096, 16.0, false}, {4357 + 4096, 4095, 16.0, false}};
  const int64_t total = 4357 + 4096 + 4095;
  const AdamWOptions options = options_8bit(10.0);
  Trained8bit trained(hashed(total, 0), tensors, device);
  const at::Tensor spread = at::pow(2.0, -4.0 * (at::arange(total, at::kLong) % 6).to(at::kFloat));
  double zeroed = 0;
  for (int64_t step = 1; step <= 20; ++step) {
    // Half the clip factor of twice the gradients.
    at::Tensor scalars = scalars_for(step, 1e-3, options, 0.5).to(device);
    trained.step(function, 2 * hashed(total, step) * spread, options, tensors, scalars);
    zeroed = scalars[kZeroedMoments].item<double>();
  }
  const auto sampled = [](const at::Tensor& flat) { return flat.slice(0, 0, {}, 29); };
  const auto wanted = [](const std::vector<double>& values) { return at::tensor(values, at::kDouble); };
  const AdamW8bitState state = trained.views();
  // What training has changed is right, not only what it has kept.
  const at::Tensor start = sampled(hashed(total, 0)).to(at::kDouble);
  EXPECT_CLOSE(sampled(trained.params).cpu().to(at::kDouble) - start, wanted(golden.params) - start, 1e-5);
  EXPECT_TRUE(has_codes(state.exp_avg_codes, codes_of_hex(golden.exp_avg_codes)));
  EXPECT_TRUE(has_codes(state.exp_avg_sq_codes, codes_of_hex(golden.exp_avg_sq_codes)));
  EXPECT_CLOSE(state.exp_avg_scales, wanted(golden.exp_avg_scales), 1e-5);
  EXPECT_CLOSE(state.exp_avg_sq_scales, wanted(golden.exp_avg_sq_scales), 1e-5);
  EXPECT_CLOSE(sampled(state.exp_avg.narrow(0, 0, 4095)), wanted(golden.exp_avg), 1e-5);
  EXPECT_CLOSE(sampled(state.exp_avg_sq.narrow(0, 0, 4095)), wanted(golden.exp_avg_sq), 1e-5);
  EXPECT_NEAR(zeroed, golden.num_zeroed / (4357.0 + 4096), 1e-3);
}

class AdamW8bit : public KernelTest {};
INSTANTIATE_TEST_SUITE_P(EveryPlace, AdamW8bit,
                         ::testing::Values(Place{at::kCPU, at::kFloat}, Place{at::kCUDA, at::kFloat},
                                           Place{at::kCPU, at::kFloat, true}),
                         place_name);

TEST_P(AdamW8bit, FollowsTheCudaRuleOfBitsandbytes) { expect_cuda_rule(adamw_8bit_step, place.device); }

TEST(AdamW8bitReference, FollowsTheCudaRuleOfBitsandbytes) { expect_cuda_rule(adamw_8bit_step_reference, at::kCPU); }

// bitsandbytes' kernel for CPUs quantises more coarsely, which shows nowhere when all gradients have one magnitude.
TEST_P(AdamW8bit, FollowsBitsandbytesOnEvenGradients) {
  const Tensors tensors = {{0, 4357}};
  const AdamWOptions options = options_8bit(0);
  Trained8bit trained(hashed(4357, 0), tensors, place.device);
  for (int64_t step = 1; step <= 5; ++step) {
    at::Tensor scalars = scalars_for(step, 1e-3, options, 1).to(place.device);
    trained.step(adamw_8bit_step, hashed(4357, step).sign() * 0.5, options, tensors, scalars);
  }
  const at::Tensor start = hashed(4357, 0).slice(0, 0, {}, 29);
  EXPECT_CLOSE(trained.params.slice(0, 0, {}, 29).cpu() - start,
               at::tensor(kAdamW8bitGoldens.front().even_params, at::kDouble) - start, 1e-5);
}

/// Tensors of all kinds: fp32, coded with and without a short last block, an embedding, between 16 bytes.
Tensors mixed_tensors() {
  Tensors tensors = {{0, 4096},
                     {0, 1},
                     {0, 255, 1.0, false},
                     {0, 4999},
                     {0, 4097, 8.0, true},
                     {0, 5120, 8.0},
                     {0, 6000, 8.0, true, true}};
  int64_t begin = 0;
  for (auto& tensor : tensors) begin = (tensor.begin = begin) + tensor.count;
  return tensors;
}

int64_t size_of(const Tensors& tensors) { return tensors.back().begin + tensors.back().count; }

TEST_P(AdamW8bit, MatchesTheReferenceAndHasTheBitsOfTheCpuEverywhere) {
  const Tensors tensors = mixed_tensors();
  const AdamWOptions options = options_8bit(0.1);
  const at::Tensor start = uniform({size_of(tensors)}, 1);
  Trained8bit got(start, tensors, place.device), want(start, tensors, at::kCPU), on_cpu(start, tensors, at::kCPU);
  for (int64_t step = 1; step <= 3; ++step) {
    const at::Tensor grads = uniform({size_of(tensors)}, 10 + static_cast<std::uint64_t>(step)).pow(5);
    at::Tensor scalars = scalars_for(step, 1e-2, options, 0.7), on_device = scalars.clone().to(place.device);
    at::Tensor of_cpu = scalars.clone();
    got.step(adamw_8bit_step, grads, options, tensors, on_device);
    want.step(adamw_8bit_step_reference, grads, options, tensors, scalars);
    if (place.is_cuda_on_cpu) kernels::use_native_kernels({});
    on_cpu.step(adamw_8bit_step, grads, options, tensors, of_cpu);
    if (place.is_cuda_on_cpu) kernels::use_native_kernels({&kernels::linked_native_kernels(), nullptr, true});
    EXPECT_GT(scalars[kZeroedMoments].item<double>(), 1e-3);
    EXPECT_NEAR(on_device[kZeroedMoments].item<double>(), scalars[kZeroedMoments].item<double>(), 1e-3);
    EXPECT_TRUE(at::equal(on_device.cpu(), of_cpu));
  }
  EXPECT_TRUE(equal(got, on_cpu));
  EXPECT_CLOSE(got.params, want.params, 1e-6);
  const AdamW8bitState a = got.views(), b = want.views();
  EXPECT_TRUE(has_codes(a.exp_avg_codes, b.exp_avg_codes));
  EXPECT_TRUE(has_codes(a.exp_avg_sq_codes, b.exp_avg_sq_codes));
  EXPECT_CLOSE(a.exp_avg_scales, b.exp_avg_scales, 1e-6);
  EXPECT_CLOSE(a.exp_avg_sq_scales, b.exp_avg_sq_scales, 1e-6);
  EXPECT_CLOSE(a.exp_avg, b.exp_avg, 1e-6);
  EXPECT_CLOSE(a.exp_avg_sq, b.exp_avg_sq, 1e-6);
}

TEST_P(AdamW8bit, WritesNothingOnceSomethingWasNotFinite) {
  const Tensors tensors = mixed_tensors();
  const AdamWOptions options = options_8bit(0.1);
  for (const Step8bit function : {adamw_8bit_step, adamw_8bit_step_reference}) {
    Trained8bit trained(uniform({size_of(tensors)}, 1), tensors, place.device);
    const Trained8bit before(trained.params, tensors, place.device);
    at::Tensor grads = uniform({size_of(tensors)}, 2), scalars = scalars_for(1, 1e-2, options, 1).to(place.device);
    grads[100] = std::numeric_limits<float>::quiet_NaN();
    scalars[kNonFinite] = 1;
    scalars[kZeroedMoments] = 0.25;
    trained.step(function, grads, options, tensors, scalars);
    EXPECT_TRUE(equal(trained, before));
    EXPECT_EQ(scalars[kZeroedMoments].item<double>(), 0.25);
    grads[100] = 0;
    scalars[kNonFinite] = 0;
    trained.step(function, grads, options, tensors, scalars);
    EXPECT_FALSE(at::equal(trained.params, before.params));
    EXPECT_TRUE(trained.params.isfinite().all().item<bool>());
  }
}

// The first step of A, whose gradients are zero because B is.
TEST_P(AdamW8bit, ZerosStayZeros) {
  const Tensors tensors = {{0, 4500}};
  const AdamWOptions options = options_8bit(0);
  for (const Step8bit function : {adamw_8bit_step, adamw_8bit_step_reference}) {
    Trained8bit trained(uniform({4500}, 1), tensors, place.device);
    const at::Tensor before = trained.params.clone();
    at::Tensor scalars = scalars_for(1, 1e-2, options, 1).to(place.device);
    trained.step(function, at::zeros({4500}), options, tensors, scalars);
    EXPECT_TRUE(at::equal(trained.params, before));
    EXPECT_EQ(scalars[kZeroedMoments].item<double>(), 0);
    const AdamW8bitState state = trained.views();
    EXPECT_TRUE((state.exp_avg_codes == 127).all().item<bool>());
    EXPECT_TRUE((state.exp_avg_sq_codes == 0).all().item<bool>());
    EXPECT_TRUE((state.exp_avg_scales == 0).all().item<bool>());
  }
}

TEST_P(AdamW8bit, ANegativeMomentStaysNegative) {
  const Tensors tensors = {{0, 4096}};
  const AdamWOptions options = options_8bit(0);
  at::Tensor grads = at::full({4096}, 1e-9);
  grads.slice(0, 0, {}, 2).neg_();
  grads.slice(0, 0, {}, 256).fill_(1);  // one large gradient a block
  for (const Step8bit function : {adamw_8bit_step, adamw_8bit_step_reference}) {
    Trained8bit trained(at::zeros({4096}), tensors, place.device);
    at::Tensor scalars = scalars_for(1, 1e-2, options, 1).to(place.device);
    trained.step(function, grads, options, tensors, scalars);
    const at::Tensor codes = trained.views().exp_avg_codes.cpu();
    for (const int64_t i : {1, 257}) EXPECT_EQ(codes[i].item<int>(), 127) << "a small positive one becomes 0";
    for (const int64_t i : {2, 258}) EXPECT_EQ(codes[i].item<int>(), 126);
    for (const int64_t i : {0, 256}) EXPECT_EQ(codes[i].item<int>(), 255);
    EXPECT_EQ(scalars[kZeroedMoments].item<double>(), 4080.0 / 4096);
  }
}

TEST(AdamW8bitOnCpu, DoesNotDependOnTheNumberOfThreads) {
  const Tensors tensors = {{0, 300000}, {300000, 4097, 2.0}};
  const auto run = [&](int threads) {
    const int before = at::get_num_threads();
    at::set_num_threads(threads);
    Trained8bit trained(uniform({304097}, 1), tensors, at::kCPU);
    at::Tensor scalars = scalars_for(1, 1e-2, options_8bit(0.1), 1);
    trained.step(adamw_8bit_step, uniform({304097}, 2).pow(5), options_8bit(0.1), tensors, scalars);
    at::set_num_threads(before);
    return std::pair(trained, scalars);
  };
  const auto one = run(1), three = run(3);
  EXPECT_TRUE(equal(one.first, three.first) && at::equal(one.second, three.second));
}

TEST(AdamW8bitTable, BlocksRestartAtEachTensorAndCodedOnesComeFirst) {
  const Tensors tensors = {{0, 4095}, {4095, 4096}, {8191, 4100, 2.0}, {12291, 5000, 2.0, true, true}};
  EXPECT_EQ(num_coded_blocks(tensors), 16 + 17);
  EXPECT_EQ(num_fp32_blocks(tensors), 16 + 20);
  const at::Tensor bytes = moment_blocks(tensors);
  const auto* blocks = static_cast<const kernels::MomentBlock*>(bytes.const_data_ptr());
  ASSERT_EQ(bytes.numel(), static_cast<int64_t>((33 + 36) * sizeof(kernels::MomentBlock)));
  const auto expect = [&](int64_t index, int64_t begin, int count, int group) {
    EXPECT_EQ(blocks[index].begin, begin) << index;
    EXPECT_EQ(blocks[index].count, count) << index;
    EXPECT_EQ(blocks[index].group, group) << index;
  };
  expect(0, 4095, 256, 0);
  expect(16, 8191, 256, 1);
  expect(32, 8191 + 16 * 256, 4, 1);
  expect(33, 0, 256, 0);
  expect(48, 15 * 256, 255, 0);
  expect(49, 12291, 256, 1);
  EXPECT_EQ(row_8bit().state_bytes(tensors), 33 * (2 * 256 + 2 * 4) + 36 * 256 * 8 + 69 * 16);
}

TEST(AdamW8bitOnCpu, RefusesWhatDoesNotFitTogether) {
  const Tensors tensors = {{0, 4096}};
  const AdamWOptions options = options_8bit(0);
  Trained8bit trained(at::zeros({4096}), tensors, at::kCPU);
  at::Tensor scalars = scalars_for(1, 1e-2, options, 1);
  const at::Tensor grads = at::zeros({4096});
  for (const Tensors& other :
       {Tensors{{0, 4095}, {4095, 1}}, Tensors{{0, 4096, 1.0, true, true}}, Tensors{{0, 4095}}}) {
    EXPECT_THROW(trained.step(adamw_8bit_step, grads, options, other, scalars), ShapeError);
  }
  EXPECT_THROW(trained.step(adamw_8bit_step, grads.to(at::kDouble), options, tensors, scalars), ShapeError);
  Tensors many;
  for (int i = 0; i < 9; ++i) many.push_back({i, 1, 1.0 + i});
  Trained8bit nine(at::zeros({9}), many, at::kCPU);
  EXPECT_THROW(nine.step(adamw_8bit_step, at::zeros({9}), options, many, scalars), ShapeError);
}

}  // namespace
}  // namespace lora_train::optim
