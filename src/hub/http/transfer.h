// One request on one connection of libcurl, without retries and redirects.
#pragma once

#include <curl/curl.h>

#include <string>

#include "lora_train/hub/http/client.h"

namespace lora_train::hub {

struct Curl {
  decltype(&::curl_global_init) global_init;
  decltype(&::curl_easy_init) easy_init;
  decltype(&::curl_easy_cleanup) easy_cleanup;
  decltype(&::curl_easy_reset) easy_reset;
  decltype(&::curl_easy_setopt) easy_setopt;
  decltype(&::curl_easy_getinfo) easy_getinfo;
  decltype(&::curl_easy_strerror) easy_strerror;
  decltype(&::curl_multi_init) multi_init;
  decltype(&::curl_multi_cleanup) multi_cleanup;
  decltype(&::curl_multi_add_handle) multi_add_handle;
  decltype(&::curl_multi_remove_handle) multi_remove_handle;
  decltype(&::curl_multi_perform) multi_perform;
  decltype(&::curl_multi_poll) multi_poll;
  decltype(&::curl_multi_info_read) multi_info_read;
  decltype(&::curl_slist_append) slist_append;
  decltype(&::curl_slist_free_all) slist_free_all;
};

/// libcurl.so.4, or Debian's libcurl-gnutls.so.4; it stays loaded. Throws IoError if neither can be loaded. Thread-safe.
const Curl& curl();

/// Handles of libcurl; the connection stays open for the next transfer. One transfer at a time.
class Connection {
 public:
  Connection();
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

 private:
  friend class Transfer;
  const Curl& curl_;
  CURL* easy_;
  CURLM* multi_;
};

struct TransferResult {
  Answer answer;
  std::string redirect;  ///< where the answer points, absolute; empty if nowhere
};

/// A failure that may pass: whoever has the request may try again.
struct TransferBreak {
  TransferError error;
  bool may_retry = false;
  bool may_have_begun = false;  ///< the server may have acted on the request
};

/// Sends `request` as it stands: its url, its range. Adds the bytes that went to the sink to `num_delivered`. Throws TransferBreak.
TransferResult transfer(Connection& connection, const Request& request, const std::string& user_agent,
                        std::uint64_t& num_delivered);

}  // namespace lora_train::hub
