// O outputs, D inputs.
#include "lora_train/model/weights/quantize_model.h"

#include <nlohmann/json.hpp>

#include "lora_train/base/ceil_div.h"
#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/model/weights/init_model.h"
#include "lora_train/model/weights/tensor_io.h"
#include "lora_train/storage/model_output.h"
#include "lora_train/storage/model_weights.h"
#include "lora_train/storage/run_names.h"
#include "weight_reader.h"

namespace lora_train::model {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;
using storage::DType;
using storage::FileToWrite;

constexpr std::size_t kStateBytes = 256;  // quant_state, padded: its length must be known before its values

std::string_view bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

/// bitsandbytes' QuantState.as_dict(packed=True).
std::string quant_state(const kernels::QuantizedWeight& weight, DType dtype) {
  ordered_json state = {{"quant_type", "nf4"},
                        {"blocksize", weight.block_size},
                        {"dtype", torch_dtype_name(dtype)},
                        {"shape", {weight.out_features, weight.in_features}}};
  if (weight.is_nested()) {
    state["nested_blocksize"] = weight.nested_block_size;
    state["nested_dtype"] = "float32";
    state["nested_offset"] = static_cast<double>(weight.nested_offset);
  }
  std::string text = state.dump();
  text.resize(kStateBytes, ' ');
  return text;
}

/// Quantises the linears file by file, as they are written.
class Quantizer {
 public:
  explicit Quantizer(const QuantizeRequest& request)
      : request_(request),
        config_(read_model_config(request.model)),
        files_(storage::open_model_weights(request.model)) {
    refuse_quantised(config_, "quantising");
    check_weights(config_, files_);
    log_parts_beside_text(config_, files_);
    for (const auto& [name, entry] : files_.entries()) {
      const std::string module = "model." + storage::part_beside_text(entry.name);
      if (module != "model." && std::ranges::count(skipped_, module) == 0) skipped_.push_back(module);
    }
    for (const TensorSpec& spec : linear_tensors(config_)) {
      const std::string linear = spec.module();
      if (!request.linears.empty() && !request.linears.contains(linear)) {
        skipped_.push_back(name_in_class(linear, config_.module_prefix));
        continue;
      }
      linears_[spec.name] = quantised_storage(request.format, spec.shape[0], spec.shape[1], request.nested);
    }
  }

  const std::vector<std::string>& skipped() const { return skipped_; }

  /// The weights, and an index if the source has several files.
  std::vector<FileToWrite> weight_files(QuantizeResult& result) {
    std::vector<FileToWrite> written;
    for (const auto& file : files_.files()) written.push_back({file.path().filename().string(), "", {}});
    for (const auto& [name, entry] : files_.entries()) {
      FileToWrite& out = written[entry.file];
      linears_.contains(name) ? add_linear(name, entry, out) : add_plain(entry, out);
    }
    for (const FileToWrite& file : written) num_tensors_ += std::ssize(file.tensors);
    std::erase_if(written, [](const FileToWrite& file) { return file.tensors.empty(); });
    result.num_linears = std::ssize(linears_);
    result.weight_bytes = add_index(written, files_.files().size() > 1);
    return written;
  }

 private:
  void add(FileToWrite& out, std::string name, DType dtype, std::vector<std::int64_t> shape,
           std::function<std::string_view()> produce) {
    out.tensors.push_back({name, dtype, std::move(shape), {}, [this, name, produce = std::move(produce)] {
                             throw_if_stop_requested();
                             if (request_.progress) request_.progress(num_done_, num_tensors_, name);
                             ++num_done_;
                             return produce();
                           }});
  }

  void add_plain(const storage::TensorEntry& entry, FileToWrite& out) {
    add(out, entry.name, entry.dtype, entry.shape, [this, &entry] {
      const std::string_view bytes = files_.bytes(entry);
      require_finite_weights(entry.dtype, bytes, files_.where(entry));
      return bytes;
    });
  }

