#include "lora_train/export/export.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <vector>

#include "architecture.h"
#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/export/gguf_file.h"
#include "lora_train/lora/adapter_config.h"
#include "lora_train/lora/adapter_tensors.h"
#include "lora_train/lora/merge.h"
#include "lora_train/storage/run_names.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "lora_train/tokenizer/tokenizer_data.h"

namespace lora_train::gguf {
namespace {

using storage::DType;
using tokenizer::TokenizerData;

/// How llama.cpp splits text before BPE, by its name for it (tokenizer.ggml.pre).
struct PreTokenizer {
  const char* name;
  bool ignores_merges;
  std::vector<std::string> split;
};

const std::vector<PreTokenizer>& pre_tokenizers() {
  static const std::string contractions = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)";
  static const std::string rest = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  static const std::string tekken = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
                                    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
                                    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  static const std::string marks = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
                                   R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  static const std::vector<PreTokenizer> table = {
      {"qwen35", false, {marks}},
      {"qwen2", false, {contractions + R"(\p{N})" + rest}},
      {"llama-bpe", true, {contractions + R"(\p{N}{1,3})" + rest}},
      {"smaug-bpe", false, {contractions + R"(\p{N}{1,3})" + rest}},
      {"tekken", true, {tekken}},
      {"gpt-2", false, {"byte-level"}},
      {"refact", false, {"digits", "byte-level"}},
  };
  return table;
}

const char* pre_tokenizer_name(const TokenizerData& data, const std::filesystem::path& folder) {
  for (const PreTokenizer& known : pre_tokenizers()) {
    if (known.split == data.split && known.ignores_merges == data.ignore_merges) return known.name;
  }
  throw FormatError(
      (folder / "tokenizer.json").string() + ": pre_tokenizer",
      "splits text unlike every tokenizer that llama.cpp has for these models (Qwen, Llama 3, Mistral's tekken, GPT-2, "
      "Granite); the exported model would read other tokens");
}

void add_tokens(const TokenizerData& data, std::int64_t vocab_size, std::vector<KeyValue>& out) {
  std::vector<std::string> texts;
  std::vector<std::int32_t> kinds;
  std::vector<float> scores;
  for (std::int64_t id = 0; id < vocab_size; ++id) {
    const bool is_there = id < std::ssize(data.tokens) && !data.tokens[static_cast<std::size_t>(id)].text.empty();
    const tokenizer::TokenData token =
        is_there ? data.tokens[static_cast<std::size_t>(id)] : tokenizer::TokenData{fmt::format("[PAD{}]", id)};
    texts.push_back(token.text);
    kinds.push_back(static_cast<std::int32_t>(token.kind) + 1);
    scores.push_back(token.score);
  }
  out.push_back({"tokenizer.ggml.tokens", std::move(texts)});
  out.push_back({"tokenizer.ggml.token_type", std::move(kinds)});
  if (data.model == tokenizer::TokenizerModel::kSentencePieceBpe)
    out.push_back({"tokenizer.ggml.scores", std::move(scores)});
}

/// All stop tokens, including `more`; the one that ends an answer comes first.
std::vector<std::int32_t> ordered_stop_ids(const tokenizer::Tokenizer& tokenizer,
                                           const tokenizer::ChatTemplate* chat_template,
                                           const std::vector<std::int32_t>& more) {
  std::vector<std::int32_t> ids = tokenizer::stop_token_ids(tokenizer, chat_template);
  for (const std::int32_t id : more) {
    if (std::ranges::count(ids, id) == 0 && id >= 0 && id < tokenizer.vocab_size()) ids.push_back(id);
  }
  const auto bring_forward = [&](std::optional<std::int32_t> id) {
    const auto at = id ? std::find(ids.begin(), ids.end(), *id) : ids.end();
    if (at != ids.end()) std::rotate(ids.begin(), at, at + 1);
  };
  bring_forward(tokenizer.eos_id());
  if (chat_template != nullptr) bring_forward(tokenizer::end_of_turn(*chat_template, tokenizer).id);
  return ids;
}

void add_stop_tokens(const tokenizer::Tokenizer& tokenizer, const tokenizer::ChatTemplate* chat_template,
                     const std::vector<std::int32_t>& more, std::vector<KeyValue>& out) {
  constexpr const char* kKeys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                   "tokenizer.ggml.eom_token_id"};
  const std::vector<std::int32_t> ids = ordered_stop_ids(tokenizer, chat_template, more);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i < std::size(kKeys)) {
      out.push_back({kKeys[i], static_cast<std::uint32_t>(ids[i])});
    } else {
      log_warning("stop token {} ({}): GGUF has room for three, and this one is left out",
                  tokenizer.id_to_token(ids[i]), ids[i]);
    }
  }
}

