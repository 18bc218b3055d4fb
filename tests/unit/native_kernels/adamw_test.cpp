// Numbers: optim_test, places cuda_on_cpu and cuda.
#include <array>

#include "kernels/adamw/adamw_parts.h"
#include "support/guarded.h"

namespace lora_train::kernels {
namespace {

using namespace testing_support;

constexpr AdamWOptions kOptions{0.9, 0.98, 1e-8, 0.05};

/// Of a step in which nothing went wrong yet.
struct Scalars : Guarded<double> {
  Scalars() : Guarded(1, kNumStepScalars) { reset(); }
  void reset() {
    const std::array<double, kNumStepScalars> values = {3.0, 1.0, 1e-2, 0.271, 0.058808, 0, 0.7, 0, -1};
    std::copy(values.begin(), values.end(), data());
  }
};

/// Shorter than a pack, not a multiple of one, and more than all threads take at once.
const std::vector<RowShape> kSizes = {
    {1, 0}, {1, 1}, {1, 3}, {1, 5, 0, false}, {1, 4099}, {1, 9001, 0, false}, {1, 560001, 0, false}};

TEST(AdamWCuda, StepStaysInItsBuffers) {
  for (const RowShape& s : kSizes) {
    Scalars scalars;
    Guarded<float> params(s), grads(s), exp_avg(s), exp_avg_sq(s);
    grads.fill_uniform(2);
    const auto launch = [&] {
      params.fill_uniform(1);
      exp_avg.fill_uniform(3);
      exp_avg_sq.fill([](auto, auto i) { return static_cast<float>(1 + i % 7) / 7; });
      adamw_step_cuda(params.data(), grads.data(), exp_avg.data(), exp_avg_sq.data(), s.width, kOptions, 16,
                      scalars.data(), nullptr);
    };
    expect_guarded(launch, {&params, &exp_avg, &exp_avg_sq}, {&grads, &scalars});
  }
}

TEST(GradNormCuda, StaysInItsBuffers) {
  for (const RowShape& s : kSizes) {
    Scalars scalars;
    Guarded<float> grads(s);
    Guarded<double> partials(1, num_norm_partials(s.width));
    grads.fill_uniform(5);
    const auto launch = [&] {
      scalars.reset();
      measure_gradients_cuda(grads.data(), s.width, 1, partials.data(), scalars.data(), nullptr);
    };
    expect_guarded(launch, {&partials, &scalars}, {&grads});
  }
}

static_assert(num_norm_partials(0) == 1 && num_norm_partials(4097) == 2);
static_assert(num_norm_partials(std::int64_t{1} << 40) == kMaxNormPartials);

/// Coded blocks: whole ones, a short one, a whole one between 16 bytes. Then two with fp32 moments.
TEST(AdamW8bitCuda, StepStaysInItsBuffers) {
  const std::vector<MomentBlock> blocks = {{0, 256, 0},   {256, 256, 0}, {512, 3, 0},
                                           {515, 256, 1}, {771, 17, 1},  {788, 256, 0}};
  constexpr std::int64_t kNumCoded = 4, kCount = 1044;
  const KernelArray<MomentBlock> table(blocks);
  Guarded<float> params(1, kCount), grads(1, kCount), m_scales(1, kNumCoded), v_scales(1, kNumCoded), m(1, 512),
      v(1, 512);
  Guarded<std::uint8_t> m_codes(1, 256 * kNumCoded), v_codes(1, 256 * kNumCoded);
  Guarded<double> zeroed(1, num_adamw_8bit_partials(std::ssize(blocks)));
  Scalars scalars;
  grads.fill_uniform(2);
  const auto launch = [&] {
    params.fill_uniform(1);
    m.fill_uniform(3);
    v.fill([](auto, auto i) { return static_cast<float>(1 + i % 7) / 7; });
    for (auto* scales : {&m_scales, &v_scales}) scales->fill([](auto, auto i) { return i == 1 ? 0.0F : 0.5F; });
    for (auto* codes : {&m_codes, &v_codes}) codes->fill([](auto, auto i) { return static_cast<float>(i * 37 % 256); });
    scalars.reset();
    const AdamW8bitBuffers buffers = {params.data(),   grads.data(),    m_codes.data(),    v_codes.data(),
                                      m_scales.data(), v_scales.data(), m.data(),          v.data(),
                                      table.data(),    kNumCoded,       std::ssize(blocks)};
    adamw_8bit_step_cuda(buffers, {2, {1, 4}, {0.05, 0}}, kOptions, 771, zeroed.data(), scalars.data(), nullptr);
  };
  expect_guarded(launch, {&params, &m_scales, &v_scales, &m, &v, &m_codes, &v_codes, &zeroed, &scalars}, {&grads});
}

}  // namespace
}  // namespace lora_train::kernels
