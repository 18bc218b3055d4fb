// Generates completions of the base and of an adapter, from one copy of the weights.
#include "lora_train/evaluate/run_generation.h"

#include <algorithm>

#include "inference.h"
#include "lora_train/base/log.h"
#include "lora_train/base/text.h"
#include "lora_train/generate/generator.h"

namespace lora_train::evaluate {
namespace {

/// Prompts in a group that runs on the adapter and then, if requested, on the base.
constexpr std::size_t kPromptsPerBatch = 64;

std::int64_t longest_sequence(const GenerateRequest& request) {
  std::int64_t longest = 1;
  for (const auto& prompt : request.prompts) {
    longest = std::max(longest, static_cast<std::int64_t>(prompt.ids.size()) + prompt.max_new_tokens);
  }
  return longest;
}

class Generation {
 public:
  Generation(const GenerateRequest& request, GenerateSink& sink, generate::Generator& generator)
      : request_(request), sink_(sink), generator_(generator) {}

  void run() {
    const std::size_t part = request_.compare ? kPromptsPerBatch : request_.prompts.size();
    for (std::size_t begin = 0; begin < request_.prompts.size(); begin += part) {
      const std::size_t end = std::min(begin + part, request_.prompts.size());
      if (request_.compare) run_part(begin, end, true);
      run_part(begin, end, false);
    }
  }

 private:
  void run_part(std::size_t begin, std::size_t end, bool is_base) {
    std::vector<generate::Prompt> prompts;
    for (std::size_t i = begin; i < end; ++i) {
      const GeneratePrompt& prompt = request_.prompts[i];
      prompts.push_back({prompt.ids, prompt.index, prompt.max_new_tokens, prompt.name});
    }
    const generate::GenerateOptions options{
        .sampling = request_.sampling, .stop_ids = request_.stop_ids, .use_adapter = !is_base};
    generate::GenerateCallbacks callbacks;
    callbacks.on_token = [&](std::size_t i, std::int32_t id) { return sink_.on_token(begin + i, is_base, id); };
    callbacks.on_done = [&](std::size_t i, const generate::Completion& completion) {
      sink_.on_done(begin + i, is_base, completion.reason == generate::StopReason::kLength);
    };
    generator_.run(prompts, options, callbacks);
  }

  const GenerateRequest& request_;
  GenerateSink& sink_;
  generate::Generator& generator_;
};

}  // namespace

GenerateTotals run_generation(const GenerateRequest& request, GenerateSink& sink) {
  generate::check_sampling(request.sampling);
  const InferenceModel model = load_for_inference(request.profile, request.adapter, longest_sequence(request));
  const auto generator = make_generator(model, request.profile.run);
  sink.on_start();
  Generation(request, sink, *generator).run();
  return totals_of(generator->stats());
}

}  // namespace lora_train::evaluate
