// Speed of encoding, one thread: bytes of text per second for each real tokenizer and kind of text.
// Data as in the tests: $LORA_TRAIN_TEST_DATA, or ../shared/data.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "lora_train/base/file.h"
#include "lora_train/tokenizer/tokenizer.h"

namespace {

using lora_train::tokenizer::Tokenizer;
using lora_train::tokenizer::TokenizerFile;

std::filesystem::path data_folder() {
  const char* given = std::getenv("LORA_TRAIN_TEST_DATA");
  return given != nullptr ? given : "../shared/data";
}

// Whole lines, about 4 KiB a document.
std::vector<std::string> documents(const std::string& text) {
  std::vector<std::string> out(1);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    if (out.back().size() > 4096) out.emplace_back();
    out.back() += text.substr(at, end - at);
    at = end;
  }
  return out;
}

void encode(benchmark::State& state, const std::string& folder, TokenizerFile file, const std::string& text,
            bool with_offsets) {
  const auto tokenizer = Tokenizer::load(data_folder() / folder, {.file = file});
  const auto texts = documents(lora_train::read_file(data_folder() / text));
  std::size_t bytes = 0, tokens = 0;
  for (auto _ : state) {
    for (const std::string& each : texts) {
      tokens += tokenizer->encode(each, with_offsets).ids.size();
      bytes += each.size();
    }
  }
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes));
  state.counters["tokens/s"] = benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsRate);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const std::pair<const char*, TokenizerFile> tokenizers[] = {{"qwen2.5", TokenizerFile::kTokenizerJson},
                                                              {"mistral/v3", TokenizerFile::kTokenizerJson},
                                                              {"mistral/v3", TokenizerFile::kSentencePieceModel}};
  for (const auto& [folder, file] : tokenizers) {
    for (const char* text : {"datasets/chat/gsm8k-chat.jsonl", "text/multilingual.txt"}) {
      for (const bool with_offsets : {false, true}) {
        const std::string name = std::string(folder) +
                                 (file == TokenizerFile::kSentencePieceModel ? " model " : " json ") + text +
                                 (with_offsets ? " offsets" : " ids");
        benchmark::RegisterBenchmark(name.c_str(),
                                     [=](benchmark::State& state) { encode(state, folder, file, text, with_offsets); });
      }
    }
  }
  benchmark::RunSpecifiedBenchmarks();
}
