#include "lora_train/model/activation_plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "lora_train/base/error.h"

namespace lora_train::model {
namespace {

constexpr std::int64_t kNone = ActivationPlan::kNone;

void widen(BufferShape& buffer, std::int64_t width, std::int64_t pitch) {
  buffer.width = std::max(buffer.width, width);
  buffer.pitch = std::max(buffer.pitch, pitch);
}

class Planner {
 public:
  Planner(const ModelShape& shape, const ActivationOptions& options, const std::vector<Recompute>& recompute)
      : shape_(shape), recompute_(recompute) {
    plan_.options = options;
  }

  ActivationPlan plan() {
    const bool needs_backward = plan_.options.needs_backward;
    if (plan_.options.mlp_tile_tokens > 0 &&
        std::ranges::count(recompute_, Recompute::kFull) < std::ssize(recompute_)) {
      throw ShapeError("mlp_tile_tokens", "a layer that keeps its buffers has no tiles");
    }
    const std::int64_t D = shape_.hidden_size;
    std::vector<std::int64_t> inputs;  // layers take turns
    for (std::int64_t i = 0; i < num_inputs(); ++i) inputs.push_back(add({"layer input", D}));
    if (needs_backward) plan_.num_offloaded = std::ssize(shape_.layers) - std::ssize(inputs);
    for (std::size_t i = 0; i < shape_.layers.size(); ++i) {
      add_layer(shape_.layers[i], inputs[i % inputs.size()], needs_backward ? recompute_[i] : Recompute::kFull);
    }
    plan_.final_hidden = add({"final_hidden", D});
    if (needs_backward) add_gradients();
    return std::move(plan_);
  }

 private:
  std::int64_t num_inputs() const {
    const std::int64_t num_layers = std::ssize(shape_.layers);
    if (!plan_.options.needs_backward) return 2;
    return plan_.options.offload_inputs ? std::min(num_layers, kInputRing) : num_layers;
  }

  std::int64_t add(const BufferShape& buffer) {
    if (buffer.width == 0) return kNone;
    plan_.buffers.push_back(buffer);
    return std::ssize(plan_.buffers) - 1;
  }

  /// The layer's own buffer, or the common one of all layers that share it.
  std::int64_t keep(const BufferShape& buffer, Recompute mode) {
    if (!buffer.shared_from || mode < *buffer.shared_from) return add(buffer);
    const auto [entry, is_new] = shared_.try_emplace({buffer.name, buffer.width}, kNone);
    if (is_new) entry->second = add(buffer);
    return entry->second;
  }

  void add_layer(const LayerShape& layer, std::int64_t input, Recompute mode) {
    auto& blocks = plan_.layers.emplace_back();
    for (const BlockShape& shape : layer.blocks) {
      ActivationPlan::Block& block = blocks.emplace_back();
      block.input = blocks.size() == 1 ? input : keep({shape.name + ".input", shape_.hidden_size}, mode);
      for (const BufferShape& buffer : shape.saved) block.saved.push_back(keep(buffer, mode));
    }
  }

  /// Elements per token, for block rows with this many elements: fewer if the block computes tiles.
  std::int64_t per_token(const BlockShape& block, std::int64_t elements) const {
    const std::int64_t N = plan_.options.max_tokens, rows = plan_.num_rows(block.saved.front());
    if (rows == N) return elements;
    const std::int64_t shared = (rows * elements + N - 1) / N;
    return (shared + kColumnStep - 1) / kColumnStep * kColumnStep;
  }

  void add_gradients() {
    BufferShape d_input{"d_input"};
    bool has_scratch = false;
    for (const LayerShape& layer : shape_.layers) {
      for (const BlockShape& block : layer.blocks) {
        for (const ProjectionShape& p : block.projections) {
          widen(d_input, per_token(block, p.input_width()), per_token(block, p.input_pitch()));
          for (const AdapterPlace& place : p.adapters) has_scratch = has_scratch || place.spec.dropout > 0;
        }
      }
    }
    if (has_scratch) plan_.scratch = add({"scratch", d_input.width});
    BufferShape d_hidden{"d_hidden", shape_.hidden_size};
    std::map<std::string, BufferShape> gradients;
    for (const LayerShape& layer : shape_.layers) {
      for (const BlockShape& block : layer.blocks) {
        const ProjectionShape& last = block.projections.back();
        if (!block.has_output_norm) widen(d_hidden, last.d_output_width(), last.d_output_pitch());
        for (const BufferShape& buffer : block.gradients) {
          widen(gradients.try_emplace(buffer.name, buffer).first->second, buffer.width, buffer.pitch);
        }
      }
    }
    plan_.d_hidden = add(d_hidden);
    for (const auto& [name, buffer] : gradients) plan_.gradients[name] = add(buffer);
    plan_.d_input = add(d_input);
  }

