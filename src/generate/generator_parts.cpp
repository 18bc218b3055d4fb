#include "generator_parts.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "lora_train/base/error.h"
#include "lora_train/base/log.h"
#include "lora_train/kernels/aten.h"

namespace lora_train::generate {
namespace {

constexpr std::int64_t kNoSlot =
    std::numeric_limits<std::int64_t>::max();  // beyond every slot: kernels/embedding/embedding.h
enum Int64s { kSlot, kDraw, kKey, kAdvance, kStateRow, kNumInt64s };
enum Int32s { kPosition, kNumKeys, kKeyBegin, kAdvance32 };

/// Copies `values` into `to`, on its device, without waiting.
template <class T>
void upload_into(at::Tensor& to, const std::vector<T>& values) {
  TransferBuffer host(to.sizes(), to.scalar_type(), to.device());
  std::copy(values.begin(), values.end(), host.tensor.mutable_data_ptr<T>());
  to.copy_(host.tensor, /*non_blocking=*/true);
}

/// The tokens for which limits.cache_bytes have room.
std::int64_t allowed_tokens(const GeneratorParts& parts) {
  const at::ScalarType dtype = parts.decoder.dtype();
  const std::int64_t states = (parts.limits.max_sequences + 1) * state_bytes(parts.config, dtype);
  return std::max<std::int64_t>(0, parts.limits.cache_bytes - states) /
         std::max<std::int64_t>(1, cache_bytes_per_token(parts.config, dtype));
}

void reserve(GeneratorParts& parts, std::int64_t cache_tokens, std::int64_t max_positions) {
  const std::int64_t before = parts.decoder.cache().capacity;
  parts.decoder.reserve(cache_tokens, max_positions);
  if (parts.decoder.cache().capacity != before) parts.left = {};
  parts.totals.cache_bytes = parts.decoder.cache().bytes();
}

}  // namespace

DecodeBatch::DecodeBatch(CachedDecoder& decoder, std::int64_t max_rows, bool use_graphs)
    : decoder_(decoder), max_rows_(max_rows), uses_graphs_(use_graphs && kernels::can_capture()) {
  const model::ModelConfig& config = decoder.config();
  const auto on_device = at::TensorOptions(decoder.device());
  ids_ = at::zeros({max_rows}, on_device.dtype(at::kInt));
  chosen_ = at::zeros_like(ids_);
  int64s_ = at::zeros({kNumInt64s, max_rows}, on_device.dtype(at::kLong));
  int32s_ = at::zeros({4, max_rows + 1}, on_device.dtype(at::kInt));
  std::vector<std::int32_t> counted(static_cast<std::size_t>(max_rows) + 1);
  std::iota(counted.begin(), counted.end(), 0);
  cu_seqlens_ = upload(counted, decoder.device());
  const auto fp32 = on_device.dtype(at::kFloat);
  head_ = {{},
           at::empty({max_rows, config.hidden_size}, on_device.dtype(decoder.dtype())),
           at::empty({max_rows}, fp32),
           at::empty({max_rows, config.vocab_size}, fp32)};
  const std::string refusal = decoder.refuses_max_keys();
  if (!uses_graphs_ || refusal.empty()) return;
  uses_graphs_ = false;
  log_warning("cuda_graphs: decoding runs without graphs. " + refusal);
}

void DecodeBatch::set_options(const kernels::SamplingFilter& filter, bool use_adapter) {
  filter_ = filter;
  use_adapter_ = use_adapter;
  const std::int64_t capacity = decoder_.cache().capacity;
  if (cache_capacity_ == capacity && max_positions_ == decoder_.max_positions()) return;
  graphs_.clear();
  has_run_.clear();
  cache_capacity_ = capacity;
  max_positions_ = decoder_.max_positions();
}

void DecodeBatch::set_rows(std::vector<DecodeRow> rows) {
  std::size_t num_rows = 1;
  while (num_rows < rows.size()) num_rows *= 2;
  rows_ = std::move(rows);
  rows_.resize(std::min(num_rows, static_cast<std::size_t>(max_rows_)));
  const auto most = static_cast<std::size_t>(max_rows_);
  std::vector<std::int64_t> int64s(kNumInt64s * most, 0);
  std::vector<std::int32_t> int32s(4 * (most + 1), 0);
  for (std::size_t i = 0; i < most; ++i) {
    const DecodeRow row = i < rows_.size() ? rows_[i] : DecodeRow{};
    const auto put = [&](Int32s what, std::int64_t value) {
      int32s[what * (most + 1) + i] = static_cast<std::int32_t>(value);
    };
    int64s[kSlot * most + i] = row.is_idle ? kNoSlot : row.place.begin + row.num_cached;
    int64s[kDraw * most + i] = row.num_new;
    int64s[kKey * most + i] = row.key;
    int64s[kAdvance * most + i] = row.is_idle ? 0 : 1;
    int64s[kStateRow * most + i] = row.is_idle ? decoder_.spare_row() : row.place.state_row;
    put(kPosition, row.num_cached);
    put(kNumKeys, row.num_cached + 1);
    put(kKeyBegin, row.place.begin);
    put(kAdvance32, row.is_idle ? 0 : 1);
  }
  upload_into(int64s_, int64s);
  upload_into(int32s_, int32s);
}

at::Tensor DecodeBatch::choose_first(const at::Tensor& hidden, const std::vector<std::int64_t>& hidden_rows,
                                     const std::vector<std::int64_t>& rows, const std::vector<std::int64_t>& keys) {
  const at::Tensor logits = decoder_.logits(hidden, hidden_rows, use_adapter_);
  const at::Tensor draws = at::zeros({std::ssize(rows)}, int64s_.options());
  at::Tensor chosen = at::empty(draws.sizes(), ids_.options());
  kernels::sample_tokens(logits, filter_, upload(keys, decoder_.device()), draws, chosen);
  ids_.index_copy_(0, upload(rows, decoder_.device()), chosen.clamp_min(0));
  return chosen;
}

PassTokens DecodeBatch::tokens() const {
  const std::int64_t W = std::ssize(rows_);
  const auto int32s = [&](Int32s what, std::int64_t count) { return int32s_[what].narrow(0, 0, count); };
  kernels::CachedLayout layout;
  layout.cu_seqlens_q.resize(rows_.size() + 1);
  std::iota(layout.cu_seqlens_q.begin(), layout.cu_seqlens_q.end(), 0);
  for (const DecodeRow& row : rows_) {
    layout.key_begin.push_back(row.place.begin);
    layout.num_keys.push_back(row.num_cached + 1);
  }
  layout.cu_seqlens_q_device = cu_seqlens_.narrow(0, 0, W + 1);
  layout.key_begin_device = int32s(kKeyBegin, W + 1);
  layout.num_keys_device = int32s(kNumKeys, W);
  layout.max_keys = uses_graphs_ ? max_positions_ : 0;
  // Every sequence has one token, and so one chunk.
  const kernels::Sequences sequences = {layout.cu_seqlens_q, layout.cu_seqlens_q_device, layout.cu_seqlens_q_device,
                                        cu_seqlens_.narrow(0, 0, W), int64s_[kStateRow].narrow(0, 0, W)};
  return {ids_.narrow(0, 0, W),
          int32s(kPosition, W),
          int64s_[kSlot].narrow(0, 0, W),
          decoder_.by_window(std::move(layout)),
          false,
          {},
          sequences};
}

void DecodeBatch::enqueue() {
  const std::int64_t W = std::ssize(rows_);
  model::LmHeadRows head{decoder_.forward(tokens(), use_adapter_), head_.normed.narrow(0, 0, W),
                         head_.rstd.narrow(0, 0, W), head_.logits.narrow(0, 0, W)};
  decoder_.logits(head, use_adapter_);
  at::Tensor chosen = chosen_.narrow(0, 0, W);
  kernels::sample_tokens(head.logits, filter_, int64s_[kKey].narrow(0, 0, W), int64s_[kDraw].narrow(0, 0, W), chosen);
  kernels::run_or_capture([ids = ids_.narrow(0, 0, W), chosen, int64s = int64s_, int32s = int32s_]() mutable {
    at::clamp_min_out(ids, chosen, 0);
    int64s.narrow(0, kSlot, kDraw + 1).add_(int64s.narrow(0, kAdvance, 1));
    int32s.narrow(0, kPosition, kNumKeys + 1).add_(int32s.narrow(0, kAdvance32, 1));
  });
}

void DecodeBatch::advance_host() {
  for (DecodeRow& row : rows_) {
    row.num_cached += row.is_idle ? 0 : 1;
    row.num_new += row.is_idle ? 0 : 1;
  }
}

/// Null: enqueue the pass. The first pass of its kind is enqueued, so that everything created at first use exists.
kernels::Graph* DecodeBatch::graph() {
  if (!uses_graphs_) return nullptr;
  const Captured captured{std::ssize(rows_), use_adapter_, filter_};
  if (has_run_.insert(captured).second) return nullptr;
  std::unique_ptr<kernels::Graph>& graph = graphs_[captured];
  if (graph != nullptr) return graph.get();
  const auto stop = [&](const std::string& reason) {
    uses_graphs_ = false;
    graphs_.clear();
    log_warning("cuda_graphs: decoding runs without graphs. " + reason);
    return nullptr;
  };
  try {
    graph = kernels::capture([&] { enqueue(); });
  } catch (const c10::OutOfMemoryError& error) {
    return stop(error.what_without_backtrace());
  } catch (const DeviceError& error) {
    return stop(error.what());
  }
  return graph.get();
}

at::Tensor DecodeBatch::decode() {
  if (kernels::Graph* const captured = graph()) {
    captured->replay();
    ++num_replays_;
  } else {
    enqueue();
  }
  advance_host();
  return chosen_.narrow(0, 0, std::ssize(rows_));
}

std::string name_of(const Prompt& prompt) {
  return prompt.name.empty() ? fmt::format("prompt {}", prompt.index) : prompt.name;
}

bool hand_over(AnswerSink& sink, const Prompt& prompt, std::int64_t num_new, const Token& token) {
  const bool wants_more = sink.on_token(prompt.id, token);
  const bool is_stop = std::ranges::find(prompt.stop_ids, token.id) != prompt.stop_ids.end();
  if (wants_more && !is_stop && num_new < prompt.max_new_tokens) return true;
  sink.on_done(prompt.id, /*is_cut=*/wants_more && !is_stop);
  return false;
}

void check_sequence(const model::ModelConfig& config, std::span<const std::int32_t> ids, std::int64_t num_new,
                    const std::string& name) {
  if (ids.empty()) throw DataError(name, "the prompt is empty; expected at least one token");
  if (num_new < 1) {
    throw DataError(name, "max_new_tokens is {}; expected 1 or more", num_new);
  }
  for (const std::int32_t id : ids) {
    if (id >= 0 && id < config.vocab_size) continue;
    throw DataError(name,
                    "token id {} is not in the model's vocabulary of {}; use the tokenizer that belongs to the model",
                    id, config.vocab_size);
  }
  const std::int64_t length = std::ssize(ids), most = config.context_length();
  if (length + num_new <= most) return;
  const std::string advice =
      length < most ? fmt::format("; shorten the prompt, or lower max_new_tokens to {} or less", most - length)
                    : "; shorten the prompt";
  throw DataError(name,
                  "the prompt has {} tokens, plus up to {} new ones, but the model supports {} "
                  "(max_position_embeddings){}",
                  length, num_new, most, advice);
}

void reserve_cache(GeneratorParts& parts, const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> rooms;
  for (const std::int64_t length : lengths) rooms.push_back(room_for(length));
  std::sort(rooms.begin(), rooms.end(), std::greater<>());
  const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  model::check_rope_supported(parts.config, longest);
  const auto together = std::min(std::ssize(rooms), static_cast<std::ptrdiff_t>(parts.limits.max_sequences));
  const std::int64_t wanted = std::accumulate(rooms.begin(), rooms.begin() + together, std::int64_t{0});
  reserve(parts, std::max(rooms.front(), std::min(wanted, allowed_tokens(parts))), longest);
  parts.left = {};
}

void reserve_for_conversation(GeneratorParts& parts, std::int64_t length) {
  model::check_rope_supported(parts.config, length);
  const auto doubled = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(room_for(length))));
  const std::int64_t tokens =
      std::min(room_for(parts.config.supported_length()), std::max(allowed_tokens(parts), doubled));
  reserve(parts, tokens, tokens);
}

