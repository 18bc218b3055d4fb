// N rows, M picked ones, D features, P parameters.
#include "kernel_cases_step.h"

#include <cmath>

#include "lora_train/kernels/cast.h"
#include "lora_train/kernels/cross_entropy.h"
#include "lora_train/kernels/gather.h"
#include "lora_train/optim/adamw.h"
#include "lora_train/optim/grad_clip.h"
#include "lora_train/optim/optimizer.h"
#include "lora_train/optim/step_scalars.h"

namespace lora_train::doctor {
namespace {

void add_cast(const Place& place, std::int64_t N, std::int64_t D, std::vector<Case>& cases) {
  const at::Tensor from = Place{place.device, at::kFloat}.uniform({N, D});
  const auto copy = [=](auto kernel) -> Call { return [=](Outputs& o) { kernel(from, 2.5, o[0]); }; };
  cases.push_back({"cast",
                   sizes_text({{"N", N}, {"D", D}}),
                   {place.empty({N, D})},
                   copy(kernels::scaled_copy),
                   copy(kernels::scaled_copy_reference)});
}

void add_picked_rows(const Place& place, std::int64_t N, std::int64_t D, std::vector<Case>& cases) {
  const at::Tensor all = place.uniform({N, D}), rows = at::arange(0, N, 3, at::kLong).to(place.device);
  const std::int64_t M = rows.size(0);
  const at::Tensor picked = place.uniform({M, D});
  const auto gather = [=](auto kernel) -> Call { return [=](Outputs& o) { kernel(all, rows, o[0]); }; };
  const auto scatter = [=](auto kernel) -> Call { return [=](Outputs& o) { kernel(picked, rows, o[0]); }; };
  const std::string shape = sizes_text({{"N", N}, {"M", M}, {"D", D}});
  cases.push_back({"gather_rows",
                   shape,
                   {place.empty({M, D})},
                   gather(kernels::gather_rows),
                   gather(kernels::gather_rows_reference)});
  cases.push_back({"scatter_rows",
                   shape,
                   {place.empty({N, D})},
                   scatter(kernels::scatter_rows),
                   scatter(kernels::scatter_rows_reference)});
}

void add_loss_sum(const Place& place, std::int64_t N, std::vector<Case>& cases) {
  const at::Tensor losses = place.uniform({N}).add(1), sum = at::ones({}, losses.options().dtype(at::kDouble));
  const auto add = [=](auto kernel) -> Call { return [=](Outputs& o) { kernel(losses, at::Tensor(), o[0]); }; };
  cases.push_back(
      {"add_losses", sizes_text({{"N", N}}), {sum}, add(kernels::add_losses), add(kernels::add_losses_reference)});
}

/// Gradient norm with clipping, and AdamW after it.
void add_optimizer(const Place& place, std::int64_t P, std::vector<Case>& cases) {
  const optim::AdamWOptions options = optim::adamw_options({});
  const auto first = optim::first_scalars(/*step=*/3, /*loss_denominator=*/5, /*learning_rate=*/1e-2, options);
  at::Tensor scalars = at::zeros({optim::kNumStepScalars}, at::kDouble);
  for (std::size_t i = 0; i < first.size(); ++i) scalars[static_cast<std::int64_t>(i)] = first[i];
  scalars = scalars.to(place.device);
  // Of a norm that is clipped, and moments of the same size: a wrong term of any of them shows.
  const double size = 1 / std::sqrt(static_cast<double>(P));
  const at::Tensor gradients = place.uniform({P}).mul(size), moments = place.uniform({P}).mul(0.1 * size);
  const at::Tensor squares = place.uniform({P}).mul(0.1 * size).square();
  const auto measure = [=](auto kernel) -> Call {
    return [=](Outputs& o) { kernel(gradients, /*max_norm=*/0.1, o[0]); };
  };
  Outputs measured = {scalars.clone()};
  measure(optim::measure_gradients_reference)(measured);
  const std::vector<kernels::ParameterBlock> blocks = {{0, P / 2}, {P / 2, P - P / 2, 16.0, false}};
  const auto step = [=](auto kernel) -> Call {
    return [=](Outputs& o) { kernel(o[0], gradients, o[1], o[2], options, blocks, measured[0]); };
  };
  const std::string shape = sizes_text({{"P", P}});
  cases.push_back({"gradient norm",
                   shape,
                   {scalars},
                   measure(optim::measure_gradients),
                   measure(optim::measure_gradients_reference)});
  cases.push_back({"adamw",
                   shape,
                   {place.uniform({P}), moments, squares},
                   step(optim::adamw_step),
                   step(optim::adamw_step_reference)});
}

}  // namespace

std::vector<Case> step_cases(const Place& place) {
  std::vector<Case> cases;
  for (const auto& [N, D] : {std::pair<std::int64_t, std::int64_t>{37, 67}, {512, 896}}) {
    add_cast(place, N, D, cases);
    add_picked_rows(place, N, D, cases);
    if (place.dtype != at::kFloat) continue;
    add_loss_sum(place, N, cases);
    add_optimizer(place, N * D, cases);
  }
  return cases;
}

}  // namespace lora_train::doctor
