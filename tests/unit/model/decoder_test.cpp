// What must not change the numbers: recomputation, stale buffers, the neighbours of a document, where a backward stops, layer
// inputs in host memory, MLPs in tiles. That buffers take what is planned.
// That the numbers are right is shown against transformers + PEFT in tests/parity.
#include "lora_train/model/decoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/kernels/aten.h"
#include "lora_train/model/loss_head.h"
#include "lora_train/model/weights/base_weights.h"
#include "lora_train/model/weights/tensor_io.h"
#include "lora_train/storage/model_weights.h"
#include "support/expect_refused.h"
#include "support/safetensors_file.h"
#include "support/temporary_folder.h"
#include "support/tensors.h"
#include "support/tolerance.h"

namespace lora_train::model {
namespace {

using testing_support::TemporaryFolder;
using testing_support::tolerance;
using testing_support::uniform;

constexpr const char* kConfig =
    R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 20,
  "intermediate_size": 28, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6,
  "vocab_size": 31, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "tie_word_embeddings": true,
  "use_sliding_window": true, "sliding_window": 4, "max_window_layers": 1, "rope_theta": 10000.0, "hidden_act": "silu"})";

constexpr const char* kHybrid =
    R"({"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_size": 20,
  "intermediate_size": 28, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
  "vocab_size": 31, "max_position_embeddings": 64, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
  "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 3, "linear_value_head_dim": 5})";

/// `spoilt` is a weight of which one element is NaN.
storage::WeightFiles random_weights(const ModelConfig& config, const TemporaryFolder& folder,
                                    const std::string& spoilt = "") {
  std::vector<at::Tensor> keep;
  std::vector<storage::TensorToWrite> tensors;
  std::uint64_t seed = 100;
  for (const auto& spec : expected_tensors(config)) {
    keep.push_back(uniform(spec.shape, ++seed) * 0.5 + (is_norm(spec.kind) ? 1.0 : 0.0));
    if (spec.name == spoilt) keep.back()[7][11] = NAN;
    tensors.push_back(tensor_to_write(spec.name, keep.back()));
  }
  storage::write_safetensors(folder / "model.safetensors", tensors);
  return storage::open_model_weights(folder.path());
}

Batch batch_of(const std::vector<int64_t>& lengths) {
  Batch batch;
  std::vector<std::int32_t> ids, positions, targets;
  std::vector<int64_t> supervised;
  batch.cu_seqlens = {0};
  for (const int64_t length : lengths) {
    for (int64_t t = 0; t < length; ++t) {
      if (t + 1 < length) {
        supervised.push_back(static_cast<int64_t>(ids.size()));
        targets.push_back(static_cast<std::int32_t>((7 * t + length) % 31));
      }
      ids.push_back(static_cast<std::int32_t>((5 * t + 3 * length) % 31));
      positions.push_back(static_cast<std::int32_t>(t));
    }
    batch.cu_seqlens.push_back(static_cast<int64_t>(ids.size()));
  }
  batch.ids = at::tensor(ids, at::kInt);
  batch.positions = at::tensor(positions, at::kInt);
  batch.supervised = at::tensor(supervised, at::kLong);
  batch.targets = at::tensor(targets, at::kInt);
  return batch;
}

std::vector<AdapterSpec> adapters(const ModelConfig& config, std::int64_t first_layer, double dropout = 0) {
  std::vector<AdapterSpec> specs;
  for (std::int64_t layer = first_layer; layer < config.num_layers; ++layer) {
    for (const auto& linear : linear_names(config, layer)) {
      specs.push_back({AdapterKind::kLora, layer, linear, 2, 0.5, dropout});
    }
  }
  return specs;
}

class DecoderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    config_ = parse_model_config(kConfig, "config.json");
    make_weights();
  }

  void use_config(const char* text) {
    config_ = parse_model_config(text, "config.json");
    make_weights();
  }

  void use_layers(std::int64_t count) { use("num_hidden_layers", "3", count); }

  void use(const std::string& name, const std::string& old, std::int64_t value) {
    std::string text = kConfig;
    const std::string key = "\"" + name + "\": ";
    text.replace(text.find(key) + key.size(), old.size(), std::to_string(value));
    config_ = parse_model_config(text, "config.json");
    make_weights();
  }

  void make_weights() { files_ = std::make_unique<storage::WeightFiles>(random_weights(config_, folder_)); }

  struct Result {
    double loss;
    at::Tensor grads;
  };

  Result run(const Batch& batch, Recompute mode = Recompute::kOff, std::int64_t first_layer = 0,
             const FirstNeeded& first_needed = {0, false}, const ColumnLayout& columns = {}) {
    const ModelShape shape =
        model_shape(config_, adapters(config_, first_layer, batch.dropout.enabled ? 0.3 : 0), columns);
    Trainables parameters = make_trainables(config_, shape, TrainedWeights::kNone);
    ResidentWeights weights(config_, shape, parameters, {.storage = storage_, .decoded_layers = decoded_layers_},
                            files_.get());
    parameters.values.copy_(uniform({parameters.size()}, 5) * 0.3);
    weights.refresh();
    Decoder decoder = make_decoder(config_, shape, weights, at::kFloat, 64, first_needed);
    Activations activations(
        shape,
        {.max_tokens = batch.num_tokens() + 5, .offload_inputs = offload_inputs_, .mlp_tile_tokens = mlp_tile_tokens_},
        std::vector<Recompute>(shape.layers.size(), mode), at::kFloat, at::kCPU);
    if (are_buffers_stale_) {
      for (auto& [name, buffer] : activations.named_buffers()) buffer.fill_(NAN);
      if (activations.offload() != nullptr) {
        for (at::Tensor input : activations.offload()->inputs()) input.fill_(NAN);
      }
    }
    decoder_forward(decoder, batch, activations);
    at::Tensor d_hidden = activations.d_hidden.narrow(0, 0, batch.num_tokens()), loss = at::zeros({}, at::kDouble);
    LossHead head({weights.acquire_outer(Pass::kForward), 1e-6}, {batch.num_tokens()});
    head.train(activations.final_hidden.narrow(0, 0, batch.num_tokens()), batch,
               at::scalar_tensor(batch.supervised.size(0), at::kDouble), loss, d_hidden);
    decoder_backward(decoder, batch, activations);
    return {loss.item<double>(), parameters.grads.clone()};
  }

  static void expect_same_bits(const Result& got, const Result& want) {
    EXPECT_EQ(got.loss, want.loss);
    EXPECT_TRUE(at::equal(got.grads, want.grads));
  }

  /// What the buffers take, which is what the plan says.
  static std::int64_t bytes_of(const Activations& activations) {
    std::int64_t bytes = 0;
    for (const auto& [name, buffer] : activations.named_buffers()) {
      bytes += static_cast<std::int64_t>(buffer.storage().nbytes());
    }
    EXPECT_EQ(bytes, activations.bytes());
    return bytes;
  }

  /// Of the linears of all layers: as plain matrices, and as they are, those that share memory once.
  static std::pair<std::int64_t, std::int64_t> bytes_of(ResidentWeights& weights) {
    std::int64_t plain = 0, bytes = 0;
    std::set<const void*> counted;
    for (std::int64_t layer = 0; layer < 3; ++layer) {
      for (const BlockWeights& block : weights.acquire(layer, Pass::kForward)) {
        for (const Projection& p : block.projections) {
          plain += 4 * p.in_features * p.out_features;
          if (!counted.insert(p.weight.storage().unsafeGetStorageImpl()).second) continue;
          bytes += static_cast<std::int64_t>(p.weight.storage().nbytes());
        }
      }
    }
    return {plain, bytes};
  }

  /// Has the weights quantised while they are read, but for this linear.
  void quantise(LinearFormat format, bool nested, const std::string& except = "") {
    storage_.clear();
    for (const auto& spec : expected_tensors(config_)) {
      const std::string name = spec.name.substr(0, spec.name.rfind('.'));
      if (spec.kind != WeightKind::kLinear || name == except) continue;
      storage_[name] = quantised_storage(format, spec.shape[0], spec.shape[1], nested);
    }
  }

  TemporaryFolder folder_;
  ModelConfig config_;
  std::unique_ptr<storage::WeightFiles> files_;
  BaseStorage storage_;
  std::int64_t decoded_layers_ = kAllLayers;
  bool offload_inputs_ = false, are_buffers_stale_ = true;
  std::int64_t mlp_tile_tokens_ = 0;
};

