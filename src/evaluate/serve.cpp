#include "lora_train/evaluate/serve.h"

#include "inference.h"

namespace lora_train::evaluate {

GenerateTotals serve(const ServeRequest& request, serve::RequestQueue& queue) {
  constexpr std::int64_t kNoPositions = 1;  // the generator has its own
  std::vector<plan::NamedAdapter> adapters;
  for (const auto& [name, folder] : request.adapters) adapters.push_back({name, folder});
  const InferenceModel model = adapters.empty()
                                   ? load_for_inference(request.profile, request.only_adapter, kNoPositions)
                                   : load_several(request.profile, adapters, kNoPositions);
  const auto generator = make_generator(model, request.profile.run);
  generator->serve(queue);
  return totals_of(generator->stats());
}

}  // namespace lora_train::evaluate
