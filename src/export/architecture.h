// llama.cpp's names for a model family and its tensors, and the metadata that it computes with.
// Source: ggml-org/llama.cpp, gguf-py (constants.py, tensor_mapping.py), conversion/, src/models/.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lora_train/export/gguf_file.h"
#include "lora_train/model/families/model_config.h"

namespace lora_train::gguf {

/// "llama" (Llama and Mistral), "mistral3" (Ministral 3 and text inside Mistral 3), "qwen2", "qwen3", "qwen2vl",
/// "qwen3vl" (inside Qwen's vision models), "qwen35", "gemma3" or "granite": general.architecture.
std::string architecture_name(const model::ModelConfig& config);

/// Throws FormatError (config.json: key) if llama.cpp would compute differently or refuse to load the model.
void check_architecture(const model::ModelConfig& config);

/// The keys "<architecture>.*". Warns if the context length is cut to the attention window; up to there, llama.cpp's
/// full attention gives the same answers.
std::vector<KeyValue> architecture_metadata(const model::ModelConfig& config);

/// "blk.3.attn_q.weight" for "model.layers.3.self_attn.q_proj.weight". Throws ShapeError for a name that the families
/// lack.
std::string gguf_name(const model::ModelConfig& config, const std::string& name);

/// The order of a tensor's rows in the file, as rows of the source; empty: the same. RoPE of "llama" and "granite"
/// rotates neighbours, so that the rows of each head of q and k go from halves to pairs. Value heads of a gated delta
/// net go from groups, those of a key head side by side, to turns. `name` is Hugging Face's.
std::vector<std::int64_t> row_order(const model::ModelConfig& config, const std::string& name, std::int64_t num_rows);
/// The same for columns: those of a gated delta net's out_proj.
std::vector<std::int64_t> column_order(const model::ModelConfig& config, const std::string& name);

/// rope_freqs [E/2], the divisors of llama.cpp's frequencies: for llama3 RoPE, otherwise empty.
std::vector<float> rope_factors(const model::ModelConfig& config);

}  // namespace lora_train::gguf