void add_id(const char* key, std::optional<std::int32_t> id, std::vector<KeyValue>& out) {
  if (id) out.push_back({key, static_cast<std::uint32_t>(*id)});
}

/// The keys "tokenizer.*" of the tokenizer in `folder`; the end tokens of generation_config.json may be in
/// `generation_folder` instead. Pads the list of tokens to vocab_size, the rows of the embedding. eos_token_id is the
/// token that ends an answer of the chat template, if there is one; other stop tokens (tokenizer::stop_token_ids)
/// follow as eot_token_id and eom_token_id, with a warning for a fourth one. Throws FormatError if llama.cpp would
/// split text differently, or if there are more tokens than rows.
std::vector<KeyValue> vocabulary_metadata(const std::filesystem::path& folder,
                                          const std::filesystem::path& generation_folder, std::int64_t vocab_size) {
  const auto tokenizer = tokenizer::Tokenizer::load(folder);
  const TokenizerData data = tokenizer::read_tokenizer_data(folder, *tokenizer);
  if (tokenizer->vocab_size() > vocab_size) {
    throw FormatError(folder.string(),
                      "the tokenizer has {} tokens, and the embedding {} rows; expected a row for each token",
                      tokenizer->vocab_size(), vocab_size);
  }
  std::vector<KeyValue> out;
  const bool is_sentencepiece = data.model == tokenizer::TokenizerModel::kSentencePieceBpe;
  out.push_back({"tokenizer.ggml.model", std::string(is_sentencepiece ? "llama" : "gpt2")});
  out.push_back({"tokenizer.ggml.pre", std::string(is_sentencepiece ? "default" : pre_tokenizer_name(data, folder))});
  add_tokens(data, vocab_size, out);
  if (is_sentencepiece) {
    out.push_back({"tokenizer.ggml.add_space_prefix", data.adds_space_prefix});
  } else {
    out.push_back({"tokenizer.ggml.merges", data.merges});
  }
  const auto chat_template = tokenizer::load_chat_template("tokenizer", folder);
  add_id("tokenizer.ggml.bos_token_id", tokenizer->bos_id(), out);
  const auto other = generation_folder == folder ? nullptr : tokenizer::load_tokenizer_if_present(generation_folder);
  add_stop_tokens(*tokenizer, chat_template.get(), other ? other->generation_eos_ids() : std::vector<std::int32_t>(),
                  out);
  add_id("tokenizer.ggml.unknown_token_id", data.unk_id, out);
  add_id("tokenizer.ggml.padding_token_id", tokenizer->pad_id(), out);
  out.push_back({"tokenizer.ggml.add_bos_token", tokenizer->adds_bos()});
  out.push_back({"tokenizer.ggml.add_eos_token", false});
  if (chat_template) out.push_back({"tokenizer.chat_template", chat_template->source()});
  return out;
}

/// The stored type of the model's matrices.
TensorType stored_type(const lora::MergedWeights& merged) {
  const DType dtype = merged.dtype_of(model::linear_tensors(merged.config()).front().name, std::nullopt);
  return dtype == DType::kF32 ? TensorType::kF32 : dtype == DType::kF16 ? TensorType::kF16 : TensorType::kBF16;
}

/// The tensors of a model, each computed as it is written.
class ModelTensors {
 public:
  ModelTensors(const ExportRequest& request, lora::MergedWeights& merged, ExportResult& result)
      : request_(request), merged_(merged), result_(result) {}

