// Finds and checks the tensors of one linear, and reads bitsandbytes' quant_state.
#include "linear_reader.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "families/config_reader.h"
#include "lora_train/base/ceil_div.h"
#include "lora_train/base/error.h"
#include "lora_train/model/weights/stored_linear.h"
#include "lora_train/storage/model_weights.h"

namespace lora_train::model {
namespace {

constexpr std::size_t kMaxBytes = 4096;  // bitsandbytes writes about 200
constexpr const char* kKeys[] = {"quant_type", "blocksize", "dtype", "shape"};
constexpr const char* kNestedKeys[] = {"nested_blocksize", "nested_dtype", "nested_offset"};
constexpr const char* kAgain = ": quantise the model again, or use the unquantised model";

nlohmann::json parse(std::string_view text, const std::string& where) {
  if (text.size() > kMaxBytes) {
    throw FormatError(where, "has {} bytes; the JSON of a quant_state has at most {}{}", text.size(), kMaxBytes,
                      kAgain);
  }
  try {
    nlohmann::json document = nlohmann::json::parse(text);
    if (document.is_object()) return document;
  } catch (const nlohmann::json::exception&) {
  }
  throw FormatError(where, std::string("is not a JSON object, as the bytes of a quant_state must be") + kAgain);
}

void require_keys(const ConfigReader& reader) {
  const auto is_known = [](const auto& keys, const std::string& key) {
    return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
  };
  for (const auto& key : reader.keys()) {
    if (!is_known(kKeys, key) && !is_known(kNestedKeys, key)) reader.reject(key, "is not a key of a quant_state");
  }
  for (const char* key : kKeys) {
    if (!reader.is_given(key)) reader.reject(key, std::string("is missing from the quant_state") + kAgain);
  }
  const auto num_nested = std::count_if(std::begin(kNestedKeys), std::end(kNestedKeys),
                                        [&](const char* key) { return reader.is_given(key); });
  for (const char* key : kNestedKeys) {
    if (num_nested > 0 && !reader.is_given(key)) {
      reader.reject(key, std::string("is missing, although other nested-scale keys are present") + kAgain);
    }
  }
}

std::int64_t block_size(const ConfigReader& reader, const char* key) {
  const std::int64_t size = reader.size(key, std::int64_t{1} << 40);
  if (size < 32 || size > 4096 || !std::has_single_bit(static_cast<std::uint64_t>(size))) {
    reader.reject(key, "is {}; a power of two from 32 to 4096 was expected", size);
  }
  return size;
}

using storage::DType;
using storage::TensorEntry;

std::string_view plain_name(DType dtype) {
  if (dtype == DType::kF32) return "fp32";
  return dtype == DType::kBF16 ? "bf16" : "fp16";
}

/// Packed weights are a column of bytes, whatever their dtype.
bool is_packed(const TensorEntry& entry, std::int64_t num_weights) {
  return entry.shape.size() == 2 && entry.shape[1] == 1 &&
         entry.num_bytes() == static_cast<std::size_t>(ceil_div(num_weights, 2));
}

struct QuantState {
  std::string quant_type;  ///< "nf4", "fp4"
  std::int64_t block_size = 0;
  std::int64_t nested_block_size = 0;  ///< 0: scales are not nested
  double nested_offset = 0;
  std::vector<std::int64_t> shape;
};

/// Throws FormatError for text that is not such JSON, a key that is missing, unknown or of the wrong type, and a block
/// size that bitsandbytes does not allow.
QuantState parse_quant_state(std::string_view json, const std::string& where) {
  const ConfigReader reader(parse(json, where), where);
  require_keys(reader);
  reader.one_of("dtype", {"float32", "float16", "bfloat16"}, "");
  QuantState state;
  state.quant_type = reader.one_of("quant_type", {"nf4", "fp4"}, "");
  state.block_size = block_size(reader, "blocksize");
  state.shape = reader.ids("shape");
  if (!reader.is_given("nested_blocksize")) return state;
  reader.one_of("nested_dtype", {"float32"}, "");
  state.nested_block_size = block_size(reader, "nested_blocksize");
  state.nested_offset = *reader.optional_number("nested_offset");
  return state;
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

// The quantisation state of a linear, after its name and a dot.
constexpr const char* kAbsmax = "weight.absmax";
constexpr const char* kQuantMap = "weight.quant_map";
constexpr const char* kNestedAbsmax = "weight.nested_absmax";
constexpr const char* kNestedQuantMap = "weight.nested_quant_map";
constexpr const char* kNf4State = "weight.quant_state.bitsandbytes__nf4";
constexpr const char* kFp4State = "weight.quant_state.bitsandbytes__fp4";
constexpr const char* kScb = "SCB";
constexpr const char* kWeightFormat = "weight_format";
constexpr const char* kWeightScaleInv = "weight_scale_inv";
constexpr const char* kWeightScale = "weight_scale";
constexpr const char* k4BitParts[] = {kAbsmax, kQuantMap, kNestedAbsmax, kNestedQuantMap, kNf4State, kFp4State};
constexpr const char* kInt8Parts[] = {kScb, kWeightFormat};
constexpr const char* kFp8Parts[] = {kWeightScaleInv, kWeightScale};
// Scales of activations, for servers that compute in 8 bits.
constexpr const char* kUnreadParts[] = {"input_scale", "activation_scale", "output_scale"};

/// The quantisation state of a weight.
class Parts {
 public:
  Parts(const std::string& weight, const storage::WeightFiles& files)
      : prefix_(weight.substr(0, weight.size() - std::strlen("weight"))), files_(files) {}

  std::string full_name(const std::string& part) const { return prefix_ + part; }
  const storage::TensorEntry* find(const std::string& part) const { return files_.find(prefix_ + part); }
  template <typename Names>
  const storage::TensorEntry* first_of(const Names& parts) const {
    for (const char* part : parts) {
      if (const auto* entry = find(part)) return entry;
    }
    return nullptr;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    const auto add = [&](const auto& parts) {
      for (const char* part : parts) {
        if (const auto* entry = find(part)) all.push_back(entry->name);
      }
    };
    add(k4BitParts), add(kInt8Parts), add(kFp8Parts), add(kUnreadParts);
    return all;
  }

 private:
  std::string prefix_;
  const storage::WeightFiles& files_;
};

/// Recognises and reads one linear, except the values of its scales. All functions throw FormatError.
class LinearReader {
 public:
  LinearReader(const ModelConfig& config, const TensorSpec& spec, const storage::WeightFiles& files)
      : config_(config),
        spec_(spec),
        files_(files),
        weight_(require_weight(spec, config, files)),
        parts_(spec.name, files) {}

  /// Format, its name, sizes and weight. Reads no data.
  StoredLinear recognise() const {
    StoredLinear linear;
    linear.out_features = spec_.shape[0];
    linear.in_features = spec_.shape[1];
    linear.weight = &weight_;
    const std::array parts{parts_.first_of(k4BitParts), parts_.first_of(kInt8Parts), parts_.first_of(kFp8Parts)};
    const TensorEntry* first = nullptr;
    for (const TensorEntry* part : parts) {
      if (part == nullptr) continue;
      if (first != nullptr) {
        reject(weight_, "comes with {} and {}, which belong to different formats{}", first->name, part->name, kAgain);
      }
      first = part;
    }
    if (first == nullptr) {
      if (!storage::is_weight_dtype(weight_.dtype) || is_packed(weight_, num_weights())) refuse_unknown();
      linear.format_name = plain_name(weight_.dtype);
    } else if (first == parts[0]) {
      const auto* nf4 = parts_.find(kNf4State);
      const auto* fp4 = parts_.find(kFp4State);
      if (nf4 != nullptr && fp4 != nullptr) {
        reject(*fp4, "is present together with {}; only one may say how the weight is stored{}", nf4->name, kAgain);
      }
      linear.format = LinearFormat::k4Bit;
      linear.format_name = fp4 != nullptr ? "fp4" : "nf4";
    } else {
      linear.format = first == parts[1] ? LinearFormat::kInt8 : LinearFormat::kFp8;
      linear.format_name = first == parts[1] ? "int8" : "fp8";
    }
    return linear;
  }

  void require_agreement(const StoredLinear& linear) const {
    const QuantizationConfig& said = config_.quantization;
    const bool is_of_type = said.quant_type.empty() || said.quant_type == linear.format_name;
    const bool agrees = linear.format == LinearFormat::kPlain ||
                        (linear.format == LinearFormat::k4Bit && said.method == QuantMethod::kBnb4Bit && is_of_type) ||
                        (linear.format == LinearFormat::kInt8 && said.method == QuantMethod::kBnb8Bit) ||
                        (linear.format == LinearFormat::kFp8 && said.method == QuantMethod::kFp8);
    if (agrees) return;
    const std::string says = said.method == QuantMethod::kNone ? " has no quantization_config"
                                                               : ": quantization_config says " + said.description;
    reject(weight_, "is stored as {}, but {}{}: config and weights do not belong together", linear.format_name,
           config_.path.string(), says);
  }

  void read_4bit(StoredLinear& linear) const {
    const auto* fp4 = parts_.find(kFp4State);
    const TensorEntry& entry =
        fp4 != nullptr ? *fp4 : require(kNf4State, "it, or its __fp4 counterpart, says how the 4-bit weight is stored");
    require_layout(entry, DType::kU8, {static_cast<std::int64_t>(entry.num_bytes())},
                   "the JSON of a quant_state as bytes,");
    const QuantState state = parse_quant_state(files_.bytes(entry), files_.where(entry));
    if (state.quant_type != linear.format_name) {
      throw FormatError(files_.where(entry) + ": quant_type", "is \"{}\", unlike the name of the tensor{}",
                        state.quant_type, kAgain);
    }
    if (state.shape != spec_.shape) {
      throw FormatError(files_.where(entry) + ": shape",
                        "is {} but {} asks for {}: config and weights do not belong together", show_shape(state.shape),
                        config_.path.string(), show_shape(spec_.shape));
    }
    if (!is_packed(weight_, num_weights())) {
      reject(weight_,
             "is {}; 4-bit weights of {} are packed to {} bytes, U8 [{}, 1] or the same bytes under another dtype{}",
             describe(weight_), show_shape(spec_.shape), ceil_div(num_weights(), 2), ceil_div(num_weights(), 2),
             kAgain);
    }
    linear.block_size = state.block_size;
    linear.scales = &require(kAbsmax, "it holds the scales of the 4-bit weight");
    linear.map = &require(kQuantMap, "it holds the values of the 16 codes");
    require_layout(*linear.map, DType::kF32, {kMapSize}, "a map of 4-bit codes,");
    read_nested(state, entry, linear);
    const bool is_nested = linear.nested_block_size != 0;
    require_layout(*linear.scales, is_nested ? DType::kU8 : DType::kF32, {linear.num_scales()},
                   fmt::format("{} for each {} weights,", is_nested ? "a code" : "a scale", linear.block_size));
  }

  void read_int8(StoredLinear& linear) const {
    linear.scales = &require(kScb, "it holds a scale for each row of the int8 weight");
    if (const auto* layout = parts_.find(kWeightFormat)) {
      if (layout->dtype != DType::kU8 || layout->num_elements() != 1) {
        reject(*layout, "is {}; one U8 was expected{}", describe(*layout), kAgain);
      }
      constexpr const char* kLayouts[] = {"row", "col32", "col_turing", "col_ampere"};
      const auto code = static_cast<unsigned char>(files_.bytes(*layout)[0]);
      if (code != 0) {
        reject(*layout, "is {}{}; only 0 (row) is supported: save the model again with bitsandbytes 0.45 or later",
               code, code < 4 ? fmt::format(" ({})", kLayouts[code]) : "");
      }
    }
    require_layout(weight_, DType::kI8, spec_.shape, "with SCB, an int8 weight,");
    require_layout(*linear.scales, DType::kF32, {linear.out_features}, "a scale for each row,");
  }

  void read_fp8(StoredLinear& linear) const {
    const auto* inverse = parts_.find(kWeightScaleInv);
    const auto* scale = parts_.find(kWeightScale);
    if (inverse != nullptr && scale != nullptr) {
      reject(*scale, "is present together with {}; only one may hold the scales{}", inverse->name, kAgain);
    }
    linear.scales = inverse != nullptr ? inverse : scale;
    if (weight_.dtype != DType::kF8E4M3) {
      reject(weight_, "has dtype {} with scales {}; with such scales, only F8_E4M3 weights are supported{}",
             storage::dtype_name(weight_.dtype), linear.scales->name, kAgain);
    }
    require_shape(spec_, weight_, config_, files_);
    const DType dtype = linear.scales->dtype;
    if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF8E8M0) {
      reject(*linear.scales, "is {}; scales in F32, BF16 or F8_E8M0 were expected{}", describe(*linear.scales), kAgain);
    }
    read_scale_blocks(*linear.scales, linear);
  }

  void require_plain() const { require_shape(spec_, weight_, config_, files_); }

 private:
  template <class... Args>
  [[noreturn]] void reject(const TensorEntry& entry, fmt::format_string<Args...> what, Args&&... args) const {
    throw FormatError(files_.where(entry), what, std::forward<Args>(args)...);
  }

  /// Refuses a weight that is not plain but has no quantisation state.
  [[noreturn]] void refuse_unknown() const {
    const char* const missing = "but its scales are missing:";
    if (is_packed(weight_, num_weights())) {
      reject(weight_,
             "is packed to 4 bits ({}), but its quant_state is missing: {}.absmax, .quant_map and "
             ".quant_state.bitsandbytes__nf4 or __fp4 were expected{}",
             describe(weight_), spec_.name, kAgain);
    }
    require_shape(spec_, weight_, config_, files_);
    if (weight_.dtype == DType::kI8) reject(weight_, "has dtype I8, {} SCB was expected{}", missing, kAgain);
    if (weight_.dtype == DType::kF8E4M3) {
      reject(weight_, "has dtype F8_E4M3, {} weight_scale_inv or weight_scale was expected{}", missing, kAgain);
    }
    reject(weight_,
           "has dtype {}; expected F32, F16, BF16, or a weight that bitsandbytes (nf4, fp4, int8) or FP8 (F8_E4M3) "
           "stores with its scales{}",
           storage::dtype_name(weight_.dtype), kAgain);
  }

  const TensorEntry& require(const std::string& part, const std::string& why) const {
    const auto* entry = parts_.find(part);
    if (entry != nullptr) return *entry;
    throw FormatError(fmt::format("{}: {}", files_.files()[weight_.file].path().string(), parts_.full_name(part)),
                      "the tensor is missing; {}{}", why, kAgain);
  }

  void require_layout(const TensorEntry& entry, DType dtype, const std::vector<std::int64_t>& shape,
                      const std::string& what) const {
    if (entry.dtype == dtype && entry.shape == shape) return;
    reject(entry, "is {}; {} {} {} was expected{}", describe(entry), what, storage::dtype_name(dtype),
           show_shape(shape), kAgain);
  }

  void read_nested(const QuantState& state, const TensorEntry& state_entry, StoredLinear& linear) const {
    const auto* stray = parts_.first_of(std::array{kNestedAbsmax, kNestedQuantMap});
    if (state.nested_block_size == 0) {
      if (stray != nullptr) {
        reject(state_entry, "has no nested_blocksize, nested_dtype and nested_offset, which {} needs{}", stray->name,
               kAgain);
      }
      return;
    }
    linear.nested_block_size = state.nested_block_size;
    linear.nested_offset = static_cast<float>(state.nested_offset);
    if (!std::isfinite(linear.nested_offset)) {
      throw FormatError(files_.where(state_entry) + ": nested_offset", std::string("is beyond fp32") + kAgain);
    }
    linear.nested_scales = &require(kNestedAbsmax, "the quant_state says that scales are nested");
    linear.nested_map = &require(kNestedQuantMap, "the quant_state says that scales are nested");
    require_layout(*linear.nested_scales, DType::kF32, {ceil_div(linear.num_scales(), linear.nested_block_size)},
                   fmt::format("a scale for each {} codes of absmax,", linear.nested_block_size));
    require_layout(*linear.nested_map, DType::kF32, {kNestedMapSize}, "a map of 8-bit codes,");
  }

  void read_scale_blocks(const TensorEntry& scales, StoredLinear& linear) const {
    const QuantizationConfig& said = config_.quantization;
    const std::int64_t rows = linear.out_features, columns = linear.in_features;
    const auto use = [&](std::int64_t block_rows, std::int64_t block_columns) {
      linear.block_rows = block_rows;
      linear.block_columns = block_columns;
    };
    using Shape = std::vector<std::int64_t>;
    std::string expected;
    if (said.block_rows > 0) {
      const Shape blocks{ceil_div(rows, said.block_rows), ceil_div(columns, said.block_columns)};
      if (scales.shape == blocks) return use(said.block_rows, said.block_columns);
      expected = fmt::format("{} (a scale for each {} x {} weights, as config.json says)", show_shape(blocks),
                             said.block_rows, said.block_columns);
    }
    if (!said.has_only_blocks) {
      const bool is_per_row = scales.shape == Shape{rows} || scales.shape == Shape{rows, 1};
      if (is_per_row && rows > 1) return use(1, columns);
      if (scales.num_elements() == 1 && scales.shape.size() <= 2) return use(rows, columns);
      expected += fmt::format("{}{}{} or {}", expected.empty() ? "" : ", ", "[], [1], ", show_shape({rows}),
                              show_shape({rows, 1}));
    }
    reject(scales, "has shape {}; for weights of {}, {} was expected{}", show_shape(scales.shape),
           show_shape(spec_.shape), expected, kAgain);
  }

  std::int64_t num_weights() const { return spec_.shape[0] * spec_.shape[1]; }

  const ModelConfig& config_;
  const TensorSpec& spec_;
  const storage::WeightFiles& files_;
  const storage::TensorEntry& weight_;
  Parts parts_;
};

}  // namespace

StoredLinear stored_linear(const ModelConfig& config, const TensorSpec& spec, const storage::WeightFiles& weights) {
  const LinearReader reader(config, spec, weights);
  StoredLinear linear = reader.recognise();
  linear.names = quantised_parts(spec.name, weights);
  reader.require_agreement(linear);
  switch (linear.format) {
    case LinearFormat::kPlain: reader.require_plain(); break;
    case LinearFormat::k4Bit: reader.read_4bit(linear); break;
    case LinearFormat::kInt8: reader.read_int8(linear); break;
    case LinearFormat::kFp8: reader.read_fp8(linear); break;
  }
  return linear;
}

void require_finite_scales(const StoredLinear& linear, const storage::WeightFiles& weights) {
  const bool has_fp32_scales = linear.format != LinearFormat::kPlain && linear.nested_block_size == 0;
  for (const auto* entry : {linear.map, linear.nested_scales, linear.nested_map}) {
    if (entry != nullptr) require_finite(*entry, weights);
  }
  if (has_fp32_scales) require_finite(*linear.scales, weights);
}

std::vector<std::string> quantised_parts(const std::string& name, const storage::WeightFiles& weights) {
  return Parts(name, weights).names();
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

}  // namespace lora_train::model
