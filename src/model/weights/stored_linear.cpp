// Finds and checks the tensors of one linear, and reads bitsandbytes' quant_state.
#include "lora_train/model/weights/stored_linear.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>

#include "families/config_reader.h"
#include "lora_train/base/ceil_div.h"
#include "lora_train/base/error.h"
#include "lora_train/base/text.h"
#include "lora_train/storage/model_weights.h"
#include "weight_checks.h"

namespace lora_train::model {
namespace {

using storage::DType;
using storage::TensorEntry;

// The values of bitsandbytes and DeepSeek.
constexpr std::int64_t kBlockSize = 64, kNestedBlockSize = 256, kFp8Block = 128;

LinearFormat linear_format(BasePrecision precision) {
  switch (precision) {
    case BasePrecision::kInt8: return LinearFormat::kInt8;
    case BasePrecision::kFp8: return LinearFormat::kFp8;
    default: return LinearFormat::k4Bit;
  }
}

std::string_view plain_name(DType dtype) {
  if (dtype == DType::kF32) return "fp32";
  return dtype == DType::kBF16 ? "bf16" : "fp16";
}

// The quantisation state of a linear, after its name and a dot.
constexpr const char *kAbsmax = "weight.absmax", *kQuantMap = "weight.quant_map";
constexpr const char *kNestedAbsmax = "weight.nested_absmax", *kNestedQuantMap = "weight.nested_quant_map";
constexpr const char* kNf4State = "weight.quant_state.bitsandbytes__nf4";
constexpr const char* kFp4State = "weight.quant_state.bitsandbytes__fp4";
constexpr std::array kStateKeys = {"quant_type", "blocksize", "dtype", "shape"};
constexpr std::array kNestedStateKeys = {"nested_blocksize", "nested_dtype", "nested_offset"};
constexpr const char *kScb = "SCB", *kWeightFormat = "weight_format";
constexpr const char *kWeightScaleInv = "weight_scale_inv", *kWeightScale = "weight_scale";

constexpr const char* k4BitParts[] = {kAbsmax, kQuantMap, kNestedAbsmax, kNestedQuantMap, kNf4State, kFp4State};
constexpr const char* kInt8Parts[] = {kScb, kWeightFormat};
constexpr const char* kFp8Parts[] = {kWeightScaleInv, kWeightScale};
// Scales of activations, for servers that compute in 8 bits. Not read.
constexpr const char* kOtherParts[] = {"input_scale", "activation_scale", "output_scale"};

struct Format {
  LinearFormat format;
  const char* name;
  std::span<const char* const> parts;
};
constexpr Format kFormats[] = {{LinearFormat::k4Bit, "nf4", k4BitParts},
                               {LinearFormat::kInt8, "int8", kInt8Parts},
                               {LinearFormat::kFp8, "fp8", kFp8Parts},
                               {LinearFormat::kPlain, "", kOtherParts}};

std::string part_name(const std::string& weight, const char* part) {
  return weight.substr(0, weight.size() - std::strlen("weight")) + part;
}

std::vector<const TensorEntry*> parts_of(const std::string& weight, std::span<const char* const> names,
                                         const storage::WeightFiles& files) {
  std::vector<const TensorEntry*> found;
  for (const char* name : names) {
    if (const auto* entry = files.find(part_name(weight, name))) found.push_back(entry);
  }
  return found;
}

nlohmann::json parse_state(std::string_view text, const std::string& where) {
  constexpr std::size_t kMaxBytes = 4096;  // bitsandbytes writes about 200
  if (text.size() <= kMaxBytes) {
    nlohmann::json document = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (document.is_object()) return document;
  }
  throw FormatError(where, "is not a JSON object of at most {} bytes, as a quant_state must be{}", kMaxBytes, kAgain);
}

std::int64_t block_size(const ConfigReader& reader, const char* key) {
  const std::int64_t size = reader.size(key, std::int64_t{1} << 40);
  if (size < 32 || size > 4096 || !std::has_single_bit(static_cast<std::uint64_t>(size))) {
    reader.reject(key, "is {}; a power of two from 32 to 4096 was expected", size);
  }
  return size;
}

/// Reads scales or a map, in F32, BF16 or F8_E8M0. Throws FormatError at NaN or infinity.
void require_finite(const TensorEntry& entry, const storage::WeightFiles& files) {
  const std::string_view bytes = files.bytes(entry);
  const std::size_t width = entry.dtype == DType::kF32 ? 4 : entry.dtype == DType::kBF16 ? 2 : 1;
  // The exponent is in the last two bytes, sign first; F8_E8M0 is only an exponent.
  const auto is_finite = [&](std::size_t i) {
    std::uint16_t high = 0;
    if (width == 1) return static_cast<unsigned char>(bytes[i]) != 0xFF;
    std::memcpy(&high, bytes.data() + (i + 1) * width - 2, 2);
    return (high & 0x7F80) != 0x7F80;
  };
  for (std::size_t i = 0; i < bytes.size() / width; ++i) {
    if (!is_finite(i)) {
      throw FormatError(files.where(entry), "value {} is NaN or infinity; every scale must be finite{}", i, kAgain);
    }
  }
  files.release(entry);
}

/// Recognises and reads one linear, except the values of its scales. All functions throw FormatError.
class LinearReader {
 public:
  LinearReader(const ModelConfig& config, const TensorSpec& spec, const storage::WeightFiles& files)
      : config_(config), spec_(spec), files_(files), weight_(require_weight(spec, config, files)) {}

