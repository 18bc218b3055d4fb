#include "inference.h"

namespace lora_train::evaluate {

InferenceModel load_for_inference(const Profile& requested, const std::filesystem::path& adapter,
                                  std::int64_t max_seq_len) {
  Profile profile = requested;
  runtime::ModelFiles files;
  files.resolved = storage::resolve_model(profile.model.path);
  files.config = model::read_model_config(files.resolved.folder);
  runtime::AdapterSetup adapters;
  if (!adapter.empty()) {
    adapters = runtime::adapters_of_folder(adapter, files);
    profile.adapter.init_adapter = adapter.string();
  }
  InferenceModel loaded;
  loaded.device = runtime::start_device(profile.run, files.config);
  runtime::load_model(profile, loaded.device, files, adapters, false, max_seq_len, loaded.model);
  return loaded;
}

std::unique_ptr<generate::Generator> make_generator(const InferenceModel& model, const RunSection& run) {
  constexpr std::int64_t kSequencesOnGpu = 64;
  generate::GeneratorLimits limits;
  limits.use_graphs = run.cuda_graphs != CudaGraphs::kOff;
  if (model.device.is_cuda()) {
    limits.max_sequences = kSequencesOnGpu;
    limits.cache_bytes = runtime::device_room(model.device).free / 2;
  }
  return std::make_unique<generate::Generator>(model.model.decoder->config, model.model.decoder->shape,
                                               *model.model.weights, limits,
                                               runtime::attention_backend(run.attn_implementation));
}

}  // namespace lora_train::evaluate
