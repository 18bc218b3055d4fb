// lora-train-generate-probe REQUEST.json: test-only. Runs the generator on token ids and prints one JSON object.
//   model, adapter (may be absent), dtype ("fp32" or "bf16"), keeps_bf16 (true), limits {max_sequences, max_pass_tokens, cache_bytes},
//   prompts [{ids, index, max_new_tokens, name}], stop_ids, sampling {temperature, top_k, top_p, min_p, seed},
//   use_adapter, log_probabilities, logits (a file: those of prompt p and position t are tensor "p.t"),
//   scores [{prompt, completions}], quit_after (tokens, by on_token), kernels ("cuda-on-cpu"), graphs (captured on the CPU),
//   candidates [{logits, sampling}]: what may be drawn, without a model
// Prints {"completions": [{ids, reason, log_probability}], "done": [prompt, ...], "streamed": [[id, ...], ...], "scores",
// "cache_bytes", "new_tokens", "prompt_tokens", "replays", "decode_passes", "element_bytes" (of the head)}.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "kernels/dispatch/native_kernels.h"
#include "lora_train/base/error.h"
#include "lora_train/generate/generator.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/kernels/dispatch/implementation.h"
#include "lora_train/lora/adapter_file.h"
#include "lora_train/model/weights/base_weights.h"
#include "lora_train/model/weights/tensor_io.h"
#include "lora_train/storage/model_weights.h"
#include "lora_train/storage/safetensors.h"
#include "support/captured_graph.h"
#include "support/on_cpu.h"
#include "support/safetensors_file.h"
#include "support/sampling_candidates.h"

namespace lora_train {
namespace {

using generate::Prompt;
using nlohmann::json;

struct Loaded {
  model::ModelConfig config;
  model::ModelShape shape;
  std::unique_ptr<model::Trainables> parameters;
  std::unique_ptr<model::ResidentWeights> weights;
};

Loaded load(const json& request) {
  const std::filesystem::path folder = request.at("model").get<std::string>();
  Loaded loaded;
  loaded.config = model::read_model_config(folder);
  std::vector<model::AdapterSpec> specs;
  const std::string adapter = request.value("adapter", "");
  model::TokenRows rows;
  if (!adapter.empty()) {
    const lora::AdapterConfig read = lora::read_adapter_config(adapter);
    specs = lora::plan_adapters(read, loaded.config);
    rows = lora::token_rows_of(read, adapter, loaded.config);
  }
  const storage::WeightFiles files = storage::open_model_weights(folder);
  model::check_weights(loaded.config, files);
  const at::ScalarType dtype = request.value("dtype", "fp32") == "bf16" ? at::kBFloat16 : at::kFloat;
  loaded.shape = model::model_shape(loaded.config, specs, {}, rows);
  loaded.parameters = std::make_unique<model::Trainables>(
      model::make_trainables(loaded.config, loaded.shape, model::TrainedWeights::kNone));
  loaded.weights = std::make_unique<model::ResidentWeights>(
      loaded.config, loaded.shape, *loaded.parameters,
      model::WeightOptions{.dtype = dtype, .keeps_bf16 = request.value("keeps_bf16", true)}, &files);
  if (!adapter.empty()) lora::load_adapter(adapter, *loaded.parameters);
  loaded.weights->refresh();
  return loaded;
}

generate::GeneratorLimits read_limits(const json& request) {
  generate::GeneratorLimits limits;
  const json given = request.value("limits", json::object());
  limits.max_sequences = given.value("max_sequences", limits.max_sequences);
  limits.max_pass_tokens = given.value("max_pass_tokens", limits.max_pass_tokens);
  limits.cache_bytes = given.value("cache_bytes", limits.cache_bytes);
  limits.drafts = given.value("drafts", limits.drafts);
  return limits;
}

SamplingOptions read_sampling(const json& request) {
  const json sampling = request.value("sampling", json::object());
  return {sampling.value("temperature", 0.0), sampling.value("top_k", std::int64_t{0}), sampling.value("top_p", 1.0),
          sampling.value("min_p", 0.0), sampling.value("seed", std::uint64_t{0})};
}

std::vector<Prompt> read_prompts(const json& request) {
  std::vector<Prompt> prompts;
  for (const json& given : request.value("prompts", json::array())) {
    prompts.push_back({.ids = given.at("ids").get<std::vector<std::int32_t>>(),
                       .index = given.value("index", static_cast<std::int64_t>(prompts.size())),
                       .max_new_tokens = given.at("max_new_tokens").get<std::int64_t>(),
                       .name = given.value("name", ""),
                       .id = static_cast<std::int64_t>(prompts.size()),
                       .sampling = read_sampling(request),
                       .stop_ids = request.value("stop_ids", std::vector<std::int32_t>())});
    if (!request.value("use_adapter", true)) prompts.back().adapter = generate::kNoAdapter;
    if (request.value("log_probabilities", false)) prompts.back().num_top = 0;
  }
  return prompts;
}

void write_logits(const std::string& path, const std::map<std::string, at::Tensor>& rows) {
  std::vector<storage::TensorToWrite> tensors;
  for (const auto& [name, row] : rows) tensors.push_back(model::tensor_to_write(name, row));
  storage::write_safetensors(path, tensors);
}

/// Keeps all that a run gives.
struct Answers : generate::AnswerSink {
  explicit Answers(std::size_t num_prompts)
      : streamed(num_prompts), is_cut(num_prompts), log_probabilities(num_prompts) {}