  /// Format, its name, sizes and weight. Reads no data.
  StoredLinear recognise() const {
    StoredLinear linear;
    linear.out_features = spec_.shape[0];
    linear.in_features = spec_.shape[1];
    linear.weight = &weight_;
    for (const Format& format : kFormats) {
      if (format.format == LinearFormat::kPlain || parts_of(spec_.name, format.parts, files_).empty()) continue;
      if (linear.format != LinearFormat::kPlain) reject(weight_, "comes with tensors that belong to different formats");
      linear.format = format.format;
      linear.format_name = format.name;
    }
    if (linear.format == LinearFormat::k4Bit) {
      const TensorEntry* const state = either(kNf4State, kFp4State);
      if (state != nullptr && state->name.ends_with("fp4")) linear.format_name = "fp4";
    }
    if (linear.format != LinearFormat::kPlain) return linear;
    if (!storage::is_weight_dtype(weight_.dtype) || is_packed()) {
      reject(weight_,
             "is {} without scales; expected {} in F32, F16 or BF16, or codes with the tensors that bitsandbytes (nf4, "
             "fp4, int8) or FP8 (F8_E4M3 and weight_scale_inv or weight_scale) stores beside them",
             describe(weight_), show_shape(spec_.shape));
    }
    linear.format_name = plain_name(weight_.dtype);
    return linear;
  }

  StoredLinear read() const {
    StoredLinear linear = recognise();
    linear.names = quantised_parts(spec_.name, files_);
    require_agreement(linear);
    switch (linear.format) {
      case LinearFormat::kPlain: require_shape(spec_, weight_, config_, files_); break;
      case LinearFormat::k4Bit: read_4bit(linear); break;
      case LinearFormat::kInt8: read_int8(linear); break;
      case LinearFormat::kFp8: read_fp8(linear); break;
    }
    return linear;
  }

 private:
  template <class... Args>
  [[noreturn]] void reject(const TensorEntry& entry, fmt::format_string<Args...> what, Args&&... args) const {
    throw FormatError(files_.where(entry), "{}{}", fmt::format(what, std::forward<Args>(args)...), kAgain);
  }

  void require_agreement(const StoredLinear& linear) const {
    const QuantizationConfig& said = config_.quantization;
    const bool is_of_type = said.quant_type.empty() || said.quant_type == linear.format_name;
    if (linear.format == LinearFormat::kPlain || (linear.format == said.format && is_of_type)) return;
    throw FormatError(files_.where(weight_), "is stored as {}, but {}{}: config and weights do not belong together",
                      linear.format_name, config_.path.string(),
                      said.format == LinearFormat::kPlain ? " has no quantization_config"
                                                          : ": quantization_config says " + said.description);
  }

