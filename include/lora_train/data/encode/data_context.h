// What reading and encoding data needs besides the section of the profile.
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
  const tokenizer::Tokenizer* tokenizer = nullptr;  ///< this and the template: null where all rows are pre-tokenised
  const tokenizer::ChatTemplate* chat_template = nullptr;
  std::int64_t vocab_size = 0;               ///< ids must lie in [0, vocab_size); 0 = not checked
  std::int64_t max_position_embeddings = 0;  ///< caps max_seq_len: auto; a larger number is warned of; 0 = not checked
  std::int64_t seed = 0;                     ///< of the split of val_set_size
  std::filesystem::path cache_folder = {};   ///< of the token cache; empty = tokens are kept in memory
  std::size_t num_threads = 0;               ///< that tokenise; 0 = one per core
  bool reads_soft_labels = false;  ///< training rows keep the log-probabilities of a teacher; some row must have them
};

}  // namespace lora_train::data