  bool on_token(std::int64_t id, const generate::Token& token) override {
    const auto prompt = static_cast<std::size_t>(id);
    streamed[prompt].push_back(token.id);
    log_probabilities[prompt] += token.log_probability;
    return quit_after == 0 || streamed[prompt].size() < quit_after;
  }
  void on_done(std::int64_t id, bool cut) override {
    done.push_back(id);
    is_cut[static_cast<std::size_t>(id)] = cut;
  }
  bool wants_logits() const override { return keeps_logits; }
  void on_logits(std::int64_t id, std::span<const float> row) override {
    rows[std::to_string(id) + "." + std::to_string(streamed[static_cast<std::size_t>(id)].size())] =
        at::tensor(at::ArrayRef<float>(row.data(), row.size()));
  }

  std::size_t quit_after = 0;  // tokens
  bool keeps_logits = false;
  std::vector<std::vector<std::int32_t>> streamed;
  std::vector<bool> is_cut;
  std::vector<double> log_probabilities;
  std::vector<std::int64_t> done;
  std::map<std::string, at::Tensor> rows;
};

void run_prompts(generate::Generator& generator, const json& request, json& result) {
  const std::vector<Prompt> prompts = read_prompts(request);
  const std::string logits = request.value("logits", "");
  Answers answers(prompts.size());
  answers.quit_after = request.value("quit_after", std::size_t{0});
  answers.keeps_logits = !logits.empty();
  generator.run(prompts, answers);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto& [ids, stops] = std::tie(answers.streamed[i], prompts[i].stop_ids);
    const bool is_stop = std::find(stops.begin(), stops.end(), ids.back()) != stops.end();
    result["completions"].push_back({{"ids", ids},
                                     {"reason", is_stop             ? "stop"
                                                : answers.is_cut[i] ? "length"
                                                                    : "caller"},
                                     {"log_probability", answers.log_probabilities[i]}});
  }
  result["done"] = answers.done;
  result["streamed"] = answers.streamed;
  if (!logits.empty()) write_logits(logits, answers.rows);
}

void run_scores(generate::Generator& generator, const json& request, json& result) {
  std::vector<generate::ScoreRequest> requests;
  for (const json& given : request.at("scores")) {
    requests.push_back({given.at("prompt").get<std::vector<std::int32_t>>(),
                        given.at("completions").get<std::vector<std::vector<std::int32_t>>>(),
                        given.value("name", "")});
  }
  result["scores"] = generator.score(requests, request.value("use_adapter", true));
}

/// [[[id, probability], ...], ...]
json list_candidates(const json& request) {
  json lists = json::array();
  for (const json& given : request) {
    json list = json::array();
    const auto logits = given.at("logits").get<std::vector<float>>();
    for (const auto& c : testing_support::candidates(logits, read_sampling(given)))
      list.push_back({c.id, c.probability});
    lists.push_back(list);
  }
  return lists;
}

int probe(const std::string& path) {
  std::ifstream file(path);
  const json request = json::parse(file);
  if (request.contains("candidates")) {
    std::printf("%s\n", list_candidates(request.at("candidates")).dump().c_str());
    return 0;
  }
  if (request.value("kernels", "") == "cuda-on-cpu") {
    kernels::use_native_kernels({&kernels::linked_native_kernels(), nullptr, true});
    kernels::reserve_native_workspace(kernels::kWorkspaceElements, at::kCPU);
  }
  if (request.value("graphs", false)) kernels::use_capture(&testing_support::CapturedOnCpu::capture);
  const Loaded loaded = load(request);
  generate::Generator generator(loaded.config, loaded.shape, *loaded.weights, read_limits(request));
  json result;
  if (request.contains("prompts")) run_prompts(generator, request, result);
  if (request.contains("scores")) run_scores(generator, request, result);
  const generate::Totals stats = generator.totals();
  result["cache_bytes"] = stats.cache_bytes;
  result["new_tokens"] = stats.new_tokens;
  result["prompt_tokens"] = stats.prompt_tokens;
  result["replays"] = stats.replays;
  result["decode_passes"] = stats.decode_passes;
  result["element_bytes"] = loaded.weights->acquire_outer(model::Pass::kForward).head.element_size();
  std::printf("%s\n", result.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace lora_train

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    return lora_train::probe(argv[1]);
  } catch (const lora_train::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}
