// What bench/gpu_measure.py cannot ask PyTorch for: attention and linears on a GPU as the trainer computes them.
//   gpu_bench attention [--deterministic]   over packed documents: FA2 against cuDNN, forward and backward; what empty
//                                           documents cost; whether slots past the last document are written, and whether
//                                           dQ has the same bits each time
//   gpu_bench linears                       linears of a layer with their adapters, at 4k, 8k and 16k tokens: rows exact and
//                                           padded (model/layer_shape.h), and the same without adapters
//   gpu_bench pitch                         the same at 16k tokens, with a verdict
//   gpu_bench gate_up                       the backward of gate|up with dS beside dx and beside dy, with a verdict
//   gpu_bench gated_delta                   the gated delta rule of Qwen3.5 4B and 9B: 8,192 tokens in 1, 8, 16 documents
// Without a GPU it says why and exits with 6; --cpu runs all but attention at tiny sizes, to test the program.
#include <c10/core/Event.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>

#include "lora_train/base/error.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/attention/attention.h"
#include "lora_train/kernels/dispatch/cuda_library.h"
#include "lora_train/kernels/gated_delta/gated_delta.h"
#include "lora_train/model/families/model_config.h"
#include "lora_train/plan/setup/run_device.h"
#include "lora_train/plan/tuning/layer_runs.h"
#include "lora_train/plan/tuning/tuning.h"
#include "support/cuda_device.h"