  const ModelShape& shape_;
  const std::vector<Recompute>& recompute_;
  ActivationPlan plan_;
  std::map<std::pair<std::string, std::int64_t>, std::int64_t> shared_;
};

}  // namespace

std::int64_t ActivationPlan::num_rows(const BufferShape& buffer) const {
  const bool is_tile = buffer.is_tiled && options.mlp_tile_tokens > 0;
  return is_tile ? std::min(options.mlp_tile_tokens, options.max_tokens) : options.max_tokens;
}

std::int64_t ActivationPlan::bytes(std::int64_t compute_bytes) const {
  std::int64_t sum = 0;
  for (const BufferShape& buffer : buffers) {
    sum += num_rows(buffer) * buffer.row_elements() * (buffer.type == ElementType::kFloat ? 4 : compute_bytes);
  }
  return sum;
}

std::int64_t ActivationPlan::host_bytes(std::int64_t compute_bytes) const {
  const std::int64_t input_bytes =
      options.max_tokens * buffers[static_cast<std::size_t>(final_hidden)].width * compute_bytes;
  std::int64_t sum = 0;
  for (const std::int64_t count : page_locked_groups(num_offloaded, input_bytes)) {
    sum += static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(count * input_bytes)));
  }
  return sum;
}

std::vector<std::int64_t> page_locked_groups(std::int64_t count, std::int64_t bytes) {
  const auto waste = [&](std::int64_t in_group) {
    const auto used = static_cast<std::uint64_t>(in_group * bytes);
    return static_cast<double>(std::bit_ceil(used)) / static_cast<double>(used);
  };
  std::vector<std::int64_t> groups;
  for (std::int64_t left = count; left > 0; left -= groups.back()) {
    std::int64_t best = left;
    for (std::int64_t in_group = left - 1; in_group > 0; --in_group) {
      if (waste(in_group) < waste(best)) best = in_group;
    }
    groups.push_back(best);
  }
  return groups;
}

ActivationPlan plan_activations(const ModelShape& shape, const ActivationOptions& options,
                                const std::vector<Recompute>& recompute) {
  return Planner(shape, options, recompute).plan();
}

bool choose_recompute(const std::vector<Recompute>& allowed, const std::function<bool()>& fits,
                      std::vector<Recompute>& modes) {
  for (std::size_t i = 0; i < allowed.size(); ++i) {
    std::fill(modes.begin(), modes.end(), allowed[i]);
    if (!fits()) continue;
    if (i > 0) relax_recompute(allowed[i - 1], fits, modes);
    return true;
  }
  return false;
}

void relax_recompute(Recompute less, const std::function<bool()>& fits, std::vector<Recompute>& modes) {
  const std::vector<Recompute> before = modes;
  const auto relax = [&](std::ptrdiff_t count) {
    modes = before;
    std::fill(modes.end() - count, modes.end(), less);
  };
  std::ptrdiff_t most = 0, too_many = std::ssize(modes) + 1;
  while (too_many - most > 1) {
    const std::ptrdiff_t count = (most + too_many) / 2;
    relax(count);
    (fits() ? most : too_many) = count;
  }
  relax(most);
}

const char* to_string(Recompute mode) {
  static constexpr std::array<const char*, 4> kNames = {"off", "cheap", "gate_up", "full"};
  return kNames[static_cast<std::size_t>(mode)];
}

std::string describe_recompute(const std::vector<Recompute>& modes) {
  const std::int64_t num_less = std::ranges::count(modes, modes.back());
  const std::string first = to_string(modes.front());
  if (modes.front() == modes.back()) return first;
  return fmt::format("{}, but {} in the last {} layers", first, to_string(modes.back()), num_less);
}

}  // namespace lora_train::model
