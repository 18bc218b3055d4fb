// What a decoded token costs, beside reading the weights once: after every token the same process reads all bytes that the
// token needed (the linears of every layer with their adapter columns, the head) with the same threads and adds them up.
//   decode_bench MODEL fp32|bf16 [--adapter DIR] [--tokens 32] [--sequences 1] [--prompt 128] [--keep bf16|fp32]
// --keep: of a model in bf16, the weights beside fp32 (model::WeightOptions::keeps_bf16). `generate` keeps bf16.
// Prints {"token_ms", "read_ms", "ratio", "read_gb_s", "weight_mb", "threads", "prompt_ms", ...}; medians, the first token of
// a run left out. Driven by bench/decode_bench.py.
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <map>
#include <string>

#include "lora_train/base/error.h"
#include "lora_train/generate/generator.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/launch/parallel.h"
#include "lora_train/lora/adapter_file.h"
#include "lora_train/model/weights/base_weights.h"
#include "lora_train/storage/model_weights.h"

namespace lora_train {
namespace {

using Clock = std::chrono::steady_clock;

/// Of one step or one reading: by the clock, and of processor time in all threads, which neighbours on a busy machine
/// stretch less.
struct Times {
  std::vector<double> wall_ms, cpu_ms;
};

class Timer {
 public:
  void start() {
    wall_ = Clock::now();
    cpu_ = std::clock();
  }
  void stop(Times& times) const {
    times.wall_ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - wall_).count());
    times.cpu_ms.push_back(1e3 * static_cast<double>(std::clock() - cpu_) / CLOCKS_PER_SEC);
  }

 private:
  Clock::time_point wall_;
  std::clock_t cpu_ = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}
double least(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::min_element(values.begin(), values.end());
}

LORA_TRAIN_CLONES std::uint64_t sum_words(const std::uint64_t* words, std::int64_t count) {
  std::uint64_t sums[32] = {};
  std::int64_t i = 0;
  for (; i + 32 <= count; i += 32) {
    for (std::int64_t j = 0; j < 32; ++j) sums[j] += words[i + j];
  }
  std::uint64_t sum = 0;
  for (; i < count; ++i) sum += words[i];
  for (const std::uint64_t part : sums) sum += part;
  return sum;
}

/// Everything that a token reads of the weights.
std::vector<at::Tensor> weights_of_a_token(const model::ModelConfig& config, model::BaseWeights& weights) {
  std::vector<at::Tensor> list;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    const model::AcquiredLayer acquired(weights, layer, model::Pass::kForward);
    for (const model::BlockWeights& block : *acquired) {
      for (const model::Projection& p : block.projections) {
        for (const at::Tensor& t : {p.weight, p.base, p.b_columns, p.a_rows}) {  // in one matrix, or each for itself
          if (t.defined()) list.push_back(t);
        }
      }
    }
  }
  list.push_back(weights.acquire_outer(model::Pass::kForward).head);
  return list;
}

/// Reads all of it with all threads.
std::uint64_t read_all(const std::vector<at::Tensor>& list) {
  std::atomic<std::uint64_t> sum = 0;
  for (const at::Tensor& t : list) {
    const auto* const words = static_cast<const std::uint64_t*>(t.const_data_ptr());
    kernels::parallel_ranges(
        static_cast<std::int64_t>(t.nbytes() / 8), 4096,
        [&](std::int64_t begin, std::int64_t end) { sum += sum_words(words + begin, end - begin); });
  }
  return sum;
}

struct Arguments {
  std::string model, dtype;
  std::map<std::string, std::string> flags{
      {"--adapter", ""}, {"--tokens", "32"}, {"--sequences", "1"}, {"--prompt", "128"}, {"--keep", "bf16"}};
  std::int64_t number(const char* flag) const { return std::stoll(flags.at(flag)); }
};