  /// `weight`: the name in the text model; the parts get the name in the file.
  void add_linear(const std::string& weight, const storage::TensorEntry& entry, FileToWrite& out) {
    using Part = at::Tensor kernels::QuantizedWeight::*;
    const LinearStorage& storage = linears_.at(weight);
    const std::int64_t O = storage.out_features, D = storage.in_features, num_scales = storage.num_scales();
    const std::string linear = entry.name.substr(0, entry.name.rfind('.'));
    const auto part = [&](const std::string& name, DType dtype, std::vector<std::int64_t> shape, Part tensor) {
      add(out, name, dtype, std::move(shape), [this, weight, tensor] { return bytes_of(quantised(weight).*tensor); });
    };
    switch (storage.format) {
      case LinearFormat::kInt8:
        part(entry.name, DType::kI8, {O, D}, &kernels::QuantizedWeight::codes);
        part(linear + ".SCB", DType::kF32, {O}, &kernels::QuantizedWeight::scales);
        add(out, linear + ".weight_format", DType::kU8, {}, [] { return std::string_view("\0", 1); });  // row-major
        return;
      case LinearFormat::kFp8:
        part(entry.name, DType::kF8E4M3, {O, D}, &kernels::QuantizedWeight::codes);
        part(entry.name + "_scale_inv", DType::kF32,
             {ceil_div(O, storage.block_rows), ceil_div(D, storage.block_columns)}, &kernels::QuantizedWeight::scales);
        return;
      default: break;
    }
    part(entry.name, DType::kU8, {ceil_div(O * D, 2), 1}, &kernels::QuantizedWeight::codes);
    part(entry.name + ".absmax", request_.nested ? DType::kU8 : DType::kF32, {num_scales},
         &kernels::QuantizedWeight::scales);
    part(entry.name + ".quant_map", DType::kF32, {16}, &kernels::QuantizedWeight::map);
    add(out, entry.name + ".quant_state.bitsandbytes__nf4", DType::kU8, {static_cast<std::int64_t>(kStateBytes)},
        [this, weight, dtype = entry.dtype] {
          state_ = quant_state(quantised(weight), dtype);
          return std::string_view(state_);
        });
    if (!request_.nested) return;
    const std::int64_t num_nested = ceil_div(num_scales, storage.nested_block_size);
    part(entry.name + ".nested_absmax", DType::kF32, {num_nested}, &kernels::QuantizedWeight::nested_scales);
    part(entry.name + ".nested_quant_map", DType::kF32, {256}, &kernels::QuantizedWeight::nested_map);
  }

  /// The linear, quantised along with all others of its file.
  const kernels::QuantizedWeight& quantised(const std::string& weight) {
    const auto found = quantised_.find(weight);
    if (found != quantised_.end()) return found->second;
    quantised_.clear();
    WeightReader reader(files_, at::kCPU);
    for (const auto& [name, storage] : linears_) {
      const storage::TensorEntry* other = files_.find(name);
      if (other->file != files_.find(weight)->file) continue;
      read_and_quantize(files_, *other, storage, at::kCPU, reader, quantised_[name]);
    }
    reader.read();
    return quantised_.at(weight);
  }

  const QuantizeRequest& request_;
  const ModelConfig config_;
  const storage::WeightFiles files_;
  std::vector<std::string> skipped_ = {"lm_head"};             ///< modules that stay plain
  std::map<std::string, LinearStorage> linears_;               ///< by weight name
  std::map<std::string, kernels::QuantizedWeight> quantised_;  ///< those of the file being written
  std::string state_;
  std::int64_t num_done_ = 0, num_tensors_ = 0;
};

/// In transformers' form.
ordered_json quantization_config(const QuantizeRequest& request, const std::vector<std::string>& skipped) {
  if (request.format == LinearFormat::kFp8) {
    return {{"quant_method", "fp8"},
            {"fmt", "e4m3"},
            {"activation_scheme", "dynamic"},
            {"weight_block_size", {128, 128}},
            {"modules_to_not_convert", skipped}};
  }
  const bool is_4bit = request.format == LinearFormat::k4Bit;
  return {{"quant_method", "bitsandbytes"},
          {"load_in_4bit", is_4bit},
          {"load_in_8bit", !is_4bit},
          {"bnb_4bit_quant_type", "nf4"},
          {"bnb_4bit_use_double_quant", is_4bit && request.nested},
          {"bnb_4bit_compute_dtype", "bfloat16"},
          {"bnb_4bit_quant_storage", "uint8"},
          {"llm_int8_threshold", 6.0},
          {"llm_int8_skip_modules", skipped}};
}

void add_companions(const QuantizeRequest& request, const std::vector<std::string>& skipped,
                    std::vector<FileToWrite>& files) {
  for (const std::string& name : storage::companion_files(request.model)) {
    files.push_back(storage::copy_of(request.model / name));
    if (name != storage::kConfigFile) continue;
    auto config = ordered_json::parse(files.back().text);
    config["quantization_config"] = quantization_config(request, skipped);
    files.back().text = with_own_head(read_model_config(request.model), config.dump(2) + "\n");
  }
  storage::copy_tool_template(request.model, files);
}

}  // namespace

QuantizeResult quantize_model(const QuantizeRequest& request) {
  Quantizer quantizer(request);
  QuantizeResult result;
  storage::OutputFolder output(request.output_dir, storage::OutputKind::kModel, {request.model}, request.overwrite);
  result.folder = output.path();
  std::vector<FileToWrite> files = quantizer.weight_files(result);
  add_companions(request, quantizer.skipped(), files);
  result.num_files = std::ssize(files);
  output.write(files);
  output.commit();
  return result;
}

}  // namespace lora_train::model
