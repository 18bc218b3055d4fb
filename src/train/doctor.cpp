// Every kernel of this build against its reference on one device: what `doctor` runs. Written over (device, dtype).
// N tokens, D features, F ffn, V vocabulary, R rank, H heads, K kv heads, E head size.
#include <ATen/ATen.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <exception>
#include <functional>
#include <limits>

#include "lora_train/kernels/attention.h"
#include "lora_train/kernels/cross_entropy.h"
#include "lora_train/kernels/dropout.h"
#include "lora_train/kernels/embedding.h"
#include "lora_train/kernels/lora.h"
#include "lora_train/kernels/rms_norm.h"
#include "lora_train/kernels/rope.h"
#include "lora_train/kernels/swiglu.h"
#include "lora_train/train/run.h"
#include "run_device.h"

namespace lora_train::train {
namespace {

constexpr int kTimedCalls = 3;

/// Where the kernels run.
struct Place {
  at::Device device;
  at::ScalarType dtype;

  at::Tensor uniform(at::IntArrayRef sizes) const { return at::rand(sizes).mul_(2).sub_(1).to(device, dtype); }
  at::Tensor empty(at::IntArrayRef sizes) const { return at::full(sizes, 7.0, at::device(device).dtype(dtype)); }
  at::Tensor fp32(at::IntArrayRef sizes) const { return at::full(sizes, 0.5, at::device(device).dtype(at::kFloat)); }
  at::Tensor ids(std::int64_t count, std::int64_t below) const {
    return at::randint(below, {count}, at::kInt).to(device);
  }
  at::Tensor positions(std::int64_t count) const { return at::arange(count, at::kInt).to(device); }

