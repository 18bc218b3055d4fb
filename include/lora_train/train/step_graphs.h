// The CUDA graphs of a step (kernels/graph.h): forward and backward of a micro-batch for each batch class, one chunk of the
// loss head, replayed once per chunk, and the update.
#pragma once

#include <functional>
#include <map>
#include <memory>

#include "lora_train/kernels/graph.h"
#include "lora_train/model/batch.h"

namespace lora_train::train {

struct StepContext;

class StepGraphs {
 public:
  /// Captures every batch of `batches`: one on the device per class to replay, with its dropout keys set. Before, each of them
  /// and an update must have run once without graphs, frozen. Adds to their loss and gradients. Throws DeviceError if CUDA
  /// refuses.
  StepGraphs(StepContext& context, const std::map<int, model::Batch>& batches);

  bool has(int class_index) const { return bodies_.contains(class_index); }
  /// Computes the gradients of the micro-batch that BatchFeed has put into this class.
  void replay(int class_index, std::int64_t num_chunks);
  void update();

 private:
  struct Body {
    model::Batch batch;  ///< whose memory the graphs read
    std::unique_ptr<kernels::Graph> forward, backward;
  };
  std::map<int, Body> bodies_;
  std::unique_ptr<kernels::Graph> losses_, update_;
};

}  // namespace lora_train::train