  void read_4bit(StoredLinear& linear) const {
    const TensorEntry* const any_state = either(kNf4State, kFp4State);
    const TensorEntry& entry = any_state != nullptr ? *any_state : require(kNf4State);
    require_layout(entry, DType::kU8, {static_cast<std::int64_t>(entry.num_bytes())},
                   "the JSON of a quant_state as bytes");
    const ConfigReader state(parse_state(files_.bytes(entry), files_.where(entry)), files_.where(entry));
    for (const std::string& key : state.keys()) {
      if (std::ranges::count(kStateKeys, key) + std::ranges::count(kNestedStateKeys, key) == 0)
        state.reject(key, "is not a key of a quant_state");
    }
    require_keys(state, kStateKeys);
    state.one_of("dtype", {"float32", "float16", "bfloat16"}, "");
    if (state.one_of("quant_type", {"nf4", "fp4"}, "") != linear.format_name) {
      state.reject("quant_type", "is not {}, which the name of the tensor says{}", linear.format_name, kAgain);
    }
    if (const auto shape = state.ids("shape"); shape != spec_.shape) {
      state.reject("shape", "is {} but {} asks for {}: config and weights do not belong together", show_shape(shape),
                   config_.path.string(), show_shape(spec_.shape));
    }
    if (!is_packed()) {
      reject(weight_, "is {}; 4-bit weights of {} are packed to U8 [{}, 1] or the same bytes under another dtype",
             describe(weight_), show_shape(spec_.shape), ceil_div(num_weights(), 2));
    }
    linear.block_size = block_size(state, "blocksize");
    linear.map = &require(kQuantMap, DType::kF32, {kMapSize}, "a map of 4-bit codes");
    const bool is_nested = std::ranges::any_of(kNestedStateKeys, [&](auto* key) { return state.is_given(key); });
    if (is_nested) {
      require_keys(state, kNestedStateKeys);
      read_nested(state, linear);
    } else if (!parts_of(spec_.name, std::array{kNestedAbsmax, kNestedQuantMap}, files_).empty()) {
      reject(entry, "has no nested_blocksize, but there are nested scales");
    }
    linear.scales =
        &require(kAbsmax, is_nested ? DType::kU8 : DType::kF32, {linear.num_scales()},
                 fmt::format("{} for each {} weights", is_nested ? "a code" : "a scale", linear.block_size));
  }

  static void require_keys(const ConfigReader& state, std::span<const char* const> keys) {
    for (const char* const key : keys) {
      if (!state.is_given(key)) state.reject(key, "is missing from the quant_state{}", kAgain);
    }
  }

  void read_nested(const ConfigReader& state, StoredLinear& linear) const {
    state.one_of("nested_dtype", {"float32"}, "");
    linear.nested_block_size = block_size(state, "nested_blocksize");
    linear.nested_offset = static_cast<float>(state.optional_number("nested_offset").value_or(HUGE_VAL));
    if (!std::isfinite(linear.nested_offset)) state.reject("nested_offset", "is missing or beyond fp32{}", kAgain);
    linear.nested_scales =
        &require(kNestedAbsmax, DType::kF32, {ceil_div(linear.num_scales(), linear.nested_block_size)},
                 fmt::format("a scale for each {} codes of absmax", linear.nested_block_size));
    linear.nested_map = &require(kNestedQuantMap, DType::kF32, {kNestedMapSize}, "a map of 8-bit codes");
  }

  void read_int8(StoredLinear& linear) const {
    if (const auto* layout = find(kWeightFormat)) {
      if (layout->dtype != DType::kU8 || layout->num_elements() != 1 || files_.bytes(*layout)[0] != 0) {
        reject(
            *layout,
            "is {}; one U8 of 0 was expected: only int8 weights in rows are supported, as bitsandbytes 0.45 saves them",
            describe(*layout));
      }
    }
    linear.scales = &require(kScb, DType::kF32, {linear.out_features}, "a scale for each row");
    require_layout(weight_, DType::kI8, spec_.shape, "with SCB, an int8 weight");
  }

  void read_fp8(StoredLinear& linear) const {
    linear.scales = either(kWeightScaleInv, kWeightScale);
    if (weight_.dtype != DType::kF8E4M3) {
      reject(weight_, "has dtype {} with scales {}; with such scales, only F8_E4M3 weights are supported",
             storage::dtype_name(weight_.dtype), linear.scales->name);
    }
    require_shape(spec_, weight_, config_, files_);
    const DType dtype = linear.scales->dtype;
    if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF8E8M0) {
      reject(*linear.scales, "is {}; scales in F32, BF16 or F8_E8M0 were expected", describe(*linear.scales));
    }
    read_scale_blocks(*linear.scales, linear);
  }

