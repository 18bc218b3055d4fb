// URLs as text.
#pragma once

#include <string>
#include <string_view>

namespace lora_train::hub {

/// With everything but letters, digits, "-", ".", "_", "~" and "/" as %XX.
std::string encode_path(std::string_view path);

/// The same, and "/" as well: a path as one part of a URL.
std::string encode_part(std::string_view text);

/// "https://host:443", in lower case and with the port, of an http or https URL; empty for any other text. Two URLs with one origin
/// may see the same credentials.
std::string origin_of(std::string_view url);

/// For messages: without user, password, query and fragment, which may be secrets.
std::string shown_url(std::string_view url);

/// Whether a redirect may lead from one URL to the other: to http or https, but never from https to http.
bool may_redirect(std::string_view from, std::string_view to);

}  // namespace lora_train::hub
