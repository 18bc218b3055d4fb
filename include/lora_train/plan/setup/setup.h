// Sets up a model and its data from a profile: everything up to step 1.
#pragma once

#include <memory>

#include "lora_train/config/keys/profile.h"
#include "lora_train/data/prepare.h"
#include "lora_train/lora/adapter_file.h"
#include "lora_train/lora/open_model.h"
#include "lora_train/model/decoder.h"
#include "lora_train/model/loss_head.h"
#include "lora_train/model/weights/base_weights.h"
#include "lora_train/plan/setup/run_device.h"

namespace lora_train::plan {

/// Convert profile values to the engine's. gradient_checkpointing: auto becomes all modes, least recomputation first.
at::ScalarType compute_dtype(Precision precision);
/// Bytes per element of that type.
std::int64_t compute_bytes(Precision precision);
std::vector<model::Recompute> recompute_modes(GradientCheckpointing mode);
model::TrainedWeights trained_weights(const Profile& profile);
kernels::AttentionBackend attention_backend(AttnImplementation implementation);

using model::base_storage;

/// A warning if double_quant is given and the folder, already quantised, stores its scales differently; else empty.
std::string ignored_double_quant(const Profile& profile, const lora::ModelFiles& files);

/// The parts of the model that data::prepare_data needs. `files` must outlive the result.
data::DataContext data_context(const Profile& profile, const lora::ModelFiles& files);

/// The adapters of a run, from the profile or from init_adapter. Empty with adapter: none.
struct AdapterSetup : lora::AdapterChoice {  ///< token rows: those of the folder, then new ones
  model::ColumnLayout columns = {};
  std::vector<lora::NamedAdapter> several = {};  ///< for adapters_of_folders(): where load_model() finds each
};
AdapterSetup choose_adapters(const Profile& profile, const lora::ModelFiles& files);
/// The same for a saved adapter, for evaluation.
AdapterSetup adapters_of_folder(const std::filesystem::path& folder, const lora::ModelFiles& files);
/// Several saved adapters side by side; each token uses one of them (model::LinearPass::row_owners). Their columns add
/// up. They have no token rows; names must be unique and not empty.
AdapterSetup adapters_of_folders(const std::vector<lora::NamedAdapter>& adapters, const lora::ModelFiles& files);

/// Weights in memory, ready to run. Adapters are initialised, or loaded from init_adapter.
struct LoadedModel {
  std::unique_ptr<model::Trainables> parameters;  ///< the trained tensors; the weights hold views of them
  std::unique_ptr<model::BaseWeights> weights;
  std::unique_ptr<model::Decoder> decoder;
  std::string fingerprint;          ///< hash of config.json and of samples of the weights
  std::string weights_fingerprint;  ///< hash of the weights alone
};

/// What to load a model for.
struct LoadOptions {
  bool train_all_weights = false;
  std::int64_t max_seq_len = 0;
  std::int64_t decoded_layers = model::kAllLayers;  ///< model::WeightOptions::decoded_layers
  bool keeps_bf16 = false;                          ///< model::WeightOptions::keeps_bf16
};
/// Creates the trained tensors, weights and decoder of `loaded`. Without weight files, plain weights are undefined:
/// fill them, then call refresh(). On at::kMeta nothing is allocated.
void assemble_model(const Profile& profile, const RunDevice& device, const lora::ModelFiles& files,
                    const AdapterSetup& adapters, const LoadOptions& options, const storage::WeightFiles* weight_files,
                    LoadedModel& loaded);

void load_model(const Profile& profile, const RunDevice& device, const lora::ModelFiles& files,
                const AdapterSetup& adapters, const LoadOptions& options, LoadedModel& loaded);

/// A loss head for batches of at most max_tokens tokens, all of which may be supervised.
std::unique_ptr<model::LossHead> plan_loss_head(const model::Decoder& decoder, std::int64_t max_tokens,
                                                bool needs_backward,
                                                std::int64_t chunk_bytes = model::LossHeadOptions{}.chunk_bytes,
                                                bool has_weights = false);

}  // namespace lora_train::plan