  void read_scale_blocks(const TensorEntry& scales, StoredLinear& linear) const {
    struct Blocks {
      std::vector<std::int64_t> shape;  ///< of the scales
      std::int64_t rows, columns;       ///< weights of one scale
    };
    const QuantizationConfig& said = config_.quantization;
    const std::int64_t O = linear.out_features, D = linear.in_features;
    std::vector<Blocks> all;
    if (said.block_rows > 0) {
      all.push_back(
          {{ceil_div(O, said.block_rows), ceil_div(D, said.block_columns)}, said.block_rows, said.block_columns});
    }
    if (!said.has_only_blocks) {
      all.insert(all.end(), {{{}, O, D}, {{1}, O, D}, {{1, 1}, O, D}, {{O}, 1, D}, {{O, 1}, 1, D}});
    }
    std::vector<std::string> expected;
    for (const Blocks& blocks : all) {
      if (scales.shape == blocks.shape) {
        linear.block_rows = blocks.rows;
        linear.block_columns = blocks.columns;
        return;
      }
      expected.push_back(show_shape(blocks.shape));
    }
    reject(scales, "has shape {}; for weights of {}, {} was expected", show_shape(scales.shape),
           show_shape(spec_.shape), join(expected, " or "));
  }

  const TensorEntry* find(const char* part) const {
    const auto found = parts_of(spec_.name, {&part, 1}, files_);
    return found.empty() ? nullptr : found.front();
  }

  /// The one of two parts that there is, or null.
  const TensorEntry* either(const char* one, const char* other) const {
    const TensorEntry *const first = find(one), *const second = find(other);
    if (first != nullptr && second != nullptr) reject(*second, "is present together with {}", first->name);
    return first != nullptr ? first : second;
  }

  const TensorEntry& require(const char* part) const {
    if (const auto* entry = find(part)) return *entry;
    throw FormatError(fmt::format("{}: {}.{}", files_.files()[weight_.file].path().string(), spec_.module(), part),
                      std::string("the tensor is missing, though others of the quantised weight are there") + kAgain);
  }

  const TensorEntry& require(const char* part, DType dtype, const std::vector<std::int64_t>& shape,
                             const std::string& what) const {
    const TensorEntry& entry = require(part);
    require_layout(entry, dtype, shape, what);
    return entry;
  }

  void require_layout(const TensorEntry& entry, DType dtype, const std::vector<std::int64_t>& shape,
                      const std::string& what) const {
    if (entry.dtype == dtype && entry.shape == shape) return;
    reject(entry, "is {}; {}, {} {} was expected", describe(entry), what, storage::dtype_name(dtype),
           show_shape(shape));
  }

  /// Packed weights are a column of bytes, whatever their dtype.
  bool is_packed() const {
    return weight_.shape.size() == 2 && weight_.shape[1] == 1 &&
           weight_.num_bytes() == static_cast<std::size_t>(ceil_div(num_weights(), 2));
  }

  std::int64_t num_weights() const { return spec_.shape[0] * spec_.shape[1]; }

  const ModelConfig& config_;
  const TensorSpec& spec_;
  const storage::WeightFiles& files_;
  const TensorEntry& weight_;
};

}  // namespace

std::int64_t LinearStorage::num_scales() const {
  switch (format) {
    case LinearFormat::kPlain: return 0;
    case LinearFormat::k4Bit: return ceil_div(out_features * in_features, block_size);
    case LinearFormat::kInt8: return out_features;
    case LinearFormat::kFp8: return ceil_div(out_features, block_rows) * ceil_div(in_features, block_columns);
  }
  return 0;
}

std::int64_t LinearStorage::bytes(std::int64_t plain_element_bytes) const {
  constexpr std::int64_t kFloat = sizeof(float);
  const std::int64_t num_weights = out_features * in_features;
  if (format == LinearFormat::kPlain) return num_weights * plain_element_bytes;
  if (format != LinearFormat::k4Bit) return num_weights + num_scales() * kFloat;
  const std::int64_t codes = ceil_div(num_weights, 2) + kMapSize * kFloat;
  if (nested_block_size == 0) return codes + num_scales() * kFloat;
  return codes + num_scales() + (ceil_div(num_scales(), nested_block_size) + kNestedMapSize) * kFloat;
}

StoredLinear stored_linear(const ModelConfig& config, const TensorSpec& spec, const storage::WeightFiles& weights) {
  return LinearReader(config, spec, weights).read();
}

