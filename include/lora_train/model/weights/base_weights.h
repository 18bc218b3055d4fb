// The weights of a run. Three questions are kept apart: the format of a stored linear (per linear, from its tensors),
// its conversion to a compute view (a RowSink), and where the bytes live until a layer is acquired (the class).
#pragma once

#include <c10/core/TensorOptions.h>

#include <limits>

#include "lora_train/kernels/cast/cast.h"
#include "lora_train/kernels/quantized_weight/quantized_weight.h"
#include "lora_train/model/weights/stored_linear.h"
#include "lora_train/model/weights/trainables.h"
#include "lora_train/model/weights/weights.h"

namespace lora_train::storage {
class WeightFiles;
}

namespace lora_train::model {

/// Which weights are trained besides adapters.
enum class TrainedWeights { kNone, kAll };

/// The trained tensors of a run: A and B of every adapter and the trained token rows under PEFT's names, or with kAll
/// every weight under its Hugging Face name. Values start at zero. On at::kMeta they have no memory.
Trainables make_trainables(const ModelConfig& config, const ModelShape& shape, TrainedWeights trained,
                           at::Device device = at::kCPU);

/// The mean of the rows of a matrix, [columns] fp32; summed in fp64.
at::Tensor mean_of_rows(const at::Tensor& matrix);

constexpr int64_t kAllLayers = std::numeric_limits<int64_t>::max();

struct WeightOptions {
  at::ScalarType dtype = at::kFloat;  ///< compute dtype
  at::Device device = at::kCPU;
  TrainedWeights trained = TrainedWeights::kNone;
  BaseStorage storage = {};  ///< linears to keep quantised; those plain in the files are quantised this way
  int64_t decoded_layers =
      kAllLayers;  ///< layers before this one are decoded once, the others whenever they are acquired
  /// With an fp32 dtype, keeps matrices in bf16 if the files hold all of them in bf16, for Product::kSkinny on a CPU:
  /// the same values in half the bytes. Projections are not fused then.
  bool keeps_bf16 = false;
};

/// Quantised linears of a layer, and the steps that decode them into the matrices of their projections.
struct QuantizedLayer {
  struct Linear {
    std::string name;
    LinearStorage storage;
    kernels::QuantizedWeight weight;
    at::Tensor decoded;  ///< [O, D], rows strided
  };
  /// A plain linear in a projection with quantised ones.
  struct PlainLinear {
    at::Tensor weight, decoded;  ///< [O, D]
  };
  std::vector<Linear> linears;
  std::vector<PlainLinear> plain;
  kernels::Dequantizations decode;  ///< also of plain linears and adapter columns

  /// Writes W of all linears, in one launch on CUDA.
  void run();
};

/// Fills new weights.
class WeightLoader {
 public:
  virtual ~WeightLoader() = default;
  virtual void load(const std::string& tensor, const at::Tensor& target) = 0;
  /// Allocates and fills linear.weight.
  virtual void load(QuantizedLayer::Linear& linear) = 0;
  /// Waits until everything requested is loaded.
  virtual void finish() = 0;
};

/// Layers in compute layout with their adapter columns, bound to the trained tensors that they are derived from.
class ComputeWeights : public BaseWeights {
 public:
  LayerWeights& acquire(int64_t layer, Pass) override { return layers_[static_cast<std::size_t>(layer)]; }
  void release(int64_t, Pass) override {}
  OuterWeights& acquire_outer(Pass) override { return outer_; }
  void release_outer(Pass) override {}
  void refresh() override { copies_.run(); }

 protected:
  /// Allocates nothing. `parameters` outlives the object.
  ComputeWeights(const ModelConfig& config, const ModelShape& shape, Trainables& parameters,
                 const WeightOptions& options, const storage::WeightFiles* files = nullptr);

