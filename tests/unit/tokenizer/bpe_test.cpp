// The merge loop against the obvious one; cutting and remembering change no token.
#include "tokenizer/bpe/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <span>

#include "json/pre_tokenizer.h"
#include "tokenizer/json/bpe_model.h"

namespace lora_train::tokenizer {
namespace {

using Ids = std::vector<std::int32_t>;

Ids ids_of(std::span<const Symbol> symbols) {
  Ids ids;
  for (const Symbol& symbol : symbols) ids.push_back(symbol.id);
  return ids;
}

// Merges the first of the lowest-ranked pairs until there is none.
Ids merge_plainly(const MergeTable& table, Ids ids) {
  for (;;) {
    const Merge* best = nullptr;
    std::size_t where = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const Merge* merge = table.find(ids[i], ids[i + 1]);
      if (merge == nullptr || (best != nullptr && merge->rank >= best->rank)) continue;
      best = merge;
      where = i;
    }
    if (best == nullptr) return ids;
    ids[where] = best->id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(where) + 1);
  }
}

TEST(Bpe, EveryLengthMergesLikeTheObviousLoop) {
  std::mt19937 random(7);
  MergeTable table;
  for (const std::int32_t id : {-1, 0}) EXPECT_EQ(table.find(-1, id), nullptr) << "negative ids never merge";
  for (std::int32_t id = 4; id < 200; ++id) {
    const auto pick = [&] { return static_cast<std::int32_t>(random() % static_cast<unsigned>(id)); };
    table.add(pick(), pick(), {static_cast<std::uint32_t>(random() % 60), id});  // ranks repeat, as scores do
  }
  for (std::size_t length = 0; length < 300; ++length) {
    std::vector<Symbol> symbols(length);
    for (Symbol& symbol : symbols) symbol = {static_cast<std::int32_t>(random() % 4), 1};
    const Ids ids = ids_of(symbols);
    merge_symbols(table, symbols);
    std::size_t covered = 0;
    for (const Symbol& symbol : symbols) covered += symbol.length;
    ASSERT_EQ(ids_of(symbols), merge_plainly(table, ids)) << length;
    ASSERT_EQ(covered, length);
  }
}

std::string random_text(std::mt19937& random, const std::vector<std::string>& alphabet, std::size_t length) {
  std::string text;
  for (std::size_t i = 0; i < length; ++i) text += alphabet[random() % alphabet.size()];
  return text;
}

TEST(WordCache, FindsWhatWasPutInAndNothingElse) {
  std::mt19937 random(5);
  WordCache cache;
  std::map<std::string, Ids> known;
  for (int i = 0; i < 20000; ++i) {
    const std::string word = random_text(random, {"a", "b", "\xC3\xA9", std::string(1, '\0')}, random() % 30 + 1);
    std::vector<Symbol> symbols(random() % 8 + 1);
    for (Symbol& symbol : symbols) symbol = {static_cast<std::int32_t>(random() % 1000), 1};
    if (known.contains(word)) continue;
    known[word] = ids_of(symbols);
    cache.insert(word, symbols);
    ASSERT_EQ(ids_of(cache.find(word)), known[word]) << "right after it was put in";
  }
  int hits = 0;
  for (const auto& [word, ids] : known) {
    const auto found = cache.find(word);
    if (found.empty()) continue;  // another word took its place
    ++hits;
    ASSERT_EQ(ids_of(found), ids);
  }
  EXPECT_GT(hits, 1000);
  EXPECT_TRUE(cache.find("never put in").empty());
  EXPECT_TRUE(cache.find(std::string(64, 'q')).empty());
}

TEST(WordCache, WordsThatDifferInLengthOrZerosAreDifferent) {
  WordCache cache;
  const Symbol one{1, 1}, two{2, 1};
  const std::string word = "ab", longer("ab\0", 3);
  cache.insert(word, {&one, 1});
  EXPECT_TRUE(cache.find(longer).empty());
  cache.insert(longer, {&two, 1});
  ASSERT_FALSE(cache.find(longer).empty());
  EXPECT_EQ(cache.find(longer)[0].id, 2);
}

// A byte-level or character vocabulary with random merges, tokens that end inside characters among them.
Json random_model(std::mt19937& random, bool byte_level, const std::vector<std::string>& alphabet) {
  Json model = {{"type", "BPE"}, {"byte_fallback", !byte_level}, {"unk_token", nullptr}, {"merges", Json::array()}};
  std::vector<std::string> tokens;
  const auto add = [&](const std::string& token) {
    model["vocab"][token] = tokens.size();
    tokens.push_back(token);
  };
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    add(byte_level ? bytes_to_byte_level(std::string(1, static_cast<char>(byte))) : name);
  }
  std::vector<std::string> parts = alphabet;
  if (byte_level) {
    parts.clear();
    for (const std::string& letter : alphabet) {
      for (const char byte : letter) parts.push_back(bytes_to_byte_level(std::string(1, byte)));
    }
  } else {
    for (const std::string& letter : alphabet) add(letter);
  }
  while (tokens.size() < 400) {
    const std::string left = parts[random() % parts.size()], right = parts[random() % parts.size()];
    if (model["vocab"].contains(left + right) || left.size() + right.size() > 24) continue;
    add(left + right);
    model["merges"].push_back({left, right});
    parts.push_back(left + right);
  }
  return model;
}

TEST(WordEncoder, PartsOfBytesAndOfCharactersGiveTheTokensOfTheWhole) {
  std::mt19937 random(3);
  const std::vector<std::string> alphabet = {
      "a", "b", "c", " ", "\xC3\xA9", "\xE4\xB8\xAD", "\xE4\xBA\xAD", "\xE5\x9B\xBD", "\xF0\x9F\x99\x82", "x"};
  for (int round = 0; round < 40; ++round) {
    const bool byte_level = round < 20;
    const Json json = random_model(random, byte_level, alphabet);
    Vocabulary vocabulary;
    const BpeModel model(JsonPlace(json, "test"), {.byte_level = byte_level}, vocabulary);
    ASSERT_NE(model.cuts(), nullptr);
    std::size_t num_parts = 0;
    for (int i = 0; i < 300; ++i) {
      const std::string text = random_text(random, alphabet, random() % 60 + 1);
      std::vector<Symbol> whole;
      model.encode(text, whole);
      Ids got;
      WordEncoder words(model);
      words.encode_piece(text, [&](std::size_t, std::span<const Symbol> symbols) {
        ++num_parts;
        for (const auto id : ids_of(symbols)) got.push_back(id);
      });
      ASSERT_EQ(got, ids_of(whole)) << text;
    }
    EXPECT_GT(num_parts, 400U) << "nothing was cut";
  }
}

TEST(WordEncoder, DoesNotCutWhereCharactersCanBeUnknown) {
  const Json json = Json::parse(R"({"type": "BPE", "unk_token": "u", "fuse_unk": true, "vocab": {"u": 0, "a": 1},
                                    "merges": []})");
  Vocabulary vocabulary;
  EXPECT_EQ(BpeModel(JsonPlace(json, "test"), {}, vocabulary).cuts(), nullptr);
}

}  // namespace
}  // namespace lora_train::tokenizer
