#include "word_encoder.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>

#include "lora_train/base/hash.h"

namespace lora_train::tokenizer {
namespace {

constexpr std::size_t kLongSlots = std::size_t{1} << 14U;
constexpr std::size_t kMaxArena = std::size_t{4} << 20U;  // bytes of words, and as many symbols

}  // namespace

WordCache::WordCache() : short_slots_(std::size_t{1} << kShortSlotBits), long_slots_(kLongSlots) {}

std::span<const Symbol> WordCache::find_long(std::string_view word) const {
  const std::uint64_t hash = hash64(word);
  const LongSlot& slot = long_slots_[hash & (kLongSlots - 1)];
  if (slot.hash != hash || slot.num_symbols == 0 || slot.word_length != word.size()) return {};
  if (std::string_view(words_).substr(slot.word_at, slot.word_length) != word) return {};
  return {symbols_.data() + slot.symbols_at, slot.num_symbols};
}

void WordCache::insert(std::string_view word, std::span<const Symbol> symbols) {
  if (symbols.empty()) return;
  if (word.size() <= kMaxShortBytes && symbols.size() <= kMaxShortSymbols) {
    const ShortKey key = short_key(word);
    ShortSlot& slot = short_slots_[slot_of(key)];
    slot.key = key;
    slot.num_symbols = static_cast<std::uint32_t>(symbols.size());
    std::copy(symbols.begin(), symbols.end(), slot.symbols);
    return;
  }
  if (words_.size() + word.size() > kMaxArena || symbols_.size() + symbols.size() > kMaxArena) {
    std::fill(long_slots_.begin(), long_slots_.end(), LongSlot{});
    words_.clear();
    symbols_.clear();
  }
  const std::uint64_t hash = hash64(word);
  long_slots_[hash & (kLongSlots - 1)] = {
      hash, static_cast<std::uint32_t>(words_.size()), static_cast<std::uint32_t>(word.size()),
      static_cast<std::uint32_t>(symbols_.size()), static_cast<std::uint32_t>(symbols.size())};
  words_.append(word);
  symbols_.insert(symbols_.end(), symbols.begin(), symbols.end());
}

WordCache& WordCache::of_thread(std::uint64_t serial) {
  struct Entry {
    std::uint64_t serial = 0;
    std::unique_ptr<WordCache> cache;
  };
  thread_local std::array<Entry, 4> entries;
  thread_local std::size_t oldest = 0;
  for (Entry& entry : entries) {
    if (entry.serial == serial) return *entry.cache;
  }
  Entry& entry = entries[oldest++ % entries.size()];
  entry = {serial, std::make_unique<WordCache>()};
  return *entry.cache;
}

std::uint64_t WordCache::next_serial() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace lora_train::tokenizer
