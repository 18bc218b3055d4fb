// The CUDA graphs of a step (kernels/launch/graph.h): forward and backward per batch class, one chunk of the loss head (replayed once
// per chunk), and the update.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "lora_train/kernels/launch/graph.h"
#include "lora_train/model/batch.h"

namespace lora_train::run {

struct StepContext;

class StepGraphs {
 public:
  /// `batches` maps a class index to a batch of that class on the device, with its dropout keys set. Before this call, each
  /// batch and an update must have run once without graphs, frozen. The objective has enqueue_loss_chunk. Adds to loss and gradients. Throws DeviceError if CUDA
  /// refuses.
  StepGraphs(StepContext& context, const std::map<int, model::Batch>& batches);

  bool has(int class_index) const { return bodies_.contains(class_index); }
  /// Computes the gradients of the micro-batch that BatchFeed last put for this class.
  void replay(int class_index, std::int64_t num_chunks);
  void update();

 private:
  struct Body {
    model::Batch batch;  ///< the graphs read its memory
    std::unique_ptr<kernels::Graph> forward, backward;
  };
  std::map<int, Body> bodies_;
  std::unique_ptr<kernels::Graph> losses_, update_;
};

}  // namespace lora_train::run
