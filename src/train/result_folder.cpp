#include "result_folder.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/version.h"
#include "lora_train/model/tensor_io.h"
#include "lora_train/storage/safetensors.h"

namespace lora_train::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* kTokenizerFiles[] = {"tokenizer.json",    "tokenizer_config.json", "special_tokens_map.json",
                                           "tokenizer.model",   "tekken.json",           "vocab.json",
                                           "merges.txt",        "added_tokens.json",     "generation_config.json"};

void copy_tokenizer(const ModelFiles& files, const fs::path& folder) {
  for (const char* name : kTokenizerFiles) {
    const fs::path source = files.resolved.folder / name;
    if (fs::exists(source)) write_file_atomic(folder / name, read_file(source));
  }
  if (files.chat_template) write_file_atomic(folder / "chat_template.jinja", files.chat_template->source());
}

std::string model_card(const Profile& profile, const AdapterSetup& adapters, const TrainState& state) {
  const std::string& base = adapters.config.base_model_name_or_path;
  const bool portable = !adapters.config.options.use_rslora && adapters.config.options.rank_pattern.empty() &&
                        adapters.config.options.alpha_pattern.empty();
  std::string card = "---\nbase_model: " + base + "\nlibrary_name: peft\ntags: [lora, lora-train]\n---\n\n# LoRA adapter for " +
                     base + "\n\nTrained with lora-train " + version() + ": " + std::to_string(state.step) + " steps, r " +
                     std::to_string(adapters.config.options.r) + ".\n";
  if (state.eval_loss) card += "Loss on held-out data after the last step: " + std::to_string(*state.eval_loss) + ".\n";
  card += "\n## Use\n\nPEFT:\n\n```python\nfrom peft import PeftModel\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n"
          "model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(\"" + base + "\"), \"" +
          profile.output_dir + "/adapter\")\ntokenizer = AutoTokenizer.from_pretrained(\"" + profile.output_dir +
          "/adapter\")\n```\n\nvLLM:\n\n```sh\nvllm serve " + base + " --enable-lora --lora-modules my-adapter=" +
          profile.output_dir + "/adapter --max-lora-rank " + std::to_string(adapters.config.options.r) +
          "\n```\n\nllama.cpp:\n\n```sh\npython convert_lora_to_gguf.py --base " + base + " " + profile.output_dir + "/adapter\n```\n\n";
  card += portable ? "Plain LoRA: none of the three refuses it.\n"
                   : "This adapter uses rsLoRA or rank and alpha patterns: PEFT reads them; llama.cpp ignores rsLoRA and vLLM "
                     "does not read patterns, so both would scale it wrongly.\n";
  return card;
}

/// Weights of full fine-tuning in the dtype they came in, config.json with it.
void write_full_model(const Profile& profile, const ModelFiles& files, const model::Parameters& parameters, const fs::path& folder) {
  const bool as_bf16 = profile.save_dtype == Precision::kBf16;
  std::vector<at::Tensor> keep;
  std::vector<storage::TensorToWrite> tensors;
  for (const auto& parameter : parameters.list()) {
    at::Tensor value = parameters.value(parameter.name);
    if (!at::isfinite(value).all().item<bool>()) throw NumericError(parameter.name, "holds NaN or infinity and is not saved");
    if (as_bf16) value = value.to(at::kBFloat16);
    keep.push_back(value);
    tensors.push_back(model::tensor_to_write(parameter.name, value));
  }
  storage::write_safetensors(folder / "model.safetensors", tensors);
  auto config = nlohmann::ordered_json::parse(read_file(files.config.path));
  config.erase("torch_dtype");
  config["dtype"] = as_bf16 ? "bfloat16" : "float32";
  write_file_atomic(folder / "config.json", config.dump(2) + "\n");
}

void write_into(const fs::path& folder, const Profile& profile, const ModelFiles& files, const AdapterSetup& adapters,
                const model::Parameters& parameters, const TrainState& state) {
  if (profile.adapter == AdapterKind::kNone) {
    write_full_model(profile, files, parameters, folder);
  } else {
    const auto dtype = profile.save_dtype == Precision::kBf16 ? lora::SaveDtype::kBFloat16 : lora::SaveDtype::kFloat32;
    lora::save_adapter(folder, adapters.config, lora::explicit_targets(adapters.specs, files.config), parameters, dtype);
    write_file_atomic(folder / "README.md", model_card(profile, adapters, state));
  }
  copy_tokenizer(files, folder);
}

}  // namespace

fs::path write_result(const Profile& profile, const ModelFiles& files, const AdapterSetup& adapters,
                      const model::Parameters& parameters, const TrainState& state) {
  const fs::path output_dir = profile.output_dir;
  const fs::path target = output_dir / (profile.adapter == AdapterKind::kNone ? "model" : "adapter");
  const fs::path temporary = output_dir / (".tmp-" + target.filename().string() + "-" + std::to_string(::getpid()));
  try {
    fs::remove_all(temporary);
    fs::create_directory(temporary);
    write_into(temporary, profile, files, adapters, parameters, state);
    sync_folder(temporary);
    fs::remove_all(target);
    fs::rename(temporary, target);
    sync_folder(output_dir);
  } catch (const fs::filesystem_error& error) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw IoError(target.string(), std::string("cannot write the result: ") + error.code().message());
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(temporary, ignored);
    throw;
  }
  return target;
}

}  // namespace lora_train::train