namespace lora_train::kernels {
namespace {

constexpr int kRepeats = 10;
constexpr int64_t kTokens = 16384, kSpare = 128;  // slots past the last document
constexpr double kUnwritten = 7;

struct Heads {
  const char* name;
  int64_t num_heads, num_kv_heads, head_size;
};

struct Documents {
  std::string name;
  int64_t count = 0, length = 0, num_empty = 0;
};

/// q, k, v out of one buffer, as the trainer has them, and what attention writes.
struct Tensors {
  at::Tensor q, k, v, dout, out, lse;
  AttentionGradients places;
};

Tensors make_tensors(const Heads& h) {
  const auto options = at::device(at::kCUDA).dtype(at::kBFloat16);
  const int64_t slots = kTokens + kSpare, width = (h.num_heads + 2 * h.num_kv_heads) * h.head_size;
  const auto cut = [&](const at::Tensor& wide, int64_t from, int64_t heads) {
    return wide.slice(1, from * h.head_size, (from + heads) * h.head_size).unflatten(1, {heads, h.head_size});
  };
  const auto qkv = at::randn({slots, width}, options), dqkv = at::zeros({slots, width}, options);
  const auto dout = at::randn({slots, h.num_heads, h.head_size}, options);
  const int64_t k = h.num_heads, v = h.num_heads + h.num_kv_heads;
  return {cut(qkv, 0, h.num_heads),
          cut(qkv, k, h.num_kv_heads),
          cut(qkv, v, h.num_kv_heads),
          dout,
          at::full_like(dout, kUnwritten),
          at::empty({h.num_heads, slots}, options.dtype(at::kFloat)).t(),
          {cut(dqkv, 0, h.num_heads), cut(dqkv, k, h.num_kv_heads), cut(dqkv, v, h.num_kv_heads)}};
}

AttentionLayout make_layout(const Documents& documents, const Heads& h, AttentionBackend backend) {
  AttentionLayout layout;
  layout.cu_seqlens_q = {0};
  for (int64_t d = 0; d < documents.count; ++d) layout.cu_seqlens_q.push_back((d + 1) * documents.length);
  for (int64_t d = 0; d < documents.num_empty; ++d) layout.cu_seqlens_q.push_back(kTokens);
  layout.cu_seqlens_k = layout.cu_seqlens_q;
  layout.scale = 1 / std::sqrt(static_cast<double>(h.head_size));
  layout.backend = backend;
  layout.cu_seqlens_q_device = at::tensor(layout.cu_seqlens_q, at::kLong).to(at::kInt).to(at::kCUDA);
  layout.cu_seqlens_k_device = layout.cu_seqlens_q_device;
  layout.max_len_q = layout.max_len_k = documents.length;
  return layout;
}

plan::RunDevice device_of(bool is_cuda) {
  if (!is_cuda) return {};
  const CudaDevice gpu = cuda_library()->device(0);
  return {at::Device(at::kCUDA, 0), gpu.name, gpu.num_multiprocessors};
}

/// Milliseconds of a call of body() among `count` that follow each other; on a GPU between events in its stream.
template <class Body>
double milliseconds(const plan::RunDevice& device, const Body& body, int count) {
  if (!device.is_cuda()) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < count; ++i) body();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count() / count;
  }
  c10::Event begin(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT), end(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
  begin.record(plan::compute_stream(device));
  for (int i = 0; i < count; ++i) body();
  end.record(plan::compute_stream(device));
  end.synchronize();
  return begin.elapsedTime(end) / count;
}

template <class Body>
double attention_milliseconds(const Body& body) {
  const plan::RunDevice device = device_of(true);
  milliseconds(device, body, 3);
  return milliseconds(device, body, kRepeats);
}

bool is_finite(const at::Tensor& t) { return at::isfinite(t).all().item<bool>(); }

void measure(const Heads& h, const Documents& documents, AttentionBackend backend) {
  const char* const name = backend == AttentionBackend::kFa2 ? "fa2" : "cudnn";
  std::printf("%-5s %-10s %-26s ", h.name, name, documents.name.c_str());
  try {
    Tensors t = make_tensors(h);
    const AttentionLayout layout = make_layout(documents, h, backend);
    const double forward = attention_milliseconds([&] { attention_forward(t.q, t.k, t.v, layout, t.out, t.lse); });
    const auto run_backward = [&] {
      AttentionGradients gradients = t.places;
      attention_backward(t.dout, t.q, t.k, t.v, t.out, t.lse, layout, gradients);
      return gradients;
    };
    const double backward = attention_milliseconds(run_backward);
    const AttentionGradients gradients = run_backward();
    const at::Tensor dq = gradients.q.clone(), again = run_backward().q;
    const bool is_untouched = (t.out.slice(0, kTokens) == kUnwritten).all().item<bool>();
    const bool finite = is_finite(t.out.slice(0, 0, kTokens)) && is_finite(gradients.q) && is_finite(gradients.k) &&
                        is_finite(gradients.v);
    // Causal: half of the scores; 2 products forward, 5 backward.
    const double flops = 2.0 * static_cast<double>(kTokens * documents.length * h.num_heads * h.head_size);
    std::printf(
        "forward %8.3f ms %6.1f TFLOP/s, backward %8.3f ms %6.1f TFLOP/s; %s; past the last document: %s; dQ %s\n",
        forward, flops / forward * 1e-9, backward, 2.5 * flops / backward * 1e-9, finite ? "finite" : "NOT FINITE",
        is_untouched ? "untouched" : "written", at::equal(dq, again) ? "repeats" : "differs");
  } catch (const std::exception& error) {
    std::printf("%s\n", error.what());
  }
  std::fflush(stdout);
}

void measure_attention() {
  std::printf("attention, bf16, causal, %lld tokens\n", static_cast<long long>(kTokens));
  for (const Heads& h : {Heads{"0.5B", 14, 2, 64}, Heads{"7B", 28, 4, 128}}) {
    for (const Documents& documents :
         {Documents{"1 x 16384", 1, kTokens}, Documents{"4 x 4096", 4, 4096}, Documents{"64 x 256", 64, 256},
          Documents{"4 x 4096 and 256 empty", 4, 4096, 256}}) {
      for (const auto backend : {AttentionBackend::kFa2, AttentionBackend::kCudnn}) measure(h, documents, backend);
    }
  }
}

// ---- linears --------------------------------------------------------------------------------------------------------

/// A shape whose linears are measured. Its goal (docs/gpu_owed.md) turns a difference into a share of a step.
struct MeasuredShape {
  const char *name, *short_name;
  double goal_tokens_per_s;
};
constexpr int64_t kRank = 16;

std::vector<MeasuredShape> measured_shapes(bool is_cuda) {
  if (!is_cuda) return {{"tiny-qwen2", "tiny", 0}};
  return {{"qwen2.5-7b", "7B", 21000}, {"qwen2.5-0.5b", "0.5B", 190000}};
}

/// The first layer, with rank 16 on all linears or without adapters.
model::LayerShape layer_of(const MeasuredShape& shape, bool has_adapters, model::RowPitch pitch) {
  const model::ModelConfig config = model::known_shape(shape.name);
  std::vector<model::AdapterSpec> adapters;
  for (const auto& linear : model::linear_names(config, 0)) {
    if (has_adapters) adapters.push_back({AdapterKind::kLora, 0, linear, kRank, 2.0, 0.0});
  }
  return model::model_shape(config, adapters, {.row_pitch = pitch}).layers.front();
}

std::vector<model::ProjectionShape> projections(const MeasuredShape& shape, bool has_adapters, model::RowPitch pitch) {
  return plan::projections_of(layer_of(shape, has_adapters, pitch));
}

plan::LinearsMemory memory_for(const MeasuredShape& shape, int64_t tokens, const plan::RunDevice& device) {
  return {layer_of(shape, true, model::RowPitch::kPadded), tokens, at::kBFloat16, device.device};
}

/// The median milliseconds of each variant, measured in turns, each turn back to back: a clock that drifts favours none. The
/// variants run for `warm_up_ms` first.
std::vector<double> compare(const plan::RunDevice& device, const std::vector<std::function<void()>>& variants) {
  constexpr int kRounds = 7;
  const double turn_ms = device.is_cuda() ? 60 : 1, warm_up_ms = device.is_cuda() ? 1000 : 1;
  const auto time = [&](const std::function<void()>& run, int count) { return milliseconds(device, run, count); };
  const auto turns = [](double ms, double once) { return static_cast<int>(std::ceil(ms / std::max(once, 1e-3))); };
  std::vector<double> once;
  for (const auto& run : variants) {
    time(run, 1);  // chooses algorithms
    once.push_back(time(run, 1));
  }
  for (std::size_t v = 0; v < variants.size(); ++v)
    time(variants[v], turns(warm_up_ms / static_cast<double>(variants.size()), once[v]));
  std::vector<std::vector<double>> rounds(variants.size());
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t v = 0; v < variants.size(); ++v) rounds[v].push_back(time(variants[v], turns(turn_ms, once[v])));
  }
  std::vector<double> medians;
  for (auto& ms : rounds) {
    std::sort(ms.begin(), ms.end());
    medians.push_back(ms[kRounds / 2]);
  }
  return medians;
}

