// What must not change the numbers: recomputation, stale buffers, the neighbours of a document, where a backward stops.
// That the numbers are right is shown against transformers + PEFT in tests/parity.
#include "lora_train/model/decoder.h"

#include <cmath>
#include <set>

#include "decoder_fixture.h"
#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "support/tolerance.h"

namespace lora_train::model {
namespace {

using testing_support::tolerance;

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

constexpr std::pair<LinearFormat, bool> kFormats[] = {{LinearFormat::k4Bit, false},
                                                      {LinearFormat::k4Bit, true},
                                                      {LinearFormat::kInt8, false},
                                                      {LinearFormat::kFp8, false}};

TEST_F(DecoderTest, LayersDecodedWhenAcquiredGiveTheSameBits) {
  const Batch batch = batch_of({9, 1, 5});
  const double plain = run(batch, Recompute::kOff, 0, {0, false}, false).loss;
  for (const auto& [format, nested] : kFormats) {
    for (const std::string except : {"", "model.layers.1.mlp.up_proj"}) {
      quantise(format, nested, except);
      for (const std::int64_t first_adapted : {0, 2}) {  // layers without adapters have another layout
        decoded_layers_ = kAllLayers;
        const Result once = run(batch, Recompute::kOff, first_adapted, {first_adapted, false}, false);
        EXPECT_NE(once.loss, plain);
        for (decoded_layers_ = 0; decoded_layers_ < 3; ++decoded_layers_) {
          for (const Recompute mode : {Recompute::kOff, Recompute::kFull}) {
            const Result other = run(batch, mode, first_adapted, {first_adapted, false}, true);
            EXPECT_EQ(other.loss, once.loss) << decoded_layers_;
            EXPECT_TRUE(at::equal(other.grads, once.grads)) << decoded_layers_;
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
        std::int64_t bytes = weights.quantized_bytes(), plain = 0;
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
        EXPECT_EQ(weight_bytes(config_, shape, 4, storage_, decoded), 4 * num_parameters(config_) - plain + bytes)
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
  const storage::WeightFiles good = *files_;
  std::vector<at::Tensor> keep;
  std::vector<storage::TensorToWrite> tensors;
  for (const auto& spec : expected_tensors(config_)) {
    keep.push_back(uniform(spec.shape, 3));
    if (spec.name == "model.layers.2.mlp.down_proj.weight") keep.back()[7][11] = NAN;
    tensors.push_back(tensor_to_write(spec.name, keep.back()));
  }
  storage::write_safetensors(folder_ / "model.safetensors", tensors);
  files_ = std::make_unique<storage::WeightFiles>(storage::open_model_weights(folder_.path()));
  for (const auto& [format, nested] : kFormats) {
    quantise(format, nested);
    try {
      run(batch_of({9}), Recompute::kOff, 0, {0, false}, false);
      ADD_FAILURE() << "accepted";
    } catch (const FormatError& error) {
      EXPECT_NE(std::string(error.where()).find("model.safetensors: model.layers.2.mlp.down_proj.weight"),
                std::string::npos);
    }
  }
}

TEST_F(DecoderTest, RecomputationGivesTheSameBits) {
  const Batch batch = batch_of({9, 1, 5});
  const Result off = run(batch, Recompute::kOff, 0, {0, false}, false);
  for (const Recompute mode : {Recompute::kCheap, Recompute::kGateUp, Recompute::kFull}) {
    const Result other = run(batch, mode, 0, {0, false}, false);
    EXPECT_EQ(other.loss, off.loss);
    EXPECT_TRUE(at::equal(other.grads, off.grads));
  }
}

TEST_F(DecoderTest, BothFormsOfTheBackwardOfGateUpGiveTheSameGradients) {
  const Batch batch = batch_of({9, 1, 5});
  const Result beside_input = run(batch, Recompute::kOff, 0, {0, false}, false);
  for (const Recompute mode : {Recompute::kOff, Recompute::kCheap, Recompute::kGateUp, Recompute::kFull}) {
    const Result beside_output = run(batch, mode, 0, {0, false}, true, {.gate_up = GradientColumns::kBesideOutput});
    EXPECT_EQ(beside_output.loss, beside_input.loss);
    EXPECT_CLOSE(beside_output.grads, beside_input.grads, tolerance(at::kFloat));
    EXPECT_FALSE(at::equal(beside_output.grads, beside_input.grads)) << "the same form twice";
  }
}

TEST_F(DecoderTest, EitherRowPitchGivesTheSameBits) {
  const Batch batch = batch_of({9, 1, 5});
  for (const Recompute mode : {Recompute::kOff, Recompute::kGateUp, Recompute::kFull}) {
    const Result exact = run(batch, mode, 1, {0, false}, false);
    const Result padded = run(batch, mode, 1, {0, false}, true, {.row_pitch = RowPitch::kPadded});
    EXPECT_EQ(padded.loss, exact.loss);
    EXPECT_TRUE(at::equal(padded.grads, exact.grads));
  }
}

TEST_F(DecoderTest, MemoryIsWhatThePlanSaysWithEitherRowPitch) {
  std::int64_t exact_bytes = 0;
  for (const RowPitch row_pitch : {RowPitch::kExact, RowPitch::kPadded}) {
    const ModelShape shape = model_shape(config_, adapters(config_, 1), {.row_pitch = row_pitch});
    const Activations activations(shape, {.max_tokens = 7}, std::vector<Recompute>(3, Recompute::kCheap), at::kFloat,
                                  at::kMeta);
    std::int64_t bytes = 0;
    for (const auto& [name, buffer] : activations.named_buffers())
      bytes += static_cast<std::int64_t>(buffer.storage().nbytes());
    EXPECT_EQ(bytes, activations.bytes());
    Trainables parameters = make_trainables(config_, shape, TrainedWeights::kNone, at::kMeta);
    ResidentWeights weights(config_, shape, parameters, {at::kFloat, at::kMeta}, nullptr);
    std::int64_t adapted = 0, plain = 0;
    for (std::int64_t layer = 0; layer < 3; ++layer) {
      for (const BlockWeights& block : weights.acquire(layer, Pass::kForward)) {
        for (const Projection& p : block.projections) {
          adapted += static_cast<std::int64_t>(p.weight.storage().nbytes());
          plain += 4 * p.in_features * p.out_features;
        }
      }
    }
    EXPECT_EQ(weight_bytes(config_, shape, 4) - weight_bytes(config_, model_shape(config_), 4), adapted - plain);
    EXPECT_GT(bytes + adapted, exact_bytes) << "padded rows take more";
    exact_bytes = bytes + adapted;
  }
}

TEST_F(DecoderTest, StaleBuffersAreNeverRead) {
  const Batch batch = batch_of({9, 1, 5});
  for (const Recompute mode : {Recompute::kOff, Recompute::kCheap, Recompute::kGateUp, Recompute::kFull}) {
    const Result clean = run(batch, mode, 0, {0, false}, false), poisoned = run(batch, mode, 0, {0, false}, true);
    EXPECT_EQ(poisoned.loss, clean.loss);
    EXPECT_TRUE(at::equal(poisoned.grads, clean.grads));
  }
}

TEST_F(DecoderTest, DocumentsDoNotSeeEachOther) {
  const double together = run(batch_of({9, 4, 5}), Recompute::kOff, 0, {0, false}, false).loss;
  double apart = 0;
  for (const int64_t length : {9, 4, 5}) apart += run(batch_of({length}), Recompute::kOff, 0, {0, false}, false).loss;
  EXPECT_NEAR(together, apart, 1e-5 * apart);
}

TEST_F(DecoderTest, OneAttentionHeadWorks) {
  config_.num_heads = config_.num_kv_heads = 1;
  make_weights();
  const Result together = run(batch_of({9, 5}), Recompute::kOff, 0, {0, false}, true);
  double apart = 0;
  for (const int64_t length : {9, 5}) apart += run(batch_of({length}), Recompute::kFull, 0, {0, false}, true).loss;
  EXPECT_NEAR(together.loss, apart, 1e-5 * apart);
}

TEST_F(DecoderTest, BackwardStopsAtTheFirstAdapterWithTheSameGradients) {
  const Batch batch = batch_of({9, 5});
  const Result stopped = run(batch, Recompute::kOff, 1, {1, false}, false);
  const Result whole = run(batch, Recompute::kOff, 1, {0, false}, false);
  EXPECT_CLOSE(stopped.grads, whole.grads, tolerance(at::kFloat));
}

}  // namespace
}  // namespace lora_train::model
