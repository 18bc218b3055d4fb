// What share of the GEMM rate the linears of a decoder layer reach with their LoRA columns: each projection forward and
// backward as the decoder calls it, and at::mm of the same M, N and K without LoRA, in turns in one run.
// Built with -DLORA_TRAIN_BENCH=ON; run: build/<folder>/bin/linears_bench [--benchmark_filter=0.1b/fp32]
//
//   lora_ms     the projection with LoRA, forward and backward (Time is its mean)
//   gemm_ms     the same two products (y = x W^T, dx = dy W) by at::mm alone
//   share       gemm_ms / lora_ms: everything that LoRA, bias and residual cost counts as lost
//   flop_share  FLOPs that are needed, LoRA's own 6 R (D + O) a token among them, per lora_ms, over the rate of at::mm
//   gemm_rate   of at::mm, in GFLOP/s
// Medians. `all` has the four projections of a layer in one iteration. With --cpu-time and OMP_NUM_THREADS=1 times are those
// that the processor spent on this program: for a machine on which others compute too, whose shares say more than its rates.
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "lora_train/kernels/aten.h"
#include "lora_train/model/projection.h"

namespace lora_train::model {
namespace {

using benchmark::State;

// N tokens, D input features, O outputs, C adapter columns, F ffn, H heads, K kv heads, E head size, R rank.
constexpr int64_t N = 2048, R = 16;

/// The sizes of bench/compare_hf_cpu.py (Qwen2: biases on q, k and v).
struct NamedConfig {
  const char* name;
  int64_t hidden, heads, kv_heads, head_dim, ffn;
};
constexpr NamedConfig kConfigs[] = {{"0.1b", 512, 8, 2, 64, 2816}, {"0.5b", 896, 14, 2, 64, 4864}};

/// The projections of a layer, an adapter of rank R on every linear; those that end a block add the residual.
struct Site {
  ProjectionShape shape;
  std::string name;
  bool adds_residual = false;
};

std::vector<Site> sites(const NamedConfig& sizes) {
  ModelConfig config;
  config.num_layers = 1;
  config.hidden_size = sizes.hidden;
  config.num_heads = sizes.heads;
  config.num_kv_heads = sizes.kv_heads;
  config.head_dim = sizes.head_dim;
  config.intermediate_size = sizes.ffn;
  config.qkv_bias = true;
  std::vector<AdapterSpec> adapters;
  for (const auto& linear : linear_names(config, 0)) adapters.push_back({AdapterKind::kLora, 0, linear, R, 2.0, 0.0});
  std::vector<Site> sites;
  for (const BlockShape& block : model_shape(config, adapters).layers.front().blocks) {
    for (const ProjectionShape& projection : block.projections) {
      sites.push_back({projection, projection.linears.front().name, &projection == &block.projections.back()});
    }
  }
  return sites;
}

/// A projection with LoRA and its buffers, and the plain matrices beside it.
class Linear {
 public:
  Linear(const Site& site, at::ScalarType dtype) : projection_(site.shape) {
    const int64_t D = site.shape.in_features;
    for (const AdapterPlace& place : site.shape.adapters) {
      const LinearShape& linear = site.shape.linears[static_cast<std::size_t>(place.linear)];
      const int64_t outputs = linear.out_features;
      projection_.adapters.push_back({site.name,
                                      linear.out_begin,
                                      linear.out_begin + outputs,
                                      place.column,
                                      R,
                                      2.0,
                                      0.0,
                                      {at::randn({R, D}), at::randn({outputs, R})},
                                      {at::zeros({R, D}), at::zeros({outputs, R})}});
      lora_flops_ += 6.0 * static_cast<double>(N * R * (D + outputs));
    }
    const int64_t O = projection_.out_features, C = projection_.num_columns;
    flops_ = 4.0 * static_cast<double>(N * D * O);
    weight_ = at::randn({O, D}).to(dtype);
    projection_.weight = at::zeros({O + C, D + C}, dtype);
    projection_.base_weight().copy_(weight_);
    if (site.shape.has_bias) projection_.bias = at::randn({O}).to(dtype);
    kernels::ScaledCopies columns;
    add_adapter_copies(projection_,
                       [&](const auto& from, double scale, const auto& to) { columns.add(from, scale, to); });
    columns.run();
    x_ = at::randn({N, D}).to(dtype);
    input_ = at::zeros({N, D + C}, dtype);
    input_.narrow(1, 0, D).copy_(x_);
    d_output_ = at::randn({N, projection_.d_output_width()}).to(dtype);
    dy_ = d_output_.narrow(1, 0, O).contiguous();
    if (site.adds_residual) residual_ = at::randn({N, O}).to(dtype);
    y_ = at::zeros({N, O}, dtype);
    dx_ = at::zeros({N, D}, dtype);
    d_input_ = at::zeros({N, projection_.d_input_width()}, dtype);
  }

