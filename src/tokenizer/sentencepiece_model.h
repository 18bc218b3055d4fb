// tokenizer.model: SentencePiece's ModelProto, read by hand (it is a small protobuf message).
// Source of the field numbers: google/sentencepiece, src/sentencepiece_model.proto.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lora_train::tokenizer {

enum class PieceType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

struct SentencePiece {
  std::string text;
  float score = 0.0F;
  PieceType type = PieceType::kNormal;
};

struct SentencePieceModel {
  std::vector<SentencePiece> pieces;  ///< index = id
  bool add_dummy_prefix = true;
  bool escape_whitespaces = true;
  bool byte_fallback = false;
  std::string bos_piece = "<s>", eos_piece = "</s>", pad_piece = "<pad>";
};

/// FormatError (file, byte) for malformed files; FormatError by name for what is not built: model types other than BPE,
/// a character map (normalisation), removal of extra white space, white space as a suffix.
SentencePieceModel parse_sentencepiece_model(std::string_view bytes, const std::string& file);

}  // namespace lora_train::tokenizer
