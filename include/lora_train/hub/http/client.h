// HTTP requests, through libcurl: the one place from which the program uses the network. Training never calls it.
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

/// The bytes from `begin` up to and without `end`.
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
  /// A token. It goes to the scheme, host and port of `url` only: a redirect elsewhere does not take it along.
  std::string bearer = {};
  std::string body = {};
  std::optional<FilePart> file = {};  ///< the body in place of `body`; read while it is sent
  /// Asks for this part. If the connection breaks after some bytes, a retry asks for the rest. A server that sends other bytes
  /// than these is a TransferError (kNoRanges) before the first byte.
  std::optional<ByteRange> range = {};
  /// Takes the body of a 2xx answer, piece by piece, in place of Answer::body. What it throws ends the request and leaves send().
  std::function<void(std::string_view)> sink = {};
  std::size_t max_body_bytes = 16u << 20;  ///< of Answer::body; a longer one is a TransferError (kTooLarge)
  /// False: the server may do it twice if it is asked twice. Then it is asked again only where it cannot have begun: no
  /// connection, 429, 503.
  bool is_repeatable = true;
  double connect_timeout_s = 10;
  double stall_timeout_s = 30;  ///< without a byte in either direction; includes waiting for the answer
  /// Called at least five times a second while the request runs or waits for a retry; what it throws ends the request.
  /// Default: throw_if_stop_requested.
  std::function<void()> poll = {};
};

struct Answer {
  int status = 0;
  std::vector<Header> headers = {};
  std::string body = {};  ///< the first 64 KiB where the status is no 2xx
  std::string url = {};   ///< that answered, after redirects

  /// The value of the header in any case; empty if there is none.
  std::string header(std::string_view name) const;
  bool is_ok() const { return status >= 200 && status < 300; }
};

enum class Failure {
  kNoHost,     ///< its name has no address
  kNoConnect,  ///< nobody answers there
  kTls,        ///< no trusted certificate
  kStalled,    ///< a time-out
  kLost,       ///< the connection broke, or what came is no HTTP
  kTooLarge,
  kRedirect,  ///< too many, or to where we do not go
  kNoRanges,
  kOther
};

/// No answer. `where` is the URL without its query, which may hold a signature.
class TransferError : public IoError {
 public:
  TransferError(std::string where, std::string message, Failure failure)
      : IoError(std::move(where), std::move(message)), failure_(failure) {}
  Failure failure() const { return failure_; }

 private:
  Failure failure_;
};

struct ClientOptions {
  /// How often a request is repeated after a connection failure, 408, 429 or 5xx. $LORA_TRAIN_HTTP_RETRIES, else 5. A try that
  /// brought new bytes of a `range` does not count.
  int num_retries = retries_of_environment();
  /// The first delay; each is twice the one before, at most 30 s, and takes between half of that and all of it. A Retry-After up to
  /// two minutes is obeyed; a longer one ends the retries.
  double first_delay_s = 0.5;

  static int retries_of_environment();
};

/// Sends requests. Thread-safe: as many requests run at a time as threads call send(), each on a connection of its own, which
/// the client keeps for later requests.
///
/// Certificates are always verified: against the system's, or $SSL_CERT_FILE or $CURL_CA_BUNDLE. Proxies come from http_proxy,
/// https_proxy, all_proxy and no_proxy, as curl reads them. Redirects are followed, at most 10, to http and https, never from https
/// to http; a 301, 302 or 303 turns a POST into a GET.
class Client {
 public:
  /// Throws IoError where this build or this machine has no HTTP.
  explicit Client(ClientOptions options = {});
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  /// The answer, whatever its status, after the retries. Throws TransferError where there is none, ConfigError for a URL or a header
  /// that cannot be sent, and what `sink` and `poll` throw.
  Answer send(const Request& request);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lora_train::hub
