#include "lora_train/evaluate/chat_turns.h"

#include "inference.h"
#include "lora_train/base/error.h"

namespace lora_train::evaluate {
namespace {

void answer(const GenerateRequest& request, const ConversationTurn& turn, generate::Generator& generator,
            Conversation& conversation) {
  const generate::Prompt prompt{turn.prompt.ids, turn.prompt.index, turn.prompt.max_new_tokens, turn.prompt.name};
  const generate::GenerateOptions options{
      .sampling = request.sampling, .stop_ids = request.stop_ids, .use_adapter = turn.use_adapter, .reuse_cache = true};
  const bool is_base = !turn.use_adapter;
  generate::GenerateCallbacks callbacks;
  callbacks.on_token = [&](std::size_t, std::int32_t id) { return conversation.on_token(0, is_base, id); };
  callbacks.on_done = [&](std::size_t, const generate::Completion& completion) {
    conversation.on_done(0, is_base, completion.reason == generate::StopReason::kLength);
  };
  try {
    generator.run({&prompt, 1}, options, callbacks);
  } catch (const StopError&) {
    conversation.on_stop();
  }
}

}  // namespace

GenerateTotals converse(const GenerateRequest& request, Conversation& conversation) {
  generate::check_sampling(request.sampling);
  constexpr std::int64_t kNoPositions = 1;  // the generator has its own, as many as the conversation needs
  const InferenceModel model = load_for_inference(request.profile, request.adapter, kNoPositions);
  const auto generator = make_generator(model, request.profile.run);
  conversation.on_start();
  while (const auto turn = conversation.next_turn()) answer(request, *turn, *generator, conversation);
  return totals_of(generator->stats());
}

}  // namespace lora_train::evaluate