/// "verdict pitch 7B: padded is faster, ..." ms: of both variants for all layers of a micro-batch.
void print_verdict(const char* what, const MeasuredShape& shape, int64_t tokens, std::array<const char*, 2> names,
                   std::array<double, 2> ms) {
  const std::size_t fast = ms[1] < ms[0] ? 1 : 0, slow = 1 - fast;
  std::printf("verdict %s %s: %s is faster: %.3f against %.3f ms for %lld tokens, %.2f%% of this part", what,
              shape.short_name, names[fast], ms[fast], ms[slow], static_cast<long long>(tokens),
              100 * (1 - ms[fast] / ms[slow]));
  if (shape.goal_tokens_per_s > 0) {
    const double step_ms = 1e3 * static_cast<double>(tokens) / shape.goal_tokens_per_s;
    std::printf(", %.2f%% of a step at the goal (%.0f ms)", 100 * (ms[slow] - ms[fast]) / step_ms, step_ms);
  }
  std::printf("\n");
  std::fflush(stdout);
}

struct Sides {
  double forward_ms = 0, backward_ms = 0;
};

/// Forward and backward of each linear, for every layout: [layout][linear].
std::vector<std::vector<Sides>> measure_layouts(const plan::RunDevice& device,
                                                const std::vector<std::vector<model::ProjectionShape>>& layouts,
                                                const plan::LinearsMemory& memory) {
  std::vector<plan::LinearsRun> runs;
  for (const auto& shapes : layouts) runs.emplace_back(shapes, memory);
  std::vector<std::vector<Sides>> found(layouts.size(), std::vector<Sides>(runs.front().size()));
  for (std::size_t i = 0; i < runs.front().size(); ++i) {
    std::vector<std::function<void()>> forward, backward;
    for (auto& run : runs) {
      forward.push_back([&run, i] { run.forward(i); });
      backward.push_back([&run, i] { run.backward(i); });
    }
    const std::vector<double> f = compare(device, forward), b = compare(device, backward);
    for (std::size_t v = 0; v < runs.size(); ++v) found[v][i] = {f[v], b[v]};
  }
  return found;
}