void require_finite_scales(const StoredLinear& linear, const storage::WeightFiles& weights) {
  const bool has_fp32_scales = linear.format != LinearFormat::kPlain && linear.nested_block_size == 0;
  for (const auto* entry : {linear.map, linear.nested_scales, linear.nested_map}) {
    if (entry != nullptr) require_finite(*entry, weights);
  }
  if (has_fp32_scales) require_finite(*linear.scales, weights);
}

std::vector<std::string> quantised_parts(const std::string& name, const storage::WeightFiles& weights) {
  std::vector<std::string> names;
  for (const Format& format : kFormats) {
    for (const char* part : format.parts) names.push_back(part_name(name, part));
  }
  std::erase_if(names, [&](const std::string& part) { return weights.find(part) == nullptr; });
  return names;
}

std::string linear_formats(const ModelConfig& config, const storage::WeightFiles& weights) {
  std::vector<std::pair<std::string_view, std::int64_t>> counts;
  for (const TensorSpec& spec : linear_tensors(config)) {
    const std::string_view name = LinearReader(config, spec, weights).recognise().format_name;
    auto at = std::find_if(counts.begin(), counts.end(), [&](const auto& count) { return count.first == name; });
    if (at == counts.end()) at = counts.insert(at, {name, 0});
    ++at->second;
  }
  std::stable_sort(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (const auto& [name, count] : counts) {
    text += fmt::format("{}{}{}{}", text.empty() ? "" : ", ", count, text.empty() ? " linears " : " ", name);
  }
  return text;
}

std::string describe(const BaseStorage& base) {
  const LinearFormat format = base.empty() ? LinearFormat::kPlain : base.begin()->second.format;
  const char* const form = format == LinearFormat::k4Bit ? "4 bits" : format == LinearFormat::kInt8 ? "int8" : "fp8";
  return fmt::format("{} linears in {}", base.size(), form);
}

BaseStorage stored_base(const ModelConfig& config, const storage::WeightFiles& weights) {
  BaseStorage base;
  for (const TensorSpec& spec : linear_tensors(config)) {
    const LinearStorage stored = stored_linear(config, spec, weights);
    if (stored.format != LinearFormat::kPlain) base[spec.module()] = stored;
  }
  return base;
}

bool has_bf16_matrices(const ModelConfig& config, const storage::WeightFiles& weights) {
  return std::ranges::all_of(expected_tensors(config), [&](const TensorSpec& spec) {
    const bool is_matrix =
        spec.kind == WeightKind::kLinear || spec.kind == WeightKind::kEmbedding || spec.kind == WeightKind::kHead;
    const storage::TensorEntry* const entry = weights.find(spec.name);
    return !is_matrix || (entry != nullptr && entry->dtype == storage::DType::kBF16);
  });
}

LinearStorage quantised_storage(LinearFormat format, std::int64_t out_features, std::int64_t in_features, bool nested) {
  LinearStorage storage{.format = format, .out_features = out_features, .in_features = in_features};
  if (format == LinearFormat::k4Bit) {
    storage.block_size = kBlockSize;
    storage.nested_block_size = nested ? kNestedBlockSize : 0;
  } else if (format == LinearFormat::kFp8) {
    storage.block_rows = storage.block_columns = kFp8Block;
  }
  return storage;
}

BaseStorage base_storage(const ModelSection& section, const ModelConfig& config, const storage::WeightFiles& weights) {
  check_weights(config, weights);
  BaseStorage stored = stored_base(config, weights);
  if (!section.is_quantised()) return stored;
  const LinearFormat requested = linear_format(section.base_precision);
  for (const auto& [name, storage] : stored) {
    if (storage.format == requested) continue;
    throw ConfigError("base_precision", config.path.parent_path().string() + " is quantised already (" +
                                            config.quantization.description + ": " + name +
                                            "), and is not converted to " + to_string(section.base_precision) +
                                            "; remove base_precision, or use a folder that is not quantised");
  }
  if (!stored.empty()) return stored;  // linears that such a folder leaves plain are plain on purpose
  return base_storage(section, config);
}

BaseStorage base_storage(const ModelSection& section, const ModelConfig& config) {
  BaseStorage kept;
  if (!section.is_quantised()) return kept;
  const LinearFormat format = linear_format(section.base_precision);
  for (const auto& spec : linear_tensors(config)) {
    kept[spec.module()] = quantised_storage(format, spec.shape[0], spec.shape[1], section.double_quant);
  }
  return kept;
}

}  // namespace lora_train::model
