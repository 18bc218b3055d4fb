#include "sentencepiece_data.h"

#include <sentencepiece_processor.h>

#include "lora_train/base/error.h"
#include "sentencepiece_file.h"

namespace lora_train::tokenizer {
namespace {

TokenKind kind_of_piece(const sentencepiece::SentencePieceProcessor& processor, int id) {
  if (processor.IsUnknown(id)) return TokenKind::kUnknown;
  if (processor.IsControl(id)) return TokenKind::kControl;
  if (processor.IsUnused(id)) return TokenKind::kUnused;
  return processor.IsByte(id) ? TokenKind::kByte : TokenKind::kNormal;
}

}  // namespace

TokenizerData sentencepiece_data(std::string_view bytes, const std::string& file) {
  const SentencePieceFile model = check_sentencepiece_file(bytes, file);
  if (!model.is_bpe) throw FormatError(file, "is a Unigram model; only BPE models can be exported");
  sentencepiece::SentencePieceProcessor processor;
  if (const auto status = processor.LoadFromSerializedProto(model.bytes); !status.ok()) {
    throw FormatError(file, "SentencePiece refuses the model: " + std::string(status.message()));
  }
  TokenizerData data;
  data.model = TokenizerModel::kSentencePieceBpe;
  data.adds_space_prefix = model.add_dummy_prefix;
  for (int id = 0; id < processor.GetPieceSize(); ++id) {
    data.tokens.push_back({processor.IdToPiece(id), kind_of_piece(processor, id), processor.GetScore(id)});
  }
  if (processor.unk_id() >= 0) data.unk_id = processor.unk_id();
  return data;
}

}  // namespace lora_train::tokenizer
