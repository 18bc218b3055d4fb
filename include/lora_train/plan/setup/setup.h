// From a profile to a model and its data: everything up to step 1.
#pragma once

#include <memory>
#include <optional>

#include "lora_train/config/keys/profile.h"
#include "lora_train/data/model_tokenizer.h"
#include "lora_train/data/prepare.h"
#include "lora_train/lora/adapter_file.h"
#include "lora_train/model/decoder.h"
#include "lora_train/model/loss_head.h"
#include "lora_train/model/weights/base_weights.h"
#include "lora_train/plan/setup/run_device.h"
#include "lora_train/storage/model_file.h"
#include "lora_train/tokenizer/chat/chat_template.h"

namespace lora_train::plan {

/// What values of the profile mean to the engine. gradient_checkpointing auto: all modes, the least recomputation first.
at::ScalarType compute_dtype(Precision precision);
/// Bytes of an element of that type.
std::int64_t compute_bytes(Precision precision);
std::vector<model::Recompute> recompute_modes(GradientCheckpointing mode);
model::TrainedWeights trained_weights(const Profile& profile);
kernels::AttentionBackend attention_backend(AttnImplementation implementation);

/// The model's folder, read and checked, without weights.
struct ModelFiles {
  storage::ResolvedModel resolved;
  model::ModelConfig config;
  std::filesystem::path tokenizer_folder;           ///< the model's, or that of the adapter (lora::tokenizer_folder)
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;  ///< null if the folder has none; knows the new tokens
  std::unique_ptr<tokenizer::ChatTemplate> chat_template;  ///< from the profile or the folder; null if there is none
  model::BaseStorage base;                                 ///< linears that the run keeps quantised
  std::vector<data::NewRow> new_rows;                      ///< of add_tokens, in its order; config has room for them
};
/// `adapter`: a PEFT folder that the run starts from or that is evaluated, whose token rows config has room for; may be empty.
ModelFiles open_model(const ModelSection& section, const std::filesystem::path& adapter);
/// The same of a folder that need not have weights: `base` is left empty.
ModelFiles open_model_without_weights(const ModelSection& section, const std::filesystem::path& adapter);

using model::base_storage;

/// A warning where double_quant is given and the folder, which is quantised already, stores its scales otherwise; else empty.
std::string ignored_double_quant(const Profile& profile, const ModelFiles& files);

/// What data::prepare_data needs of the model, which must outlive it.
data::DataContext data_context(const Profile& profile, const ModelFiles& files);

/// One of several adapters in a model: AdapterSpec::owner is its place in the list.
struct NamedAdapter {
  std::string name;
  std::filesystem::path folder;
};

/// The adapters of a run, from the profile or from init_adapter. Empty with adapter: none.
struct AdapterSetup {
  lora::AdapterConfig config;
  std::vector<model::AdapterSpec> specs;
  model::ColumnLayout columns;
  model::TokenRows token_rows;             ///< trained beside the adapters: those of the folder, then the new ones
  std::vector<NamedAdapter> several = {};  ///< of adapters_of_folders(): where load_model() finds each
};
AdapterSetup choose_adapters(const Profile& profile, const ModelFiles& files);
/// The same for a saved adapter, for evaluation.
AdapterSetup adapters_of_folder(const std::filesystem::path& folder, const ModelFiles& files);
/// Several saved adapters side by side, of which each token takes one (model::LinearPass::row_owners). Their columns add up. They
/// have no token rows; names are not empty, and differ.
AdapterSetup adapters_of_folders(const std::vector<NamedAdapter>& adapters, const ModelFiles& files);

/// Weights in memory, ready to run. Adapters are initialised, or loaded from init_adapter.
struct LoadedModel {
  std::unique_ptr<model::Trainables> parameters;  ///< the trained tensors; the weights hold views of them
  std::unique_ptr<model::BaseWeights> weights;
  std::unique_ptr<model::Decoder> decoder;
  std::string fingerprint;          ///< hash of config.json and of samples of the weights
  std::string weights_fingerprint;  ///< of the weights alone
};

/// What a model is loaded for.
struct LoadOptions {
  bool train_all_weights = false;
  std::int64_t max_seq_len = 0;
  std::int64_t decoded_layers = model::kAllLayers;  ///< model::WeightOptions::decoded_layers
  bool keeps_bf16 = false;                          ///< model::WeightOptions::keeps_bf16
};
/// Creates the trained tensors, weights and decoder of `loaded`. Without weight files, plain weights are undefined: fill them,
/// then call refresh(). On at::kMeta nothing is allocated.
void assemble_model(const Profile& profile, const RunDevice& device, const ModelFiles& files,
                    const AdapterSetup& adapters, const LoadOptions& options, const storage::WeightFiles* weight_files,
                    LoadedModel& loaded);

void load_model(const Profile& profile, const RunDevice& device, const ModelFiles& files, const AdapterSetup& adapters,
                const LoadOptions& options, LoadedModel& loaded);

/// A loss head for batches of at most max_tokens tokens, all of which may be supervised.
std::unique_ptr<model::LossHead> plan_loss_head(const model::Decoder& decoder, std::int64_t max_tokens,
                                                bool needs_backward,
                                                std::int64_t chunk_bytes = model::LossHeadOptions{}.chunk_bytes,
                                                bool has_weights = false);

}  // namespace lora_train::plan
