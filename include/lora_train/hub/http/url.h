// URLs as text.
#pragma once

#include <string>
#include <string_view>

namespace lora_train::hub {

/// Encodes everything but letters, digits, "-", ".", "_", "~" and "/" as %XX.
std::string encode_path(std::string_view path);

/// The same, including "/": a path as one part of a URL.
std::string encode_part(std::string_view text);

/// "https://host:443", in lower case and with the port, of an http or https URL; empty for any other text. URLs with
/// the same origin may get the same credentials.
std::string origin_of(std::string_view url);

/// The URL for messages: without user, password, query and fragment, which may be secrets.
std::string shown_url(std::string_view url);

/// True if a redirect may lead from one URL to the other: to http or https, but never from https to http.
bool may_redirect(std::string_view from, std::string_view to);

}  // namespace lora_train::hub