void print_linear(const MeasuredShape& shape, const char* layout, const model::ProjectionShape& p, int64_t tokens,
                  const Sides& ms) {
  const double flops = 2.0 * static_cast<double>(tokens * p.in_features * p.out_features);  // without the columns
  std::printf(
      "%-4s %-8s M %5lld N %5lld K %5lld+%-2lld row %6lld bytes %s: forward %8.3f ms %6.1f TFLOP/s, backward %8.3f ms "
      "%6.1f TFLOP/s\n",
      shape.short_name, plan::short_name(p).c_str(), static_cast<long long>(tokens),
      static_cast<long long>(p.out_features), static_cast<long long>(p.in_features),
      static_cast<long long>(p.num_columns), static_cast<long long>(2 * p.input_pitch()), layout, ms.forward_ms,
      flops / ms.forward_ms * 1e-9, ms.backward_ms, flops / ms.backward_ms * 1e-9);
  std::fflush(stdout);
}

/// Exact against padded rows, and against the same GEMMs without adapters. All: at every number of tokens.
void measure_pitch(bool is_cuda, bool is_all) {
  const plan::RunDevice device = device_of(is_cuda);
  const auto tuned = plan::start_tuning({}, device, "");
  const auto tuned_products = plan::tune_products(tuned.get());
  std::printf("linears of a layer with their adapters, rank %lld, bf16, as the trainer computes them\n",
              static_cast<long long>(kRank));
  const std::vector<int64_t> sizes = !is_cuda ? std::vector<int64_t>{32}
                                     : is_all ? std::vector<int64_t>{4096, 8192, 16384}
                                              : std::vector<int64_t>{16384};
  for (const MeasuredShape& shape : measured_shapes(is_cuda)) {
    const std::vector<const char*> names = {"exact", "padded", "plain"};
    const std::vector<std::vector<model::ProjectionShape>> layouts = {
        projections(shape, true, model::RowPitch::kExact), projections(shape, true, model::RowPitch::kPadded),
        projections(shape, false, model::RowPitch::kExact)};
    const auto num_layers = static_cast<double>(model::known_shape(shape.name).num_layers);
    for (const int64_t tokens : sizes) {
      const auto found = measure_layouts(device, layouts, memory_for(shape, tokens, device));
      std::array<double, 2> ms{};
      for (std::size_t v = 0; v < layouts.size(); ++v) {
        for (std::size_t i = 0; i < layouts[v].size(); ++i) {
          print_linear(shape, names[v], layouts[v][i], tokens, found[v][i]);
          if (v < 2) ms[v] += num_layers * (found[v][i].forward_ms + found[v][i].backward_ms);
        }
      }
      print_verdict("pitch", shape, tokens, {"exact", "padded"}, ms);
    }
  }
  if (tuned) tuned->finish();
}

/// Where the backward of gate|up puts dS: beside dx, or beside dy.
void measure_gate_up(bool is_cuda) {
  constexpr std::array<const char*, 2> kForms = {"dS beside dx", "dS beside dy"};
  const plan::RunDevice device = device_of(is_cuda);
  const auto tuned = plan::start_tuning({}, device, "");
  const auto tuned_products = plan::tune_products(tuned.get());
  const int64_t tokens = is_cuda ? kTokens : 32;
  for (const MeasuredShape& shape : measured_shapes(is_cuda)) {
    const auto num_layers = static_cast<double>(model::known_shape(shape.name).num_layers);
    const plan::LinearsMemory memory = memory_for(shape, tokens, device);
    for (const auto pitch : {model::RowPitch::kExact, model::RowPitch::kPadded}) {
      std::vector<std::vector<model::ProjectionShape>> forms;
      for (const auto columns : {model::GradientColumns::kBesideInput, model::GradientColumns::kBesideOutput}) {
        for (const model::ProjectionShape& p : projections(shape, true, pitch)) {
          if (plan::short_name(p) != "gate|up") continue;
          forms.push_back({p});
          forms.back().front().gradient_columns = columns;
        }
      }
      const auto found = measure_layouts(device, forms, memory);
      const char* const layout = pitch == model::RowPitch::kExact ? "exact" : "padded";
      std::array<double, 2> ms{};
      for (std::size_t v = 0; v < forms.size(); ++v) {
        print_linear(shape, (std::string(layout) + ", " + kForms[v]).c_str(), forms[v].front(), tokens,
                     found[v].front());
        ms[v] = num_layers * (found[v].front().forward_ms + found[v].front().backward_ms);
      }
      print_verdict((std::string("gate_up ") + layout).c_str(), shape, tokens, kForms, ms);
    }
  }
  if (tuned) tuned->finish();
}