TEST(ResidentWeights, AStopIsSeenBetweenTensors) {
  const TemporaryFolder folder;
  const ModelConfig config = parse_model_config(kConfig, "config.json");
  const storage::WeightFiles files = random_weights(config, folder);
  const StopRequests requests;
  set_max_time(0);
  const ModelShape shape = model_shape(config);
  Trainables none = make_trainables(config, shape, TrainedWeights::kNone);
  EXPECT_THROW(ResidentWeights(config, shape, none, {}, &files), StopError);
}

constexpr Recompute kModes[] = {Recompute::kOff, Recompute::kCheap, Recompute::kGateUp, Recompute::kFull};

constexpr std::pair<LinearFormat, bool> kFormats[] = {{LinearFormat::k4Bit, false},
                                                      {LinearFormat::k4Bit, true},
                                                      {LinearFormat::kInt8, false},
                                                      {LinearFormat::kFp8, false}};

TEST_F(DecoderTest, LayersDecodedWhenAcquiredGiveTheSameBits) {
  const Batch batch = batch_of({9, 1, 5});
  const double plain = run(batch).loss;
  for (const auto& [format, nested] : kFormats) {
    for (const std::string except : {"", "model.layers.1.mlp.up_proj"}) {
      quantise(format, nested, except);
      for (const std::int64_t first_adapted : {0, 2}) {  // layers without adapters have another layout
        decoded_layers_ = kAllLayers;
        const Result once = run(batch, Recompute::kOff, first_adapted, {first_adapted, false});
        EXPECT_NE(once.loss, plain);
        for (decoded_layers_ = 0; decoded_layers_ < 3; ++decoded_layers_) {
          for (const Recompute mode : {Recompute::kOff, Recompute::kFull}) {
            SCOPED_TRACE(decoded_layers_);
            expect_same_bits(run(batch, mode, first_adapted, {first_adapted, false}), once);
          }
        }
      }
    }
  }
}

TEST_F(DecoderTest, MemoryOfAQuantisedBaseIsWhatThePlanSays) {
  for (const auto& [format, nested] : kFormats) {
    quantise(format, nested, "model.layers.1.mlp.up_proj");
    for (const std::int64_t first_adapted : {0, 2}) {
      const ModelShape shape = model_shape(config_, adapters(config_, first_adapted));
      for (std::int64_t decoded = 0; decoded <= 3; ++decoded) {
        Trainables parameters = make_trainables(config_, shape, TrainedWeights::kNone, at::kMeta);
        ResidentWeights weights(config_, shape, parameters,
                                {at::kFloat, at::kMeta, TrainedWeights::kNone, storage_, decoded});
        const auto [plain, adapted] = bytes_of(weights);
        EXPECT_EQ(weight_bytes(config_, shape, 4, storage_, decoded),
                  4 * num_parameters(config_) - plain + adapted + weights.quantized_bytes())
            << decoded;
        EXPECT_LE(
            choose_decoded_layers(config_, shape, 4, storage_, weight_bytes(config_, shape, 4, storage_, decoded)), 3);
      }
      const auto chosen = [&](std::int64_t budget) {
        return choose_decoded_layers(config_, shape, 4, storage_, budget);
      };
      const auto bytes = [&](std::int64_t decoded) { return weight_bytes(config_, shape, 4, storage_, decoded); };
      for (std::int64_t decoded = 1; decoded <= 3; ++decoded) {
        const std::int64_t most = chosen(bytes(decoded)), less = chosen(bytes(decoded) - 1);
        EXPECT_GE(most, decoded);
        EXPECT_LE(bytes(most), bytes(decoded));
        EXPECT_TRUE(less == 0 || bytes(less) < bytes(decoded)) << less;
        for (std::int64_t more = most + 1; more <= 3; ++more) EXPECT_GT(bytes(more), bytes(decoded));
      }
      EXPECT_EQ(chosen(1), 0);
    }
  }
}