  void with_lora() {
    fill_adapter_columns(projection_, input_, {});
    projection_forward(projection_, input_, residual_, y_, {});
    projection_backward(projection_, input_, d_output_, d_input_, true, {});
  }

  void plain() {
    at::mm_out(y_, x_, weight_.t());
    at::mm_out(dx_, dy_, weight_);
  }

  double flops() const { return flops_; }            ///< of plain()
  double lora_flops() const { return lora_flops_; }  ///< what with_lora() needs on top

 private:
  Projection projection_;
  at::Tensor weight_, x_, input_, dy_, d_output_, residual_, y_, dx_, d_input_;
  double flops_ = 0, lora_flops_ = 0;
};

bool use_cpu_time = false;

double now_s() {
  timespec time{};
  clock_gettime(use_cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

template <class Body>
double seconds(const Body& body) {
  const double start = now_s();
  body();
  return now_s() - start;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void linears(State& state, const std::vector<Site>& chosen, at::ScalarType dtype) {
  std::vector<Linear> list;
  double flops = 0, lora_flops = 0;
  for (const Site& site : chosen) {
    Linear& linear = list.emplace_back(site, dtype);
    flops += linear.flops();
    lora_flops += linear.lora_flops();
    linear.plain();
    linear.with_lora();
  }
  std::vector<double> with_lora, plain;
  for (auto _ : state) {
    double with_lora_s = 0, plain_s = 0;
    for (Linear& linear : list) {
      plain_s += seconds([&] { linear.plain(); });
      with_lora_s += seconds([&] { linear.with_lora(); });
    }
    state.SetIterationTime(with_lora_s);
    with_lora.push_back(with_lora_s);
    plain.push_back(plain_s);
  }
  const double share = median(plain) / median(with_lora);
  state.counters["gemm_ms"] = 1e3 * median(plain);
  state.counters["lora_ms"] = 1e3 * median(with_lora);
  state.counters["share"] = share;
  state.counters["flop_share"] = share * (flops + lora_flops) / flops;
  state.counters["gemm_rate"] = 1e-9 * flops / median(plain);
}

void add_benchmark(const std::string& name, const std::vector<Site>& chosen, at::ScalarType dtype) {
  benchmark::RegisterBenchmark(name.c_str(), [=](State& state) { linears(state, chosen, dtype); })
      ->UseManualTime()
      ->MinTime(2)
      ->Unit(benchmark::kMillisecond);
}

void add_benchmarks() {
  for (const NamedConfig& sizes : kConfigs) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const std::string prefix = std::string(sizes.name) + (dtype == at::kFloat ? "/fp32/" : "/bf16/");
      for (const Site& site : sites(sizes)) add_benchmark(prefix + site.name, {site}, dtype);
      add_benchmark(prefix + "all", sites(sizes), dtype);
    }
  }
}

}  // namespace
}  // namespace lora_train::model

int main(int argc, char** argv) {
  char** const end =
      std::remove_if(argv + 1, argv + argc, [](const char* word) { return std::string(word) == "--cpu-time"; });
  lora_train::model::use_cpu_time = end != argv + argc;
  argc = static_cast<int>(end - argv);
  lora_train::model::add_benchmarks();
  benchmark::AddCustomContext("clock", lora_train::model::use_cpu_time ? "CPU time" : "wall");
  benchmark::AddCustomContext("threads", std::to_string(at::get_num_threads()));
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
