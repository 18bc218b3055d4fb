// A run with tokens chosen and kept on the device (generator_parts.h).
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <deque>

#include "generator_parts.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/kernels/aten.h"

namespace lora_train::generate {
namespace {

/// A prompt with a range of the cache and a row of the batch.
struct DeviceSequence {
  std::size_t prompt = 0;
  CachePlace place = {};
  std::int64_t num_cached = 0;
  std::int64_t num_chosen = 0;            ///< new tokens that have been enqueued
  std::vector<std::int32_t> answer = {};  ///< new tokens that have been received
};

/// Tokens on their way to the host.
struct Chosen {
  struct Token {
    std::int64_t index = 0;  ///< in `ids`
    std::size_t row = 0, prompt = 0;
    std::int64_t position = 0;  ///< tokens before it
  };
  std::vector<Token> tokens = {};
  at::Tensor ids = {};  ///< in host memory
  std::optional<c10::Event> copied = {};
  bool is_prefill = false;
};

class DeviceRun {
 public:
  DeviceRun(GeneratorParts& parts, const DeviceRequest& request)
      : parts_(parts),
        request_(request),
        allocator_(parts.decoder.cache().capacity),
        rows_(static_cast<std::size_t>(parts.limits.max_sequences)),
        even_({parts.limits.max_sequences}, at::kInt, parts.decoder.device()),
        odd_({parts.limits.max_sequences}, at::kInt, parts.decoder.device()) {
    if (parts.batch == nullptr) {
      parts.batch = std::make_unique<DecodeBatch>(parts.decoder, parts.limits.max_sequences, parts.limits.use_graphs);
    }
    parts.batch->set_options(filter_of(request.prompts.front().sampling), use_adapter_);
  }

  std::vector<std::int32_t> run() {
    while (true) {
      throw_if_stop_requested();
      admit();
      const bool is_busy = !reading_.empty() ? prefill() : decode();
      if (!is_busy && on_the_way_.empty()) return std::move(last_);
      while (on_the_way_.size() > (is_busy ? 1 : 0)) receive();
    }
  }

 private:
  void admit();
  bool prefill();
  bool decode();
  void send(const at::Tensor& ids, Chosen chosen);
  void receive();
  std::int64_t key_of(const DeviceSequence& sequence) const {
    const auto& prompt = request_.prompts[sequence.prompt];
    return kernels::packed_key(sampling_key(prompt.sampling.seed, prompt.index));
  }

