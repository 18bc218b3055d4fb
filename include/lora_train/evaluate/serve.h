// `serve`: a model and its adapters, for requests that come and go.
#pragma once

#include <string>
#include <vector>

#include "lora_train/evaluate/generate_request.h"
#include "lora_train/serve/request_queue.h"

namespace lora_train::evaluate {

struct ServedAdapter {
  std::string name;
  std::filesystem::path folder;  ///< PEFT
};

struct ServeRequest {
  Profile profile;  ///< the engine reads model, device, precision and similar keys
  /// ServedRequest::owner is an index in this list. Adapters with token rows (model/adapter_spec.h) are not taken.
  std::vector<ServedAdapter> adapters;
  /// Instead: the only adapter, token rows or not; it answers requests without an owner.
  std::filesystem::path only_adapter;
};

/// Loads the model once and answers until `queue` has no more. Throws Error; StopError only before queue.on_start().
GenerateTotals serve(const ServeRequest& request, serve::RequestQueue& queue);

}  // namespace lora_train::evaluate
