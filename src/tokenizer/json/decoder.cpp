#include "decoder.h"

#include <charconv>

#include "lora_train/base/utf8.h"
#include "pre_tokenizer.h"

namespace lora_train::tokenizer {
namespace {

constexpr std::int64_t kMaxStrip = 1 << 20;

void replace_in(std::string& text, const std::string& pattern, const std::string& content) {
  for (std::size_t at = text.find(pattern); at != std::string::npos; at = text.find(pattern, at + content.size())) {
    text.replace(at, pattern.size(), content);
  }
}

void decode_byte_level(std::vector<std::string>& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) {
    const auto decoded = byte_level_to_bytes(token);
    bytes += decoded ? *decoded : token;
  }
  tokens.assign(1, repair_utf8(bytes));
}

void decode_byte_fallback(std::vector<std::string>& tokens) {
  std::vector<std::string> out;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (find_invalid_utf8(bytes)) {
      out.insert(out.end(), bytes.size(), std::string(kReplacementChar));
    } else {
      out.push_back(bytes);
    }
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const int byte = byte_of_token(token); byte >= 0) {
      bytes.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
      continue;
    }
    flush();
    out.push_back(std::move(token));
  }
  flush();
  tokens = std::move(out);
}

void fuse(std::vector<std::string>& tokens) {
  std::string all;
  for (const std::string& token : tokens) all += token;
  tokens.assign(1, std::move(all));
}

Decoder load_decoder_sequence(const JsonPlace& place) {
  place.allow_only({"type", "decoders"});
  std::vector<Decoder> parts;
  for (const JsonPlace& part : place.at("decoders").elements()) {
    if (auto decoder = load_decoder(part)) parts.push_back(std::move(decoder));
  }
  return [parts](std::vector<std::string>& tokens) {
    for (const Decoder& decode : parts) decode(tokens);
  };
}

Decoder load_replace_decoder(const JsonPlace& place) {
  place.allow_only({"type", "pattern", "content"});
  place.at("pattern").allow_only({"String"});
  const std::string pattern = place.at("pattern").at("String").string();
  if (pattern.empty()) place.at("pattern").fail("an empty pattern replaces nothing");
  return [pattern, content = place.at("content").string()](std::vector<std::string>& tokens) {
    for (std::string& token : tokens) replace_in(token, pattern, content);
  };
}

Decoder load_strip(const JsonPlace& place) {
  place.allow_only({"type", "content", "start", "stop"});
  const std::string content = place.at("content").string();
  if (count_chars(content) != 1) place.at("content").fail("expected one character");
  const auto count = [&](const char* key) {
    const std::int64_t value = place.at(key).integer();
    if (value < 0 || value > kMaxStrip) place.at(key).fail(std::to_string(value) + " is not in [0, 2^20]");
    return value;
  };
  return [content, start = count("start"), stop = count("stop")](std::vector<std::string>& tokens) {
    for (std::string& token : tokens) {
      for (std::int64_t i = 0; i < start && token.starts_with(content); ++i) token.erase(0, content.size());
      for (std::int64_t i = 0; i < stop && token.ends_with(content); ++i) token.resize(token.size() - content.size());
    }
  };
}

// Every replacement character is a space, except those of the first token, where the encoder puts one.
Decoder load_metaspace(const JsonPlace& place) {
  place.allow_only({"type", "replacement", "add_prefix_space", "prepend_scheme", "split"});
  const std::string replacement = place.at("replacement").string();
  if (count_chars(replacement) != 1) place.at("replacement").fail("expected one character");
  const char* scheme = place.boolean_or("add_prefix_space", true) ? "always" : "never";
  const bool prepends = place.string_or("prepend_scheme", scheme) != "never";
  return [replacement, prepends](std::vector<std::string>& tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) replace_in(tokens[i], replacement, i == 0 && prepends ? "" : " ");
  };
}

}  // namespace

int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
  int byte = -1;
  const char* digits = token.data() + 3;
  const auto parsed = std::from_chars(digits, digits + 2, byte, 16);
  return parsed.ec == std::errc() && parsed.ptr == digits + 2 && byte >= 0 ? byte : -1;
}

Decoder load_decoder(const JsonPlace& place) {
  if (place.is_null()) return nullptr;
  const std::string& type = place.type();
  if (type == "Sequence") return load_decoder_sequence(place);
  if (type == "Replace") return load_replace_decoder(place);
  if (type == "Strip") return load_strip(place);
  if (type == "Metaspace") return load_metaspace(place);
  if (type == "ByteFallback") return decode_byte_fallback;
  if (type == "Fuse") return fuse;
  if (type == "ByteLevel") return decode_byte_level;
  place.fail("decoder \"" + type +
             "\" is not supported; there are Sequence, Replace, ByteFallback, Fuse, Strip, Metaspace, ByteLevel");
}

}  // namespace lora_train::tokenizer
