// A tokenizer and a chat template small enough to predict by hand: one token a byte, and ChatML.
#pragma once

#include <string>

#include "lora_train/base/error.h"
#include "lora_train/tokenizer/chat/chat_template.h"
#include "lora_train/tokenizer/tokenizer.h"

namespace lora_train::data {

/// Ids 0-255 are the bytes; 256 is <s>, 257 </s>.
class ByteTokenizer : public tokenizer::Tokenizer {
 public:
  static constexpr std::int32_t kBos = 256, kEos = 257;

  explicit ByteTokenizer(bool with_bos = false) {
    eos_id_ = kEos;
    bos_id_ = kBos;
    adds_bos_ = with_bos;
    fingerprint_ = with_bos ? "bytes with bos" : "bytes";
  }

  tokenizer::Encoding encode(std::string_view text, bool with_offsets) const override {
    tokenizer::Encoding out;
    for (std::uint32_t i = 0; i < text.size(); ++i) {
      out.ids.push_back(static_cast<unsigned char>(text[i]));
      if (with_offsets) out.offsets.emplace_back(i, i + 1);
    }
    return out;
  }
  // Like Hugging Face: a part of a character is U+FFFD.
  std::string decode(std::span<const std::int32_t> ids, bool) const override {
    std::string out;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const bool is_lead = ids[i] >= 0xC0 && ids[i] < 0xE0;
      if (is_lead && i + 1 < ids.size()) {
        out += static_cast<char>(ids[i]);
        out += static_cast<char>(ids[++i]);
      } else if (ids[i] >= 0x80 && ids[i] < 256) {
        out += "\xEF\xBF\xBD";
      } else {
        out += ids[i] == kBos ? "<s>" : ids[i] == kEos ? "</s>" : std::string(1, static_cast<char>(ids[i]));
      }
    }
    return out;
  }
  std::optional<std::int32_t> token_to_id(std::string_view) const override { return std::nullopt; }
  std::string id_to_token(std::int32_t) const override { return {}; }
  bool is_special(std::int32_t id) const override { return id >= kBos; }
  std::int32_t vocab_size() const override { return 258; }
};

/// "role:content." per message; an assistant's span is "content.". Refuses a first message of role tool; leaves out the
/// content "hidden".
class PlainTemplate : public tokenizer::ChatTemplate {
 public:
  tokenizer::RenderedChat render(std::span<const tokenizer::Message> messages,
                                 const tokenizer::RenderOptions& options) const override {
    if (messages[0].role == "tool") throw DataError("plain:1", "a chat cannot begin with a tool");
    tokenizer::RenderedChat out;
    out.text = options.tools_json + options.kwargs_json;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      out.text += messages[i].role + ":";
      const auto begin = static_cast<std::uint32_t>(out.text.size());
      const bool is_hidden = messages[i].content == "hidden";
      out.text += (is_hidden ? "" : messages[i].content) + messages[i].json + ".";
      if (is_hidden) out.omissions.push_back({static_cast<int>(i), "content", false});
      if (messages[i].role == "assistant") {
        out.spans.emplace_back(begin, static_cast<std::uint32_t>(out.text.size()));
        out.span_message.push_back(static_cast<int>(i));
      }
    }
    return out;
  }
  const std::string& source() const override { return name_; }
  const std::string& name() const override { return name_; }

 private:
  std::string name_ = "plain";
};

}  // namespace lora_train::data
