#include "sentencepiece_data.h"

#include <sentencepiece_processor.h>

#include "lora_train/base/error.h"
#include "sentencepiece_file.h"

namespace lora_train::tokenizer {
namespace {

TokenKind kind_of_piece(const sentencepiece::SentencePieceProcessor& processor, const SentencePieceFile& model,
                        int id) {
  if (processor.IsUnknown(id)) return TokenKind::kUnknown;
  if (processor.IsControl(id)) return TokenKind::kControl;
  if (processor.IsUnused(id)) return TokenKind::kUnused;
  if (processor.IsByte(id)) return TokenKind::kByte;
  return model.user_defined.contains(processor.IdToPiece(id)) ? TokenKind::kUserDefined : TokenKind::kNormal;
}

/// Other formats hold the pieces alone, and read text as it is.
void check_exportable(const SentencePieceFile& model, const std::string& file) {
  if (!model.is_bpe) throw FormatError(file + ": trainer_spec.model_type", "only BPE models can be exported");
  if (!model.byte_fallback) throw FormatError(file + ": trainer_spec.byte_fallback", "false cannot be exported");
  if (model.has_charsmap)
    throw FormatError(file + ": normalizer_spec.precompiled_charsmap",
                      "a model that normalises text cannot be exported");
  if (model.remove_extra_whitespaces)
    throw FormatError(file + ": normalizer_spec.remove_extra_whitespaces", "true cannot be exported");
}

}  // namespace

TokenizerData sentencepiece_data(std::string_view bytes, const std::string& file) {
  const SentencePieceFile model = check_sentencepiece_file(bytes, file);
  check_exportable(model, file);
  sentencepiece::SentencePieceProcessor processor;
  if (const auto status = processor.LoadFromSerializedProto(model.bytes); !status.ok()) {
    throw FormatError(file, "SentencePiece refuses the model: " + std::string(status.message()));
  }
  TokenizerData data;
  data.model = TokenizerModel::kSentencePieceBpe;
  data.adds_space_prefix = model.add_dummy_prefix;
  for (int id = 0; id < processor.GetPieceSize(); ++id) {
    data.tokens.push_back({processor.IdToPiece(id), kind_of_piece(processor, model, id), processor.GetScore(id)});
  }
  if (processor.unk_id() >= 0) data.unk_id = processor.unk_id();
  return data;
}

}  // namespace lora_train::tokenizer