int bench(const Arguments& arguments) {
  const model::ModelConfig config = model::read_model_config(arguments.model);
  std::vector<model::AdapterSpec> specs;
  const std::string adapter = arguments.flags.at("--adapter");
  if (!adapter.empty()) specs = lora::plan_adapters(lora::read_adapter_config(adapter), config);
  const model::ModelShape shape = model::model_shape(config, specs);
  model::Trainables adapters = model::make_trainables(config, shape, model::TrainedWeights::kNone);
  const storage::WeightFiles files = storage::open_model_weights(arguments.model);
  const model::WeightOptions options{.dtype = arguments.dtype == "bf16" ? at::kBFloat16 : at::kFloat,
                                     .keeps_bf16 = arguments.flags.at("--keep") == "bf16"};
  model::ResidentWeights weights(config, shape, adapters, options, &files);
  if (!adapter.empty()) lora::load_adapter(adapter, adapters);
  weights.refresh();
  const std::vector<at::Tensor> list = weights_of_a_token(config, weights);
  std::int64_t bytes = 0;
  for (const at::Tensor& t : list) bytes += static_cast<std::int64_t>(t.nbytes());

  const auto num_sequences = static_cast<std::size_t>(arguments.number("--sequences"));
  std::vector<generate::Prompt> prompts(num_sequences);
  for (std::size_t i = 0; i < num_sequences; ++i) {
    prompts[i].index = static_cast<std::int64_t>(i);
    prompts[i].max_new_tokens = arguments.number("--tokens");
    for (std::int64_t t = 0; t < arguments.number("--prompt"); ++t) {
      prompts[i].ids.push_back(
          static_cast<std::int32_t>((t * 7919 + static_cast<std::int64_t>(i) * 104729) % config.vocab_size));
    }
  }
  generate::Generator generator(config, shape, weights, {.drafts = false});
  Times steps, reads;
  std::uint64_t sum = 0;
  std::size_t num_calls = 0;
  Timer timer;
  const auto on_token = [&] {
    if (++num_calls % num_sequences != 0) return;  // a step gives a token to each
    const std::size_t step = num_calls / num_sequences;
    Times unused;
    timer.stop(step > 2 ? steps : unused);  // the first step of decoding warms up
    timer.start();
    sum += read_all(list);
    timer.stop(step > 1 ? reads : unused);
    timer.start();
  };
  struct Sink : generate::AnswerSink {
    explicit Sink(const std::function<void()>& call) : on_each(call) {}
    bool on_token(std::int64_t, const generate::Token&) override {
      on_each();
      return true;
    }
    std::function<void()> on_each;
  } sink(on_token);
  generator.run(prompts, sink);
  const double step_ms = median(steps.wall_ms), read_ms = median(reads.wall_ms);
  const double least_step_ms = least(steps.wall_ms), least_read_ms = least(reads.wall_ms);
  const double step_cpu_ms = median(steps.cpu_ms), read_cpu_ms = median(reads.cpu_ms);
  std::printf(
      "{\"step_ms\": %.2f, \"read_ms\": %.2f, \"ratio\": %.3f, \"least_step_ms\": %.2f, \"least_read_ms\": %.2f, "
      "\"least_ratio\": %.3f, \"step_cpu_ms\": %.2f, \"read_cpu_ms\": %.2f, \"cpu_ratio\": %.3f, ",
      step_ms, read_ms, step_ms / read_ms, least_step_ms, least_read_ms, least_step_ms / least_read_ms, step_cpu_ms,
      read_cpu_ms, step_cpu_ms / read_cpu_ms);
  std::printf(
      "\"read_gb_s\": %.2f, \"weight_mb\": %.1f, \"tokens_per_s\": %.2f, \"threads\": %d, \"steps\": %zu, "
      "\"prompt_s\": %.3f, \"sum\": %llu}\n",
      static_cast<double>(bytes) / least_read_ms * 1e-6, static_cast<double>(bytes) * 1e-6,
      static_cast<double>(num_sequences) / step_ms * 1e3, at::get_num_threads(), steps.wall_ms.size(),
      generator.totals().prompt_s, static_cast<unsigned long long>(sum));
  return 0;
}

}  // namespace
}  // namespace lora_train

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  lora_train::Arguments arguments{argv[1], argv[2]};
  for (int i = 3; i + 1 < argc; i += 2) arguments.flags.at(argv[i]) = argv[i + 1];
  try {
    return lora_train::bench(arguments);
  } catch (const lora_train::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
}
