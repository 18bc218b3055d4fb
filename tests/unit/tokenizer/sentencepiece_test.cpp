// tokenizer.model files made by hand, byte by byte.
#include <gtest/gtest.h>

#include <cstring>

#include "lora_train/base/error.h"
#include "lora_train/base/file.h"
#include "lora_train/tokenizer/tokenizer.h"
#include "support/test_data.h"
#include "tokenizer/sentencepiece_tokenizer.h"

namespace lora_train::tokenizer {
namespace {

using Ids = std::vector<std::int32_t>;

std::string varint_field(int number, unsigned value) {
  return std::string(1, static_cast<char>(number << 3)) + static_cast<char>(value);
}
std::string bytes_field(int number, const std::string& bytes) {
  const unsigned tag = (static_cast<unsigned>(number) << 3U) | 2U;
  std::string out;
  for (unsigned rest = tag;; rest >>= 7U) {
    out += static_cast<char>(rest < 0x80 ? rest : (rest & 0x7FU) | 0x80U);
    if (rest < 0x80) break;
  }
  return out + static_cast<char>(bytes.size()) + bytes;
}

struct Piece {
  std::string text;
  float score;
  unsigned type;
};

std::string piece_field(const Piece& piece) {
  std::string score(4, '\0');
  std::memcpy(score.data(), &piece.score, 4);
  return bytes_field(1, bytes_field(1, piece.text) + "\x15" + score + varint_field(3, piece.type));
}

const std::string kBpe = varint_field(3, 2);
const std::string kIdentity = varint_field(4, 0);  // remove_extra_whitespaces: false; the rest by default

std::string model_bytes(const std::vector<Piece>& pieces, const std::string& trainer = kBpe,
                        const std::string& normalizer = kIdentity) {
  std::string bytes;
  for (const Piece& piece : pieces) bytes += piece_field(piece);
  return bytes + bytes_field(2, trainer) + bytes_field(3, normalizer);
}

const std::vector<Piece> kPieces = {{"<unk>", 0, 2}, {"<s>", 0, 3}, {"</s>", 0, 3}, {"\xE2\x96\x81", -9, 1},
                                    {"a", -9, 1},    {"b", -9, 1},  {"ab", -2, 1},  {"ba", -1, 1},
                                    {"<u>", 0, 4},   {"aa", -3, 1}};

std::unique_ptr<Tokenizer> load(const std::string& bytes) {
  return make_sentencepiece(bytes, "tokenizer.model", {}, {});
}

TEST(SentencePiece, MergesTheHighestScoreThenTheLeftmost) {
  const auto tokenizer = load(model_bytes(kPieces));
  EXPECT_EQ(tokenizer->encode("aba").ids, (Ids{3, 4, 7})) << "ba beats ab";
  EXPECT_EQ(tokenizer->encode("aaa").ids, (Ids{3, 9, 4})) << "from the left";
  EXPECT_EQ(tokenizer->encode("").ids, Ids{});
}

TEST(SentencePiece, FindsUserDefinedButNoControlPiecesInText) {
  const auto tokenizer = load(model_bytes(kPieces));
  const Encoding encoding = tokenizer->encode("a<u>b<s>", true);
  EXPECT_EQ(encoding.ids, (Ids{3, 4, 8, 5, 0})) << "one unknown token for the run <s>";
  EXPECT_EQ(encoding.offsets, (std::vector<ByteRange>{{0, 1}, {0, 1}, {1, 4}, {4, 5}, {5, 8}}));
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->eos_id(), 2);
  EXPECT_EQ(tokenizer->pad_id(), std::nullopt);
  EXPECT_TRUE(tokenizer->is_special(1));
}

TEST(SentencePiece, DecodesSpacesAndDropsTheDummyOne) {
  const auto tokenizer = load(model_bytes(kPieces));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("ab  ba").ids), "ab  ba");
  EXPECT_EQ(tokenizer->decode(Ids{1, 3, 4, 2}, true), "a");
  EXPECT_EQ(tokenizer->decode(Ids{1, 3, 4, 2}), "<s>a</s>");
}

TEST(SentencePiece, RealModelDecodesWhatItEncodes) {
  LORA_TRAIN_REQUIRE_DATA(model, "mistral/v3/tokenizer.model");
  LORA_TRAIN_REQUIRE_DATA(lines, "text/multilingual.txt");
  const auto tokenizer = load(read_file(model));
  const std::string text = read_file(lines);
  EXPECT_TRUE(tokenizer->decode(tokenizer->encode(text).ids) == text);
}

void expect_refused(const std::string& bytes, const std::string& where, const std::string& message) {
  try {
    load(bytes);
    ADD_FAILURE() << "accepted; expected: " << message;
  } catch (const FormatError& error) {
    EXPECT_NE(error.where().find("tokenizer.model" + where), std::string::npos) << error.what();
    EXPECT_NE(error.message().find(message), std::string::npos) << error.what();
  }
}

TEST(SentencePiece, RefusesByNameWhatIsNotBuilt) {
  expect_refused(model_bytes(kPieces, varint_field(3, 1)), ": trainer_spec.model_type", "UNIGRAM");
  expect_refused(model_bytes(kPieces, varint_field(3, 4)), ": trainer_spec.model_type", "CHAR");
  expect_refused(model_bytes(kPieces, kBpe, bytes_field(2, "map") + kIdentity),
                 ": normalizer_spec.precompiled_charsmap", "table");
  expect_refused(model_bytes(kPieces, kBpe, ""), ": normalizer_spec.remove_extra_whitespaces", "true");
  auto pieces = kPieces;
  pieces[5].type = 5;
  expect_refused(model_bytes(pieces), ": pieces[5]", "UNUSED");
  pieces[5] = {"a", 0, 1};
  expect_refused(model_bytes(pieces), ": pieces[5]", "occurs twice");
  pieces[5] = {"zz", 0, 6};
  expect_refused(model_bytes(pieces), ": pieces[5]", "<0xNN>");
  pieces[5] = {"b", 0, 2};
  expect_refused(model_bytes(pieces), ": pieces[5]", "second piece of type UNKNOWN");
  pieces[5] = {"b", 0, 7};
  expect_refused(model_bytes(pieces), ": byte ", "unknown piece type 7");
  expect_refused(model_bytes(kPieces, kBpe + std::string("\x98\x02\x01", 3)), "", "256 BYTE pieces");
  expect_refused("", "", "without pieces");
}

TEST(SentencePiece, EveryTruncationIsRefused) {
  const std::string bytes = model_bytes(kPieces);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THROW(load(bytes.substr(0, length)), FormatError) << length;
  }
}

TEST(SentencePiece, EveryFlippedByteIsReadOrRefused) {
  const std::string bytes = model_bytes(kPieces);
  int refused = 0;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const int mask : {0x01, 0x80, 0xFF}) {
      std::string broken = bytes;
      broken[at] = static_cast<char>(broken[at] ^ mask);
      try {
        load(broken)->encode("abba <u>", true);
      } catch (const FormatError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace lora_train::tokenizer