// ---- gated delta rule -----------------------------------------------------------------------------------------------

/// The rule alone, as a LoRA run computes it: from q|k|v, a and b, without gradients of A_log and dt_bias.
void measure_gated_delta(bool is_cuda) {
  const plan::RunDevice device = device_of(is_cuda);
  const GatedDeltaSizes sizes = is_cuda ? GatedDeltaSizes{16, 32, 128, 128} : GatedDeltaSizes{2, 4, 16, 16};
  const int64_t tokens = is_cuda ? 8192 : 96, heads = sizes.value_heads;
  const auto options = at::device(device.device).dtype(at::kBFloat16);
  const at::Tensor of_heads = at::zeros({heads}, options.dtype(at::kFloat));
  const GatedDeltaInputs inputs = {at::randn({tokens, sizes.qkv_width()}, options), at::randn({tokens, heads}, options),
                                   at::randn({tokens, heads}, options), of_heads, of_heads};
  const at::Tensor d_out = at::randn({tokens, sizes.value_width()}, options);
  at::Tensor no_state, out = at::empty_like(d_out);
  at::Tensor scratch = at::empty({tokens, gated_delta_scratch_width(sizes)}, options);
  GatedDeltaGradients gradients{at::empty_like(inputs.qkv), at::empty_like(inputs.a), at::empty_like(inputs.b), {}, {}};
  for (const int64_t count : {1, 8, 16}) {
    std::vector<int64_t> cu_seqlens;
    for (int64_t d = 0; d <= count; ++d) cu_seqlens.push_back(d * (tokens / count));
    const Sequences sequences = make_sequences(std::move(cu_seqlens), device.device);
    const std::vector<double> ms =
        compare(device, {[&] { gated_delta_forward(sizes, inputs, sequences, no_state, scratch, out); },
                         [&] { gated_delta_backward(sizes, inputs, sequences, d_out, scratch, gradients); }});
    const bool finite = is_finite(out) && is_finite(gradients.qkv) && is_finite(gradients.a) && is_finite(gradients.b);
    std::printf("gated_delta %lldx%lld: forward %8.3f ms, backward %8.3f ms; %s\n", static_cast<long long>(count),
                static_cast<long long>(tokens / count), ms[0], ms[1], finite ? "finite" : "NOT FINITE");
    std::fflush(stdout);
  }
}

int run(const std::string& what, bool is_cuda, bool is_deterministic) {
  if (!is_cuda && what == "attention") {
    std::printf("attention is measured on a GPU only\n");
    return 0;
  }
  if (is_cuda && !testing_support::why_no_cuda().empty()) {
    std::printf("%s: nothing was measured\n", testing_support::why_no_cuda().c_str());
    return static_cast<int>(ExitCode::kDevice);
  }
  if (is_deterministic) start_cuda({0, false, true});
  at::globalContext().setDeterministicAlgorithms(is_deterministic, /*warn_only=*/true);
  at::globalContext().setDeterministicFillUninitializedMemory(false);
  if (is_deterministic) std::printf("deterministic: ");
  if (what == "attention") measure_attention();
  if (what == "linears" || what == "pitch") measure_pitch(is_cuda, what == "linears");
  if (what == "gate_up") measure_gate_up(is_cuda);
  if (what == "gated_delta") measure_gated_delta(is_cuda);
  return 0;
}

}  // namespace
}  // namespace lora_train::kernels

int main(int argc, char** argv) {
  const auto has = [&](const char* word) {
    return std::any_of(argv + 1, argv + argc, [&](const char* argument) { return std::strcmp(argument, word) == 0; });
  };
  try {
    for (const char* what : {"attention", "linears", "pitch", "gate_up", "gated_delta"}) {
      if (has(what)) return lora_train::kernels::run(what, !has("--cpu"), has("--deterministic"));
    }
    std::fprintf(stderr, "error: what to measure? attention, linears, pitch, gate_up or gated_delta\n");
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
