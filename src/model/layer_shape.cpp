#include "lora_train/model/layer_shape.h"

#include <algorithm>

#include "blocks/block_shapes.h"
#include "lora_train/base/error.h"

namespace lora_train::model {

std::string linear_path(std::int64_t layer, const std::string& linear) { return layer_prefix(layer) + linear; }

std::string linear_path(const AdapterSpec& spec) { return linear_path(spec.layer, spec.linear); }

std::vector<Parameter> token_row_tensors(const TokenRows& rows, std::int64_t hidden_size) {
  std::vector<Parameter> tensors;
  if (!rows.embedding.empty()) tensors.push_back({kEmbeddingRows, {std::ssize(rows.embedding), hidden_size}});
  if (!rows.head.empty()) tensors.push_back({kHeadRows, {std::ssize(rows.head), hidden_size}});
  return tensors;
}

namespace {

LayerShape layer_shape(const ModelConfig& config, std::int64_t layer, const ColumnLayout& columns = {}) {
  LayerShape shape{{attention::shape(config, layer), mlp::shape(config, layer, columns.gate_up)}};
  for (BlockShape& block : shape.blocks) {
    for (ProjectionShape& projection : block.projections) {
      projection.row_pitch = columns.row_pitch;
      for (LinearShape& linear : projection.linears) {
        linear.out_begin = projection.out_features;
        projection.out_features += linear.out_features;
      }
    }
  }
  return shape;
}

/// Gives the adapter the columns that follow those of the previous adapters.
void place_adapter(const AdapterSpec& spec, std::int64_t index, LayerShape& layer) {
  for (BlockShape& block : layer.blocks) {
    for (ProjectionShape& projection : block.projections) {
      for (std::size_t i = 0; i < projection.linears.size(); ++i) {
        if (projection.linears[i].name != spec.linear) continue;
        const auto& before = projection.adapters;
        const std::int64_t column = before.empty() ? 0 : before.back().column + before.back().spec.rank;
        projection.num_columns = (column + spec.rank + kColumnStep - 1) / kColumnStep * kColumnStep;
        projection.adapters.push_back({spec, index, static_cast<std::int64_t>(i), column});
        return;
      }
    }
  }
  throw ShapeError(linear_path(spec), "the model has no such linear");
}

void widen_buffers(BlockShape& block) {
  const auto projection_at = [&](std::int64_t index) -> const ProjectionShape& {
    return block.projections[static_cast<std::size_t>(index)];
  };
  for (BufferShape& buffer : block.saved) {
    if (buffer.projection != BufferShape::kNoProjection) {
      buffer.width = projection_at(buffer.projection).input_width();
      buffer.pitch = projection_at(buffer.projection).input_pitch();
    }
    if (buffer.output_of != BufferShape::kNoProjection) {
      buffer.width = projection_at(buffer.output_of).d_output_width();
      buffer.pitch = projection_at(buffer.output_of).d_output_pitch();
    }
  }
  for (BufferShape& buffer : block.gradients) {
    if (buffer.width == 0 || buffer.projection == BufferShape::kNoProjection) continue;
    buffer.width = projection_at(buffer.projection).d_output_width();
    buffer.pitch = projection_at(buffer.projection).d_output_pitch();
  }
}

}  // namespace

ModelShape model_shape(const ModelConfig& config, const std::vector<AdapterSpec>& adapters, const ColumnLayout& columns,
                       const TokenRows& rows) {
  ModelShape shape;
  shape.rows = rows;
  shape.hidden_size = config.hidden_size;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    shape.layers.push_back(layer_shape(config, layer, columns));
  }
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    const AdapterSpec& spec = adapters[i];
    place_adapter(spec, static_cast<std::int64_t>(i), shape.layers.at(static_cast<std::size_t>(spec.layer)));
  }
  for (LayerShape& layer : shape.layers) std::for_each(layer.blocks.begin(), layer.blocks.end(), widen_buffers);
  return shape;
}

std::vector<std::string> linear_names(const ModelConfig& config, std::int64_t layer) {
  std::vector<std::string> names;
  for (const BlockShape& block : layer_shape(config, layer).blocks) {
    for (const ProjectionShape& projection : block.projections) {
      for (const LinearShape& linear : projection.linears) names.push_back(linear.name);
    }
  }
  return names;
}

const BufferShape& saved_buffer(const LayerShape& layer, std::string_view name) {
  for (const BlockShape& block : layer.blocks) {
    for (const BufferShape& buffer : block.saved) {
      if (buffer.name == name) return buffer;
    }
  }
  throw ShapeError(std::string(name), "no block saves such a buffer");
}

std::string layer_prefix(std::int64_t layer) { return fmt::format("model.layers.{}.", layer); }

}  // namespace lora_train::model