TEST_F(DecoderTest, AWeightThatIsNotFiniteIsNotQuantised) {
  const std::string name = "model.layers.2.mlp.down_proj.weight";
  files_ = std::make_unique<storage::WeightFiles>(random_weights(config_, folder_, name));
  for (const auto& [format, nested] : kFormats) {
    quantise(format, nested);
    testing_support::expect_refused([&] { run(batch_of({9})); }, "model.safetensors: " + name, {});
  }
}

TEST_F(DecoderTest, NeitherRecomputationNorStaleBuffersNorARowPitchChangeABit) {
  const Batch batch = batch_of({9, 1, 5});
  for (const char* config : {kConfig, kHybrid}) {
    use_config(config);
    for (const std::int64_t first_layer : {0, 1}) {
      are_buffers_stale_ = false;
      const Result clean = run(batch, Recompute::kOff, first_layer);
      are_buffers_stale_ = true;
      for (const Recompute mode : kModes) {
        for (const RowPitch row_pitch : {RowPitch::kExact, RowPitch::kPadded}) {
          SCOPED_TRACE(testing::Message()
                       << config_.architecture << static_cast<int>(mode) << static_cast<int>(row_pitch));
          expect_same_bits(run(batch, mode, first_layer, {0, false}, {.row_pitch = row_pitch}), clean);
        }
      }
    }
  }
}

TEST_F(DecoderTest, MemoryOfAHybridModelCountsDecaysInFp32) {
  use_config(kHybrid);
  const ModelShape shape = model_shape(config_);
  Trainables parameters = make_trainables(config_, shape, TrainedWeights::kNone, at::kMeta);
  ResidentWeights weights(config_, shape, parameters, {at::kBFloat16, at::kMeta}, nullptr);
  std::size_t bytes = 0;
  const auto add = [&](const at::Tensor& t) { bytes += t.defined() ? t.nbytes() : 0; };
  for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) {
    for (const BlockWeights& block : weights.acquire(layer, Pass::kForward)) {
      for (const Projection& p : block.projections) add(p.weight);
      for (const SmallWeight& small : block.small) add(small.weight);
    }
  }
  const OuterWeights& outer = weights.acquire_outer(Pass::kForward);
  for (const at::Tensor& t : {outer.embedding, outer.head, outer.final_norm.weight}) add(t);
  EXPECT_EQ(weight_bytes(config_, shape, 2), static_cast<std::int64_t>(bytes));
}

TEST_F(DecoderTest, BothFormsOfTheBackwardOfGateUpGiveTheSameGradients) {
  const Batch batch = batch_of({9, 1, 5});
  const Result beside_input = run(batch);
  for (const Recompute mode : kModes) {
    const Result beside_output = run(batch, mode, 0, {0, false}, {.gate_up = GradientColumns::kBesideOutput});
    EXPECT_EQ(beside_output.loss, beside_input.loss);
    EXPECT_CLOSE(beside_output.grads, beside_input.grads, tolerance(at::kFloat));
    EXPECT_FALSE(at::equal(beside_output.grads, beside_input.grads)) << "the same form twice";
  }
}

TEST_F(DecoderTest, MemoryIsWhatThePlanSaysWithEitherRowPitch) {
  std::int64_t exact_bytes = 0;
  for (const RowPitch row_pitch : {RowPitch::kExact, RowPitch::kPadded}) {
    const ModelShape shape = model_shape(config_, adapters(config_, 1), {.row_pitch = row_pitch});
    const Activations activations(shape, {.max_tokens = 7}, std::vector<Recompute>(3, Recompute::kCheap), at::kFloat,
                                  at::kMeta);
    const std::int64_t bytes = bytes_of(activations);
    Trainables parameters = make_trainables(config_, shape, TrainedWeights::kNone, at::kMeta);
    ResidentWeights weights(config_, shape, parameters, {at::kFloat, at::kMeta}, nullptr);
    const auto [plain, adapted] = bytes_of(weights);
    EXPECT_EQ(weight_bytes(config_, shape, 4) - weight_bytes(config_, model_shape(config_), 4), adapted - plain);
    EXPECT_GT(bytes + adapted, exact_bytes) << "padded rows take more";
    exact_bytes = bytes + adapted;
  }
}