  std::vector<Tensor> list() {
    std::vector<Tensor> tensors;
    for (const auto& expected : model::expected_tensors(merged_.config())) {
      const bool is_matrix = expected.shape.size() > 1 && expected.kind != model::WeightKind::kConvolution;
      Tensor tensor{gguf_name(merged_.config(), expected.name),
                    is_matrix ? type_of(expected.shape) : TensorType::kF32,
                    shape_of(expected),
                    {}};
      if (is_matrix && tensor.type != result_.type) ++result_.num_other_type;
      tensor.produce = [this, expected, type = tensor.type](const Tensor::Write& write) {
        produce(expected, type, write);
      };
      tensors.push_back(std::move(tensor));
    }
    if (const std::vector<float> factors = rope_factors(merged_.config()); !factors.empty()) {
      tensors.push_back(
          {"rope_freqs.weight", TensorType::kF32, {std::ssize(factors)}, [factors](const Tensor::Write& write) {
             write({reinterpret_cast<const char*>(factors.data()), factors.size() * sizeof(float)});
           }});
    }
    result_.num_tensors = std::ssize(tensors);
    return tensors;
  }

 private:
  /// A convolution [channels, 1, taps] is a matrix.
  std::vector<std::int64_t> shape_of(const model::TensorSpec& expected) const {
    std::vector<std::int64_t> shape = merged_.shape_of(expected.name);
    if (expected.kind == model::WeightKind::kConvolution) shape.erase(shape.begin() + 1);
    return shape;
  }

  TensorType type_of(const std::vector<std::int64_t>& shape) const {
    return result_.type == TensorType::kQ8_0 && shape.back() % kBlock != 0 ? TensorType::kF16 : result_.type;
  }

  void produce(const model::TensorSpec& expected, TensorType type, const Tensor::Write& write) {
    throw_if_stop_requested();
    if (request_.progress) request_.progress(num_done_, result_.num_tensors, expected.name);
    ++num_done_;
    const DType dtype =
        merged_.is_computed(expected.name) ? DType::kF32 : merged_.dtype_of(expected.name, std::nullopt);
    const auto shape = shape_of(expected);
    // A vector is one column, so that its elements can be reordered like rows.
    Rows rows{merged_.bytes(expected.name, dtype), dtype, shape[0], shape.size() > 1 ? shape[1] : 1};
    rows.row_order = row_order(merged_.config(), expected.name, shape[0]);
    rows.column_order = column_order(merged_.config(), expected.name);
    if (expected.kind == model::WeightKind::kDecayRate) rows.map = [](float value) { return -std::exp(value); };
    if (expected.kind == model::WeightKind::kNorm)
      rows.offset = static_cast<float>(merged_.config().norm_weight_offset);
    write_rows(rows, expected.name, type, write);
  }

  const ExportRequest& request_;
  lora::MergedWeights& merged_;
  ExportResult& result_;
  std::int64_t num_done_ = 0;
};

void check_request(const ExportRequest& request, const lora::AdapterConfig& adapter) {
  if (request.type && *request.type != TensorType::kF32 && *request.type != TensorType::kF16) {
    throw ConfigError("--type", "an adapter is exported as f32 or f16; for {} merge it into the model with --merge",
                      row_of(*request.type).name);
  }
  if (adapter.token_rows.empty()) return;
  throw FormatError(
      (request.adapter / storage::kAdapterConfigFile).string() + ": trainable_token_indices",
      "a GGUF adapter cannot hold trained token rows; export the model with the adapter merged in: --merge");
}

/// llama.cpp scales a linear by alpha / R. There, 0 would mean a scale of 1.
double alpha_of(const model::AdapterSpec& spec) { return spec.scale * static_cast<double>(spec.rank); }

double common_alpha(const std::vector<model::AdapterSpec>& specs) {
  for (const auto& spec : specs) {
    if (alpha_of(spec) != 0) return alpha_of(spec);
  }
  return 1;
}