  /// Gives memory to a projection's matrix [O + C, D + C], rows at the pitch of its input; zeroes what nothing will
  /// write.
  using Allocate = std::function<at::Tensor(const ProjectionShape& shape)>;
  /// Creates a layer and has `loader` fill its tensors; quantised linears go into `quantized`.
  void fill_layer(int64_t layer, WeightLoader& loader, QuantizedLayer& quantized, const Allocate& allocate = {});
  void fill_outer(WeightLoader& loader);
  /// Gives memory to the matrices of a projection.
  void allocate_projection(const ProjectionShape& shape, Projection& projection, const at::Tensor& shared) const;
  /// Adds the copies that write the layer's adapter columns.
  void add_columns(int64_t layer, const AddCopy& add) const;
  /// Multiplies biases by output_scale, as the forward expects.
  static void scale_biases(LayerWeights& layer);
  void drop_layer(int64_t layer);
  /// For full fine-tuning. Call it after all layers are filled.
  void bind_trained_weights();

  const ModelConfig config_;
  const ModelShape shape_;
  Trainables& parameters_;
  const WeightOptions options_;
  std::vector<LayerWeights> layers_;
  OuterWeights outer_;
  at::ScalarType matrix_dtype_;   ///< for base matrices: the compute dtype, or bf16 as stored
  kernels::ScaledCopies copies_;  ///< made by refresh(): adapter columns, and in full fine-tuning every weight

  /// Sets rows missing from the files to the mean of the others.
  void fill_added_rows();

 private:
  void bind_adapters(const ProjectionShape& shape, int64_t layer, Projection& projection);
  void bind_token_rows();
};

/// Keeps all weights in device memory, as they are stored. Layers with quantised linears before decoded_layers are
/// decoded once; the others are decoded when acquired, into a shared buffer.
class ResidentWeights : public ComputeWeights {
 public:
  /// Copies every weight out of `files` (already checked by check_weights) into the compute dtype or its quantised
  /// form, in several threads, and releases the mapped pages afterwards. With kAll it fills the masters too. If `files`
  /// is null, plain weights stay uninitialised for the caller to fill, and codes are random; on at::kMeta nothing is
  /// allocated. Throws StopError.
  ResidentWeights(const ModelConfig& config, const ModelShape& shape, Trainables& parameters,
                  const WeightOptions& options, const storage::WeightFiles* files = nullptr);

  LayerWeights& acquire(int64_t layer, Pass pass) override;
  void refresh() override;
  /// Bytes of the quantised linears in layers that are decoded when acquired.
  std::int64_t quantized_bytes() const;

 private:
  void fill(WeightLoader& loader);
  void prepare_decoding();
  bool is_decoded_on_acquire(int64_t layer) const {
    return layer >= options_.decoded_layers && !quantized_[static_cast<std::size_t>(layer)].linears.empty();
  }

  std::vector<QuantizedLayer> quantized_;      ///< per layer; empty if nothing is quantised, or it is decoded once
  std::map<std::string, at::Tensor> buffers_;  ///< one matrix for each projection layout of the layers that share it
  std::int64_t in_buffers_ = -1;               ///< the layer that was decoded last
};

/// Keeps one decoder layer in memory at a time, on the CPU: acquire() reads it from the files and writes the adapter
/// columns, release() frees it. For a single pass over a model that may not fit into memory.
class StreamedWeights : public ComputeWeights {
 public:
  /// `files` outlives the object. `base`: the linears that the files or a run's base_precision quantise
  /// (base_storage).
  StreamedWeights(const ModelConfig& config, const ModelShape& shape, Trainables& parameters, at::ScalarType dtype,
                  const storage::WeightFiles& files, const BaseStorage& base);

  LayerWeights& acquire(int64_t layer, Pass pass) override;
  void release(int64_t layer, Pass) override { drop_layer(layer); }
  void refresh() override {}

 private:
  const storage::WeightFiles& files_;
};

/// Bytes of all weights, adapter columns included, as ResidentWeights keeps them with these options.
std::int64_t weight_bytes(const ModelConfig& config, const ModelShape& shape, std::int64_t element_bytes,
                          const BaseStorage& storage = {}, std::int64_t decoded_layers = kAllLayers);

/// The largest decoded_layers with which all weights take at most `budget_bytes`; 0 if there is none. kAllLayers if
/// nothing is quantised.
std::int64_t choose_decoded_layers(const ModelConfig& config, const ModelShape& shape, std::int64_t element_bytes,
                                   const BaseStorage& storage, std::int64_t budget_bytes);

}  // namespace lora_train::model