  void wait() const {
    if (device.type() != at::kCPU) c10::impl::getDeviceGuardImpl(device.type())->synchronizeDevice(device.index());
  }
};

/// A kernel and its reference. A call fills outputs, which begin as copies of `outputs`.
using Outputs = std::vector<at::Tensor>;
using Call = std::function<void(Outputs&)>;
struct Case {
  std::string name, shape;
  Outputs outputs;
  Call own, reference;
};

Outputs copies(const Outputs& tensors) {
  Outputs made;
  for (const at::Tensor& tensor : tensors) made.push_back(tensor.clone());
  return made;
}

double relative_error(const at::Tensor& got, const at::Tensor& reference) {
  const at::Tensor want = reference.to(at::kCPU, at::kDouble), have = got.to(at::kCPU, at::kDouble);
  const double norm = want.norm().item<double>();
  const double error = (have - want).norm().item<double>() / norm;
  // A NaN, or a reference that is zero everywhere and shows nothing, is no success.
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

const char* dtype_name(at::ScalarType dtype) { return dtype == at::kBFloat16 ? "bf16" : "fp32"; }

/// LibTorch's errors go on with where they were thrown.
std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

double tolerance(at::ScalarType dtype) { return dtype == at::kBFloat16 ? 1e-2 : 1e-5; }

/// The fastest of a few calls: others on the machine only ever slow it down.
double time_us(const Place& place, const Call& call, Outputs& outputs) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTimedCalls; ++i) {
    place.wait();
    const auto start = std::chrono::steady_clock::now();
    call(outputs);
    place.wait();
    best = std::min(best, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

KernelCheck run_case(const Place& place, const Case& c) {
  KernelCheck check;
  check.name = c.name + " " + dtype_name(place.dtype);
  check.shape = c.shape;
  check.tolerance = tolerance(place.dtype);
  try {
    Outputs got = copies(c.outputs), want = copies(c.outputs);
    c.own(got);
    c.reference(want);
    for (std::size_t i = 0; i < want.size(); ++i) {
      check.max_error = std::max(check.max_error, relative_error(got[i], want[i]));
    }
    check.passed = !want.empty() && check.max_error <= check.tolerance;
    check.own_us = time_us(place, c.own, got);
    check.reference_us = time_us(place, c.reference, want);
  } catch (const std::exception& error) {
    check.note = first_line(error);
    check.passed = false;
  }
  return check;
}

std::string sizes_text(const std::vector<std::pair<const char*, std::int64_t>>& sizes) {
  std::string text;
  for (const auto& [letter, size] : sizes) {
    if (!text.empty()) text += ' ';
    text.append(letter).append("=").append(std::to_string(size));
  }
  return text;
}

void add_rms_norm(const Place& place, std::int64_t N, std::int64_t D, std::vector<Case>& cases) {
  const at::Tensor x = place.uniform({N, D}), weight = place.uniform({D}), dy = place.uniform({N, D});
  const auto forward = [=](auto kernel) -> Call { return [=](Outputs& o) { kernel(x, weight, 1e-6, o[0], o[1]); }; };
  Outputs of_forward = {place.empty({N, D}), place.fp32({N})};
  forward(kernels::rms_norm_forward_reference)(of_forward);
  const at::Tensor rstd = of_forward[1];
  const auto backward = [=](auto kernel) -> Call {
    return [=](Outputs& o) { kernel(dy, x, weight, rstd, o[0], /*accumulate=*/false, &o[1]); };
  };
  const std::string shape = sizes_text({{"N", N}, {"D", D}});
  cases.push_back({"rms_norm forward",
                   shape,
                   {place.empty({N, D}), place.fp32({N})},
                   forward(kernels::rms_norm_forward),
                   forward(kernels::rms_norm_forward_reference)});
  cases.push_back({"rms_norm backward",
                   shape,
                   {place.empty({N, D}), place.fp32({D})},
                   backward(kernels::rms_norm_backward),
                   backward(kernels::rms_norm_backward_reference)});
}

void add_swiglu(const Place& place, std::int64_t N, std::int64_t F, std::vector<Case>& cases) {
  const at::Tensor gate_up = place.uniform({N, 2 * F}), dy = place.uniform({N, F});
  const auto forward = [=](auto kernel) -> Call { return [=](Outputs& o) { kernel(gate_up, o[0]); }; };
  const auto backward = [=](auto kernel) -> Call { return [=](Outputs& o) { kernel(dy, gate_up, o[0]); }; };
  const std::string shape = sizes_text({{"N", N}, {"F", F}});
  cases.push_back({"swiglu forward",
                   shape,
                   {place.empty({N, F})},
                   forward(kernels::swiglu_forward),
                   forward(kernels::swiglu_forward_reference)});
  cases.push_back({"swiglu backward",
                   shape,
                   {place.empty({N, 2 * F})},
                   backward(kernels::swiglu_backward),
                   backward(kernels::swiglu_backward_reference)});
}

void add_rope(const Place& place, std::int64_t N, std::int64_t H, std::int64_t E, std::vector<Case>& cases) {
  const at::Tensor exponents = at::arange(0, E, 2, at::kFloat) / static_cast<double>(E);
  const at::Tensor inv_freq = at::pow(10000.0, -exponents).to(place.device);
  const kernels::RopeTable table = kernels::make_rope_table(inv_freq, N, 1.0);
  const at::Tensor x = place.uniform({N, H, E}), positions = place.positions(N);
  for (const bool inverse : {false, true}) {
    const auto rotate = [=](auto kernel) -> Call {
      return [=](Outputs& o) { kernel(o[0], positions, table, inverse); };
    };
    cases.push_back({inverse ? "rope backward" : "rope forward",
                     sizes_text({{"N", N}, {"H", H}, {"E", E}}),
                     {x},
                     rotate(kernels::rope_in_place),
                     rotate(kernels::rope_in_place_reference)});
  }
}

void add_cross_entropy(const Place& place, std::int64_t N, std::int64_t V, std::vector<Case>& cases) {
  const at::Tensor logits = place.uniform({N, V}).mul(4), targets = place.ids(N, V);
  const auto run = [=](auto kernel) -> Call {
    return [=](Outputs& o) {
      kernels::CrossEntropyOutput output;
      output.losses = o[1];
      output.confidence = o[2];
      kernel(o[0], targets, 0.5, /*write_gradient=*/true, output);
    };
  };
  cases.push_back({"cross_entropy",
                   sizes_text({{"N", N}, {"V", V}}),
                   {logits, place.fp32({N}), place.fp32({N})},
                   run(kernels::cross_entropy_in_place),
                   run(kernels::cross_entropy_in_place_reference)});
}

void add_embedding(const Place& place, std::int64_t N, std::int64_t V, std::int64_t D, std::vector<Case>& cases) {
  const at::Tensor ids = place.ids(N, V), weight = place.uniform({V, D}), dout = place.uniform({N, D});
  const std::string shape = sizes_text({{"N", N}, {"V", V}, {"D", D}});
  cases.push_back({"embedding forward",
                   shape,
                   {place.empty({N, D})},
                   [=](Outputs& o) { kernels::embedding_forward(ids, weight, {}, o[0]); },
                   [=](Outputs& o) { at::index_select_out(o[0], weight, 0, ids); }});
  cases.push_back({"embedding backward",
                   shape,
                   {place.fp32({V, D})},
                   [=](Outputs& o) {
                     kernels::TrainableRows none;
                     kernels::embedding_backward(ids, dout, o.data(), none);
                   },
                   [=](Outputs& o) { o[0].index_add_(0, ids, dout.to(at::kFloat)); }});
}

void add_lora(const Place& place, std::int64_t N, std::int64_t D, std::int64_t R, std::vector<Case>& cases) {
  const at::Tensor wide = place.uniform({N, D}), thin = place.uniform({N, R});
  const auto of_a = [=](auto kernel) -> Call { return [=](Outputs& o) { kernel(thin, wide, o[0]); }; };
  const auto of_b = [=](auto kernel) -> Call { return [=](Outputs& o) { kernel(wide, thin, 2.0, o[0]); }; };
  const std::string shape = sizes_text({{"N", N}, {"D", D}, {"R", R}});
  cases.push_back({"lora gradient of A",
                   shape,
                   {place.fp32({R, D})},
                   of_a(kernels::lora_grad_a),
                   of_a(kernels::lora_grad_a_reference)});
  cases.push_back({"lora gradient of B",
                   shape,
                   {place.fp32({D, R})},
                   of_b(kernels::lora_grad_b),
                   of_b(kernels::lora_grad_b_reference)});
}

void add_dropout(const Place& place, std::int64_t N, std::int64_t D, std::vector<Case>& cases) {
  const at::Tensor x = place.uniform({N, D}), positions = place.positions(N), documents = place.ids(N, 5);
  const auto run = [=](auto kernel) -> Call {
    return [=](Outputs& o) { kernel(x, documents, positions, PhiloxKey{1234567, 89}, 0.1, o[0]); };
  };
  cases.push_back({"dropout",
                   sizes_text({{"N", N}, {"D", D}}),
                   {place.empty({N, D})},
                   run(kernels::dropout_forward),
                   run(kernels::dropout_forward_reference)});
}

/// Two documents, the first of a third of the tokens.
void add_attention(const Place& place, std::int64_t N, std::int64_t H, std::int64_t K, std::int64_t E,
                   std::vector<Case>& cases) {
  kernels::AttentionLayout layout;
  layout.cu_seqlens_q = layout.cu_seqlens_k = {0, N / 3, N};
  layout.scale = 1 / std::sqrt(static_cast<double>(E));
  const at::Tensor q = place.uniform({N, H, E}), k = place.uniform({N, K, E}), v = place.uniform({N, K, E});
  const at::Tensor dout = place.uniform({N, H, E});
  const auto forward = [=](auto kernel) -> Call { return [=](Outputs& o) { kernel(q, k, v, layout, o[0], o[1]); }; };
  Outputs kept = {place.empty({N, H, E}), place.fp32({N, H})};
  forward(kernels::attention_forward_reference)(kept);
  const auto backward = [=](auto kernel) -> Call {
    return [=](Outputs& o) { kernel(dout, q, k, v, kept[0], kept[1], layout, o[0], o[1], o[2]); };
  };
  const std::string shape = sizes_text({{"N", N}, {"H", H}, {"K", K}, {"E", E}});
  cases.push_back({"attention forward",
                   shape,
                   {place.empty({N, H, E}), place.fp32({N, H})},
                   forward(kernels::attention_forward),
                   forward(kernels::attention_forward_reference)});
  cases.push_back({"attention backward",
                   shape,
                   {place.empty({N, H, E}), place.empty({N, K, E}), place.empty({N, K, E})},
                   backward(kernels::attention_backward),
                   backward(kernels::attention_backward_reference)});
}

/// Odd sizes, where kernels have edges, those of a model of 0.5 B parameters and, on a GPU, of one of 7 B.
std::vector<Case> make_cases(const Place& place) {
  using Sizes = std::vector<std::array<std::int64_t, 4>>;
  const auto with_large = [&](Sizes sizes, const std::array<std::int64_t, 4>& large) {
    if (place.device.is_cuda()) sizes.push_back(large);
    return sizes;
  };
  std::vector<Case> cases;
  for (const auto& [N, D, F, V] : with_large({{37, 67, 131, 111}, {512, 896, 4864, 2048}}, {4096, 3584, 18944, 8192})) {
    add_rms_norm(place, N, D, cases);
    add_swiglu(place, N, F, cases);
    add_lora(place, N, D, 16, cases);
    add_dropout(place, N, D, cases);
    add_embedding(place, N, V, D, cases);
  }
  for (const auto& [N, H, K, E] : with_large({{37, 3, 1, 16}, {512, 14, 2, 64}}, {4096, 28, 4, 128})) {
    add_rope(place, N, H, E, cases);
    add_attention(place, N, H, K, E, cases);
  }
  add_cross_entropy(place, 5, 1009, cases);
  add_cross_entropy(place, 64, 32000, cases);
  if (place.device.is_cuda()) add_cross_entropy(place, 512, 151936, cases);
  return cases;
}

/// fp32 products are of full precision here: TF32 would hide errors.
at::Device start(const DoctorRequest& request) {
  if (!request.use_cuda) return at::kCPU;
  Profile profile;
  profile.device = Device::kCuda;
  profile.tf32 = false;
  return start_device(profile, {}).device;
}

}  // namespace

std::vector<KernelCheck> check_kernels(const DoctorRequest& request) {
  const at::Device device = start(request);
  at::manual_seed(42);
  std::vector<KernelCheck> checks;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Place place{device, dtype};
    try {
      for (const Case& c : make_cases(place)) checks.push_back(run_case(place, c));
    } catch (const std::exception& error) {  // the device is broken, or full
      KernelCheck check;
      check.name = std::string("inputs of the kernels ") + dtype_name(dtype);
      check.note = first_line(error);
      checks.push_back(check);
    }
  }
  return checks;
}

}  // namespace lora_train::train
