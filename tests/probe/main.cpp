// lora-train-probe: test-only. Computes global step 1 of a profile exactly as `train` does, without the update, and
// writes the gradient of every trained tensor.
//   lora-train-probe --profile P [--set k=v]... --gradients OUT.safetensors
// Prints {"loss", "supervised_tokens", "grad_norm"} on stdout.
#include <ATen/ATen.h>

#include <cstdio>
#include <cstring>

#include "lora_train/base/error.h"
#include "lora_train/config/load.h"
#include "lora_train/model/tensor_io.h"
#include "lora_train/storage/safetensors.h"
#include "train/run_state.h"

namespace lora_train {
namespace {

void write_gradients(const std::string& path, const model::Parameters& parameters) {
  std::vector<storage::TensorToWrite> tensors;
  for (const auto& parameter : parameters.list()) {
    tensors.push_back(model::tensor_to_write(parameter.name, parameters.grad(parameter.name)));
  }
  storage::write_safetensors(path, tensors);
}

int probe(int argc, char** argv) {
  ProfileSources sources;
  std::string gradients;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--profile") sources.profiles.push_back(value);
    else if (flag == "--set") sources.overrides.push_back(parse_override(value));
    else if (flag == "--gradients") gradients = value;
    else throw ConfigError(flag, "unknown flag; expected --profile, --set or --gradients");
  }
  train::TrainRequest request;
  request.profile = load_profile(sources).profile;
  const auto run = train::build_run(request, std::nullopt);
  const data::StepPlan plan = run->plan->step(1);
  train::ask_for_gradients(*run->context, plan, train::build_in_place(run->data.train, plan));
  const train::StepResult result = train::receive_step(*run->context, plan);
  if (!gradients.empty()) write_gradients(gradients, run->model.weights->parameters());
  std::printf("{\"loss\": %.17g, \"supervised_tokens\": %lld, \"grad_norm\": %.17g}\n", result.loss,
              static_cast<long long>(plan.num_supervised), result.grad_norm);
  return 0;
}

}  // namespace
}  // namespace lora_train

int main(int argc, char** argv) {
  try {
    return lora_train::probe(argc, argv);
  } catch (const lora_train::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}
