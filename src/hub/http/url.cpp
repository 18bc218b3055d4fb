#include "lora_train/hub/http/url.h"

#include "lora_train/base/text.h"

namespace lora_train::hub {
namespace {

bool is_unreserved(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
         c == '_' || c == '~';
}

std::string percent_encoded(std::string_view text, bool keeps_slash) {
  std::string encoded;
  for (const char c : text) {
    if (is_unreserved(c) || (keeps_slash && c == '/'))
      encoded += c;
    else
      encoded += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return encoded;
}

struct UrlParts {
  std::string scheme;  ///< in lower case
  std::string host;    ///< with the port, without user and password
  std::string path;    ///< without query and fragment
};

UrlParts split_url(std::string_view url) {
  const auto colon = url.find("://");
  if (colon == std::string_view::npos) return {};
  UrlParts parts;
  parts.scheme = lower_case(std::string(url.substr(0, colon)));
  url.remove_prefix(colon + 3);
  url = url.substr(0, url.find_first_of("?#"));
  const auto slash = url.find('/');
  std::string_view host = url.substr(0, slash);
  if (const auto at = host.rfind('@'); at != std::string_view::npos) host.remove_prefix(at + 1);
  parts.host = lower_case(std::string(host));
  if (slash != std::string_view::npos) parts.path = url.substr(slash);
  return parts;
}

}  // namespace

std::string encode_path(std::string_view path) { return percent_encoded(path, true); }

std::string encode_part(std::string_view text) { return percent_encoded(text, false); }

std::string origin_of(std::string_view url) {
  const UrlParts parts = split_url(url);
  if ((parts.scheme != "http" && parts.scheme != "https") || parts.host.empty()) return {};
  const auto colon = parts.host.rfind(':');
  const bool has_port = colon != std::string::npos && parts.host.find(']', colon) == std::string::npos;
  return fmt::format("{}://{}{}", parts.scheme, parts.host, has_port ? "" : parts.scheme == "http" ? ":80" : ":443");
}

std::string shown_url(std::string_view url) {
  const UrlParts parts = split_url(url);
  if (parts.scheme.empty()) return std::string(url.substr(0, url.find_first_of("?#")));
  return fmt::format("{}://{}{}", parts.scheme, parts.host, parts.path);
}

bool may_redirect(std::string_view from, std::string_view to) {
  const std::string target = origin_of(to);
  return !target.empty() && (target.starts_with("https:") || !origin_of(from).starts_with("https:"));
}

}  // namespace lora_train::hub
