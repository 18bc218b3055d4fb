// One request on one connection, without retries and redirects.
#pragma once

#include <string>

#include "curl_library.h"
#include "lora_train/hub/http/client.h"

namespace lora_train::hub {

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