/// The factor for B that makes alpha / R this linear's scale; exactly 1 if they agree.
float factor_of(const model::AdapterSpec& spec, double alpha) {
  const double factor = alpha_of(spec) / alpha;
  return std::abs(factor - 1) < 1e-12 ? 1 : static_cast<float>(factor);
}

/// A and B of every linear.
std::vector<Tensor> adapter_tensors_of(const std::vector<model::AdapterSpec>& specs, const model::ModelConfig& config,
                                       const storage::WeightFiles& file, double alpha, const ExportRequest& request) {
  std::vector<Tensor> tensors;
  for (const auto& spec : specs) {
    const std::string path = model::linear_path(spec), weight = path + ".weight";
    for (const char* side : {"A", "B"}) {
      const storage::TensorEntry& entry = *file.find(fmt::format("base_model.model.{}.lora_{}.weight", path, side));
      const bool is_b = *side == 'B';
      Rows rows{{}, entry.dtype, entry.shape[0], entry.shape[1]};
      if (is_b) rows.row_order = row_order(config, weight, rows.num_rows);
      if (!is_b) rows.column_order = column_order(config, weight);
      if (is_b) rows.factor = factor_of(spec, alpha);
      const TensorType type = request.type.value_or(TensorType::kF32);
      tensors.push_back({gguf_name(config, weight) + (is_b ? ".lora_b" : ".lora_a"), type, entry.shape,
                         [&file, &entry, rows, type](const Tensor::Write& write) {
                           throw_if_stop_requested();
                           Rows now = rows;
                           now.bytes = file.bytes(entry);
                           write_rows(now, file.where(entry), type, write);
                           file.release(entry);
                         }});
    }
  }
  return tensors;
}

}  // namespace

ExportResult export_model(const ExportRequest& request) {
  lora::MergedWeights merged(request.model, request.adapter, request.decode, request.onto);
  check_architecture(merged.config());
  ExportResult result;
  result.type = request.type.value_or(stored_type(merged));
  result.num_merged = merged.num_merged();
  std::vector<KeyValue> metadata = {{"general.architecture", architecture_name(merged.config())},
                                    {"general.type", std::string("model")},
                                    {"general.name", request.name},
                                    {"general.file_type", row_of(result.type).file_type},
                                    {"general.quantization_version", std::uint32_t{2}}};
  std::ranges::move(architecture_metadata(merged.config()), std::back_inserter(metadata));
  const auto tokenizer =
      request.adapter.empty() ? request.model : lora::merged_tokenizer_folder(request.model, request.adapter);
  const auto generation = std::filesystem::exists(tokenizer / storage::kGenerationFile) ? tokenizer : request.model;
  std::ranges::move(vocabulary_metadata(tokenizer, generation, merged.config().vocab_size),
                    std::back_inserter(metadata));
  ModelTensors tensors(request, merged, result);
  result.num_bytes = write_gguf(request.file, metadata, tensors.list());
  return result;
}

ExportResult export_adapter(const ExportRequest& request) {
  const model::ModelConfig config = model::read_model_config(request.model);
  const lora::AdapterConfig adapter = lora::read_adapter_config(request.adapter);
  check_request(request, adapter);
  check_architecture(config);
  lora::check_patterns(adapter, config);
  const std::vector<model::AdapterSpec> specs = lora::plan_adapters(adapter, config);
  const storage::WeightFiles file =
      lora::open_adapter_tensors(request.adapter, model::adapter_parameters(model::model_shape(config, specs)));
  const double alpha = common_alpha(specs);
  ExportResult result;
  result.type = request.type.value_or(TensorType::kF32);
  const std::vector<KeyValue> metadata = {{"general.architecture", architecture_name(config)},
                                          {"general.type", std::string("adapter")},
                                          {"general.name", request.name},
                                          {"adapter.type", std::string("lora")},
                                          {"adapter.lora.alpha", static_cast<float>(alpha)}};
  const std::vector<Tensor> tensors = adapter_tensors_of(specs, config, file, alpha, request);
  result.num_tensors = std::ssize(tensors);
  result.num_bytes = write_gguf(request.file, metadata, tensors);
  return result;
}

}  // namespace lora_train::gguf
