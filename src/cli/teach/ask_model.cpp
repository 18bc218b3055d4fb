#include "ask_model.h"

#include <nlohmann/json.hpp>

#include "commands/answer_request.h"
#include "engine/engine_loader.h"
#include "output/answers.h"

namespace lora_train::cli {

void ask_model(const ModelTeacher& teacher, TeachJob& job, TeachProgress& progress) {
  const std::vector<std::size_t> open = job.open();
  if (open.empty()) return;
  const ModelFolders& folders = teacher.folders;
  const data::PromptOptions options{folders.tokenizer.get(), folders.chat_template.get(), job.options().is_raw, ""};
  std::vector<data::Prompt> prompts;
  for (const std::size_t answer : open) {
    const teach::Question question = job.question(answer);
    prompts.push_back(
        job.options().is_raw
            ? data::make_prompt(nlohmann::json::parse(question.prompt).get<std::string>(), question.source, options)
            : data::make_prompt(data::ChatQuestion{question.source, question.prompt, question.tools}, options));
  }
  const std::vector<std::int64_t> lengths =
      answer_lengths(prompts, teacher.max_tokens, folders.config.context_length());
  evaluate::GenerateRequest request;
  request.profile = teacher.profile;
  request.adapter = folders.adapter;
  request.sampling = teacher.sampling;
  request.stop_ids = tokenizer::stop_token_ids(*folders.tokenizer, folders.chat_template.get());
  for (std::size_t i = 0; i < open.size(); ++i)
    request.prompts.push_back({prompts[i].ids, static_cast<std::int64_t>(open[i]), lengths[i], prompts[i].source});
  AnswerCollector::Callbacks callbacks;
  callbacks.on_answers = [&](std::size_t i, const Answers& answers) {
    const nlohmann::ordered_json text = answers.answer.text;
    const nlohmann::ordered_json message = {{"role", "assistant"}, {"content", text}};
    const teach::Answer answer{job.options().is_raw ? text.dump() : message.dump(),
                               answers.answer.is_cut ? "length" : "stop",
                               static_cast<std::int64_t>(prompts[i].ids.size()),
                               static_cast<std::int64_t>(answers.answer.ids.size()),
                               {}};
    job.add(open[i], answer);
    progress.add(answer);
  };
  AnswerCollector collector(*folders.tokenizer, {request.stop_ids, teacher.stop, false}, std::move(callbacks));
  load_engine().generate(request, collector);
}

}  // namespace lora_train::cli