std::int64_t reserve_for_requests(GeneratorParts& parts) {
  const std::int64_t context = parts.config.supported_length();
  const std::int64_t allowed = allowed_tokens(parts) / room_for(1) * room_for(1);
  const std::int64_t capacity = std::clamp(allowed, room_for(1), room_for(context) * parts.limits.max_sequences);
  const std::int64_t longest = std::min(context, capacity);
  reserve(parts, capacity, longest);
  parts.left = {};
  return longest;
}

std::int64_t num_reusable(const CachedTokens& left, const Prompt& prompt, bool has_states) {
  if (left.adapter != prompt.adapter) return 0;
  const std::size_t most = std::min(left.ids.size(), prompt.ids.size() - 1);
  const auto end = prompt.ids.begin() + static_cast<std::ptrdiff_t>(most);
  const std::int64_t shared = std::mismatch(prompt.ids.begin(), end, left.ids.begin()).first - prompt.ids.begin();
  return has_states && shared < std::ssize(left.ids) ? 0 : shared;
}

void refuse_logits(const std::string& name, std::int64_t position) {
  throw NumericError(name, "the logits after token " + std::to_string(position) +
                               " are not finite (NaN or infinity). Check the base model and the adapter: one of them "
                               "may be damaged, or values overflow in this precision (try precision: fp32)");
}

