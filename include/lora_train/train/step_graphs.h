// A step that the host asks for in a few calls: forward and backward of a micro-batch, recorded for each batch class, one
// chunk of the loss head, replayed as often as a micro-batch has chunks, and the update (kernels/graph.h).
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
  /// Records for every batch of `batches`: one on the device for each class that is to be replayed, its dropout keys set. All
  /// of them, and an update, have been computed once as they come, frozen. Adds to loss and gradients of that. Throws
  /// DeviceError where CUDA refuses.
  StepGraphs(StepContext& context, const std::map<int, model::Batch>& batches);

  bool has(int class_index) const { return bodies_.contains(class_index); }
  /// Gradients of the micro-batch that BatchFeed has put into this class.
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