TEST_F(DecoderTest, DocumentsDoNotSeeEachOther) {
  for (const std::int64_t num_heads : {4, 1}) {
    if (num_heads == 1) {
      config_.num_heads = config_.num_kv_heads = 1;
      make_weights();
    }
    const double together = run(batch_of({9, 4, 5})).loss;
    double apart = 0;
    for (const int64_t length : {9, 4, 5}) apart += run(batch_of({length}), Recompute::kFull).loss;
    EXPECT_NEAR(together, apart, 1e-5 * apart) << num_heads;
  }
}

TEST_F(DecoderTest, DocumentsOfAHybridModelHaveTheGradientsThatTheyHaveAlone) {
  use_config(kHybrid);
  const Batch batch = batch_of({1, 2, 9, 4, 5});  // one token trains nothing
  const Result together = run(batch);
  Result apart{0, at::zeros_like(together.grads)};
  for (const int64_t length : {2, 9, 4, 5}) {
    const Result alone = run(batch_of({length}));
    apart.loss += alone.loss;
    apart.grads += alone.grads * (length - 1) / batch.supervised.size(0);  // of the mean over tokens
  }
  EXPECT_NEAR(together.loss, apart.loss, 1e-6 * apart.loss);
  EXPECT_CLOSE(together.grads, apart.grads, tolerance(at::kFloat));
}

TEST_F(DecoderTest, BackwardStopsAtTheFirstAdapterWithTheSameGradients) {
  const Batch batch = batch_of({9, 5});
  const Result stopped = run(batch, Recompute::kOff, 1, {1, false}), whole = run(batch, Recompute::kOff, 1);
  EXPECT_CLOSE(stopped.grads, whole.grads, tolerance(at::kFloat));
}

TEST_F(DecoderTest, OffloadedLayerInputsGiveTheSameBits) {
  const Batch batch = batch_of({9, 1, 5});
  for (const std::int64_t num_layers : {3, 4, 8, 0}) {
    num_layers > 0 ? use_layers(num_layers) : use_config(kHybrid);
    for (const FirstNeeded& first : {FirstNeeded{0, false}, FirstNeeded{0, true}, FirstNeeded{2, false}}) {
      for (const Recompute mode : kModes) {
        offload_inputs_ = false;
        const Result kept = run(batch, mode, first.first_layer, first);
        offload_inputs_ = true;
        SCOPED_TRACE(num_layers);
        expect_same_bits(run(batch, mode, first.first_layer, first), kept);
      }
    }
  }
}

void draw_dropout(Batch& batch, std::int64_t num_adapters) {
  std::vector<std::int32_t> documents;
  for (std::size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i) {
    documents.resize(static_cast<std::size_t>(batch.cu_seqlens[i + 1]), static_cast<std::int32_t>(i));
  }
  batch.dropout = {true, at::arange(2 * num_adapters, at::kInt).reshape({num_adapters, 2}),
                   at::tensor(documents, at::kInt), batch.positions};
}

TEST_F(DecoderTest, TilesOfMlpsGiveTheSameLossAndGradientsWithinRounding) {
  use("intermediate_size", "28", 60);  // rows of scratch are narrower than those of a tile
  Batch batch = batch_of({9, 1, 5});
  for (const bool has_dropout : {false, true}) {
    if (has_dropout) draw_dropout(batch, std::ssize(adapters(config_, 0)));
    for (const bool is_quantised : {false, true}) {
      if (is_quantised) quantise(LinearFormat::k4Bit, true);
      decoded_layers_ = is_quantised ? 1 : kAllLayers;
      for (const auto form : {GradientColumns::kBesideInput, GradientColumns::kBesideOutput}) {
        mlp_tile_tokens_ = 0;
        const Result whole = run(batch, Recompute::kFull, 0, {0, true}, {form});
        for (mlp_tile_tokens_ = 1; mlp_tile_tokens_ <= 17; mlp_tile_tokens_ += 4) {  // 15 tokens: 3 x 5, 9 + 6, 13 + 2
          offload_inputs_ = mlp_tile_tokens_ == 9;
          const Result tiled = run(batch, Recompute::kFull, 0, {0, true}, {form});
          EXPECT_NEAR(tiled.loss, whole.loss, 1e-6 * whole.loss) << mlp_tile_tokens_;
          EXPECT_TRUE(at::allclose(tiled.grads, whole.grads, 1e-5, 1e-6)) << mlp_tile_tokens_;
          EXPECT_TRUE(mlp_tile_tokens_ < 15 || at::equal(tiled.grads, whole.grads));
        }
      }
    }
    storage_.clear();
  }
}

