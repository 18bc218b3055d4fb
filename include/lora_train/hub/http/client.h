// HTTP requests, through libcurl: the only place where the program uses the network. Training never calls it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lora_train/base/error.h"

namespace lora_train::hub {

struct Header {
  std::string name, value;
};

/// The bytes [begin, end).
struct ByteRange {
  std::uint64_t begin = 0, end = 0;
};

struct FilePart {
  std::filesystem::path file;
  std::uint64_t offset = 0, num_bytes = 0;
};

struct Request {
  std::string method = "GET";
  std::string url;  ///< http:// or https://
  std::vector<Header> headers = {};
  /// A token, sent only to the scheme, host and port of `url`: a redirect elsewhere does not get it.
  std::string bearer = {};
  std::string body = {};
  std::optional<FilePart> file = {};  ///< the body instead of `body`; read while it is sent
  /// Requests this part. If the connection breaks after some bytes, a retry requests the rest. If the server would send
  /// other bytes, throws TransferError (kNoRanges) before the first one.
  std::optional<ByteRange> range = {};
  /// Gets the body of a 2xx answer, piece by piece, instead of Answer::body. Its exceptions end the request and leave
  /// send().
  std::function<void(std::string_view)> sink = {};
  std::size_t max_body_bytes = 16u << 20;  ///< limit of Answer::body; a longer one is a TransferError (kTooLarge)
  /// False: the server may act twice on a repeated request. It is then repeated only if the server cannot have begun:
  /// no connection, 429, 503.
  bool is_repeatable = true;
  double connect_timeout_s = 10;
  double stall_timeout_s = 30;  ///< without a byte in either direction; includes waiting for the answer
  /// Called at least five times a second while the request runs or waits for a retry; its exceptions end the request.
  /// Default: throw_if_stop_requested.
  std::function<void()> poll = {};
};

struct Answer {
  int status = 0;
  std::vector<Header> headers = {};
  std::string body = {};  ///< only the first 64 KiB if the status is not 2xx
  std::string url = {};   ///< the one that answered, after redirects

  /// The value of the header with this name, in any case; empty if there is none.
  std::string header(std::string_view name) const;
  bool is_ok() const { return status >= 200 && status < 300; }
};

enum class Failure {
  kNoHost,     ///< the host name has no address
  kNoConnect,  ///< no server answers
  kTls,        ///< no trusted certificate
  kStalled,    ///< a time-out
  kLost,       ///< the connection broke, or the answer is not HTTP
  kTooLarge,
  kRedirect,  ///< too many, or to a place that we refuse
  kNoRanges,
  kOther
};

/// There is no answer. `where` is the URL without its query, which may hold a signature.
class TransferError : public IoError {
 public:
  TransferError(std::string where, std::string message, Failure failure)
      : IoError(std::move(where), std::move(message)), failure_(failure) {}
  Failure failure() const { return failure_; }

 private:
  Failure failure_;
};

struct ClientOptions {
  /// Retries after a connection failure, 408, 429 or 5xx: $LORA_TRAIN_HTTP_RETRIES, else 5. A try that brought new
  /// bytes of a `range` does not count.
  int num_retries = retries_of_environment();
  /// The first delay. Each delay is twice the previous one, at most 30 s; the actual wait is between half of it and all
  /// of it. A Retry-After of up to two minutes is obeyed; a longer one ends the retries.
  double first_delay_s = 0.5;

  static int retries_of_environment();
};

/// Sends requests. Thread-safe: calls of send() from several threads run at the same time, each on its own connection,
/// which the client keeps for later requests.
///
/// Certificates are always verified: against the system's, or $SSL_CERT_FILE or $CURL_CA_BUNDLE. Proxies come from
/// http_proxy, https_proxy, all_proxy and no_proxy, as curl reads them. Redirects are followed, at most 10, to http and
/// https, never from https to http; a 301, 302 or 303 turns a POST into a GET.
class Client {
 public:
  /// Throws IoError if this build or this machine has no HTTP.
  explicit Client(ClientOptions options = {});
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// Returns the answer after the retries, whatever its status. Throws TransferError if there is none, ConfigError for
  /// a URL or a header that cannot be sent, and what `sink` and `poll` throw.
  Answer send(const Request& request);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lora_train::hub