bool are_finite(std::span<const float> logits) {
  constexpr std::uint32_t kExponent = 0x7F800000u;
  std::uint32_t num_wrong = 0;
  for (const float logit : logits) num_wrong += (std::bit_cast<std::uint32_t>(logit) & kExponent) == kExponent ? 1 : 0;
  return num_wrong == 0;
}

std::size_t DraftLength::next(std::size_t most) const { return std::min(wanted_, most); }

void DraftLength::record(std::size_t num_drafted, std::size_t num_right) {
  if (num_drafted == 0) return;
  wanted_ = num_right == num_drafted ? wanted_ + 1 : std::max<std::size_t>(num_right, 1);
}

std::vector<std::int32_t> draft_of(std::span<const std::int32_t> tokens, std::size_t most) {
  constexpr std::size_t kLongestEnding = 3;
  const std::size_t length = tokens.size();
  if (most == 0 || length < 2) return {};
  std::size_t begin = 0, longest = 0;
  for (std::size_t end = length - 1; end > 0 && longest < kLongestEnding; --end) {  // compares what comes before `end`
    std::size_t same = 0;
    while (same < std::min(kLongestEnding, end) && tokens[end - 1 - same] == tokens[length - 1 - same]) ++same;
    if (same <= longest) continue;
    longest = same;
    begin = end;
  }
  std::vector<std::int32_t> draft;
  for (std::size_t i = begin; longest > 0 && i < length && draft.size() < most; ++i) draft.push_back(tokens[i]);
  return draft;
}

}  // namespace lora_train::generate