  GeneratorParts& parts_;
  const DeviceRequest& request_;
  const bool use_adapter_ = request_.prompts.front().adapter != kNoAdapter;
  CacheAllocator allocator_;
  std::size_t next_ = 0;  ///< the first waiting prompt
  std::vector<std::optional<DeviceSequence>> rows_;
  std::vector<std::size_t> reading_;  ///< rows in prefill, in the order of their prompts
  std::vector<std::size_t> decoded_;  ///< the prompt of each row of the batch; none: kIdle
  std::deque<Chosen> on_the_way_;
  TransferBuffer even_, odd_;  ///< for the tokens of alternate passes: at most two are on the way
  std::int64_t num_sent_ = 0;
  std::vector<std::int32_t> last_;  ///< all tokens of the sequence that ended last
  static constexpr std::size_t kIdle = ~std::size_t{0};
};

/// Admits prompts in order: no later prompt overtakes a long one.
void DeviceRun::admit() {
  while (next_ < request_.prompts.size()) {
    const auto free_row = std::find(rows_.begin(), rows_.end(), std::nullopt);
    if (free_row == rows_.end()) return;
    const auto room = allocator_.allocate(request_.prompts[next_].length());
    if (!room) return;
    *free_row = DeviceSequence{next_, *room, next_ == 0 ? request_.num_cached : 0};
    ++next_;
    reading_.push_back(static_cast<std::size_t>(free_row - rows_.begin()));
  }
}

bool DeviceRun::prefill() {
  const Stopwatch watch(parts_.totals.prompt_s);
  std::vector<Piece> pieces;
  std::vector<std::int64_t> last_rows, rows, keys;
  Chosen chosen{.is_prefill = true};
  auto left = static_cast<std::size_t>(parts_.limits.max_pass_tokens);
  std::int64_t num_tokens = 0;
  for (const std::size_t row : reading_) {
    DeviceSequence& sequence = *rows_[row];
    const std::span<const std::int32_t> ids = request_.prompts[sequence.prompt].ids;
    const auto rest = ids.subspan(static_cast<std::size_t>(sequence.num_cached));
    pieces.push_back({sequence.place, sequence.num_cached, rest.first(std::min(left, rest.size()))});
    const std::size_t count = pieces.back().ids.size();
    left -= count;
    num_tokens += static_cast<std::int64_t>(count);
    sequence.num_cached += static_cast<std::int64_t>(count);
    if (count == rest.size()) {
      sequence.num_chosen = 1;
      last_rows.push_back(num_tokens - 1);
      rows.push_back(static_cast<std::int64_t>(row));
      keys.push_back(key_of(sequence));
      chosen.tokens.push_back({std::ssize(chosen.tokens), row, sequence.prompt, sequence.num_cached});
    }
    if (left == 0) break;
  }
  parts_.totals.prompt_tokens += num_tokens;
  reading_.erase(reading_.begin(), reading_.begin() + std::ssize(rows));  // only the last piece can be incomplete
  const at::Tensor hidden = parts_.decoder.forward(pieces, use_adapter_);
  if (!rows.empty()) send(parts_.batch->choose_first(hidden, last_rows, rows, keys), std::move(chosen));
  return true;
}

/// Returns false if every sequence has its last token, or there are no sequences.
bool DeviceRun::decode() {
  const Stopwatch watch(parts_.totals.decode_s);
  Chosen chosen;
  std::vector<DecodeRow> rows;
  std::vector<std::size_t> decoded;
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    std::optional<DeviceSequence>& sequence = rows_[row];
    if (!sequence || sequence->num_chosen >= request_.prompts[sequence->prompt].max_new_tokens) continue;
    rows.resize(row + 1);
    decoded.resize(row + 1, kIdle);
    rows[row] = {false, sequence->place, sequence->num_cached++, sequence->num_chosen++, key_of(*sequence)};
    decoded[row] = sequence->prompt;
    chosen.tokens.push_back({static_cast<std::int64_t>(row), row, sequence->prompt, sequence->num_cached});
  }
  if (rows.empty()) return false;
  if (decoded != decoded_) parts_.batch->set_rows(std::move(rows));
  decoded_ = std::move(decoded);
  send(parts_.batch->decode(), std::move(chosen));
  return true;
}

/// Enqueues the copy of the tokens to the host.
void DeviceRun::send(const at::Tensor& ids, Chosen chosen) {
  const at::Device device = ids.device();
  chosen.ids = (num_sent_++ % 2 == 0 ? even_ : odd_).tensor.narrow(0, 0, ids.size(0));
  chosen.ids.copy_(ids, /*non_blocking=*/true);
  if (!device.is_cpu()) {
    chosen.copied.emplace(device.type());
    chosen.copied->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  }
  on_the_way_.push_back(std::move(chosen));
}

/// Waits for the tokens of the oldest pass.
void DeviceRun::receive() {
  const Chosen& chosen = on_the_way_.front();
  Totals& totals = parts_.totals;
  const Stopwatch watch(chosen.is_prefill ? totals.prompt_s : totals.decode_s);
  if (chosen.copied) chosen.copied->synchronize();
  totals.replays = parts_.batch->num_replays();
  for (const auto& [index, row, prompt, position] : chosen.tokens) {
    if (!rows_[row] || rows_[row]->prompt != prompt) continue;  // it ended one pass earlier
    const std::int32_t id = chosen.ids.const_data_ptr<std::int32_t>()[index];
    const Prompt& asked = request_.prompts[prompt];
    if (id < 0) refuse_logits(name_of(asked), position);
    ++totals.new_tokens;
    totals.decoded_tokens += chosen.is_prefill ? 0 : 1;
    std::vector<std::int32_t>& answer = rows_[row]->answer;
    answer.push_back(id);
    if (hand_over(request_.sink, asked, std::ssize(answer), {id})) continue;
    last_ = asked.ids;
    last_.insert(last_.end(), answer.begin(), answer.end());
    allocator_.free(rows_[row]->place);
    rows_[row].reset();
  }
  on_the_way_.pop_front();
}

}  // namespace

std::vector<std::int32_t> run_on_device(GeneratorParts& parts, const DeviceRequest& request) {
  return DeviceRun(parts, request).run();
}

}  // namespace lora_train::generate