TEST_F(DecoderTest, MemoryIsWhatThePlanSaysWithTilesOfMlps) {
  constexpr std::int64_t kTokens = 64, kTile = 24, kF = 28, kHidden = 20;
  for (const double dropout : {0.0, 0.3}) {
    const ModelShape shape = model_shape(config_, adapters(config_, 0, dropout));
    const std::vector<Recompute> modes(3, Recompute::kFull);
    const Activations whole(shape, {.max_tokens = kTokens}, modes, at::kFloat, at::kMeta);
    const Activations tiled(shape, {.max_tokens = kTokens, .mlp_tile_tokens = kTile}, modes, at::kFloat, at::kMeta);
    const std::int64_t saved =
        (kHidden + 8 + 2 * kF + kF + 8 + 1) * (kTokens - kTile);  // with columns of adapters, and rstd
    const std::int64_t input = (kF + 8 - (4 * 6 + 8)) * kTokens;  // of down, then of o: d_input, and scratch like it
    EXPECT_EQ(bytes_of(whole) - bytes_of(tiled), 4 * (saved + input * (dropout > 0 ? 2 : 1)));
  }
  const std::vector<Recompute> kept = {Recompute::kFull, Recompute::kFull, Recompute::kGateUp};
  EXPECT_THROW(plan_activations(model_shape(config_), {.max_tokens = 8, .mlp_tile_tokens = 4}, kept), ShapeError);
}

TEST_F(DecoderTest, MemoryIsWhatThePlanSaysWithOffloadedLayerInputs) {
  constexpr std::int64_t kTokens = 7, kHidden = 20;
  use_layers(8);
  const ModelShape shape = model_shape(config_, adapters(config_, 1));
  const std::vector<Recompute> modes(8, Recompute::kFull);
  const Activations kept(shape, {.max_tokens = kTokens}, modes, at::kFloat, at::kMeta);
  const Activations activations(shape, {.max_tokens = kTokens, .offload_inputs = true}, modes, at::kFloat, at::kMeta);
  EXPECT_EQ(kept.offload(), nullptr);
  EXPECT_EQ(kept.plan().host_bytes(4), 0);
  ASSERT_NE(activations.offload(), nullptr);
  EXPECT_EQ(bytes_of(kept) - bytes_of(activations), 5 * kTokens * kHidden * 4);
  EXPECT_EQ(activations.offload()->inputs().size(), 5U);
  EXPECT_EQ(activations.plan().host_bytes(4), 2048 + 2048);  // 3 inputs of 560 bytes, and 2
  const Activations forward_only(shape, {.max_tokens = kTokens, .needs_backward = false, .offload_inputs = true}, {},
                                 at::kFloat, at::kMeta);
  EXPECT_EQ(forward_only.offload(), nullptr);
}

TEST(InputOffload, PageLockedMemoryIsRoundedUpByLittle) {
  for (const std::int64_t bytes : {3, 560, 160 << 20, 1 << 20, (1 << 20) + 1}) {
    for (const std::int64_t count : {1, 2, 5, 33, 77}) {
      std::int64_t sum = 0;
      double rounded = 0;
      for (const std::int64_t in_group : page_locked_groups(count, bytes)) {
        sum += in_group;
        rounded += std::exp2(std::ceil(std::log2(static_cast<double>(in_group * bytes))));
      }
      EXPECT_EQ(sum, count);
      EXPECT_LE(rounded, (count < 33 ? 2.0 : 1.1) * static_cast<double>(count * bytes)) << count << " of " << bytes;
    }
  }
}

}  // namespace
}  // namespace lora_train::model
