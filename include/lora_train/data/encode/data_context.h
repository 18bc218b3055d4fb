// What reading and encoding data needs in addition to the profile section.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace lora_train::tokenizer {
class Tokenizer;
class ChatTemplate;
}  // namespace lora_train::tokenizer

namespace lora_train::data {

struct DataContext {
  const tokenizer::Tokenizer* tokenizer = nullptr;  ///< this and the template: null if all examples are pre-tokenised
  const tokenizer::ChatTemplate* chat_template = nullptr;
  std::int64_t vocab_size = 0;               ///< ids must be in [0, vocab_size); 0 = not checked
  std::int64_t max_position_embeddings = 0;  ///< caps max_seq_len: auto; a larger number causes a warning; 0 = not
                                             ///< checked
  std::int64_t seed = 0;                     ///< seed for the val_set_size split
  std::filesystem::path cache_folder = {};   ///< token cache folder; empty = keep tokens in memory
  std::size_t num_threads = 0;               ///< tokeniser threads; 0 = one per core
  bool reads_soft_labels = false;  ///< training examples keep the teacher's log-probabilities; at least one example
                                   ///< must have them
  std::filesystem::path model_folder = {};  ///< its SYSTEM_PROMPT.txt is named if no chat has a system turn
};

}  // namespace lora_train::data
