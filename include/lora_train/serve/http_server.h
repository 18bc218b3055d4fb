// The HTTP server in front of a Service: libmicrohttpd, in one thread of its own that waits for no client and no answer.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "lora_train/serve/service.h"

namespace lora_train::serve {

/// A socket that listens, before anybody accepts.
class ListeningSocket {
 public:
  /// host: a name or an address; port 0: a free one. Throws IoError where it cannot be had.
  ListeningSocket(const std::string& host, std::uint16_t port);
  ~ListeningSocket();
  ListeningSocket(const ListeningSocket&) = delete;
  ListeningSocket& operator=(const ListeningSocket&) = delete;

  /// Whether only this machine reaches it.
  bool is_loopback() const { return is_loopback_; }
  /// "http://127.0.0.1:8000"
  const std::string& url() const { return url_; }
  int fd() const { return fd_; }

 private:
  int fd_ = -1;
  bool is_loopback_ = false;
  std::string url_;
};

/// Whether the library is here; else what to install.
std::string missing_http_library();

/// A slow client delays its own answer alone: a connection without bytes to send is suspended until there are some.
/// Each request is one line of the log, once it is answered: method, path, status, tokens, seconds.
class HttpServer {
 public:
  /// `service` and `socket` must outlive the server.
  HttpServer(Service& service, const ListeningSocket& socket);
  ~HttpServer();  ///< stop()
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  /// Throws IoError if the library cannot start.
  void start();
  /// No new connections; those that are open get their answers and are then closed.
  void stop_accepting();
  /// Gives up answers whose clients have closed their connections while they wait: call it some times a second.
  void drop_vanished();
  /// Waits until no request is open. False: `deadline` came first.
  bool wait_until_idle(std::chrono::steady_clock::time_point deadline);
  /// Closes all connections. Nobody may call drop_vanished() meanwhile.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// How a server ends: it drains, within a time that no client and no computation can extend.
///
/// While it lives, a thread looks for a requested stop (base/stop_request.h) and for clients that have gone. On a stop, nothing new is
/// taken and the answers that are being written have kDrainS to become whole; then they are given up, and the computation is
/// interrupted. A process that has not come to finish() kLastResortS later is ended with code 0: a pass can take longer.
class Drain {
 public:
  static constexpr double kDrainS = 6, kLastResortS = 3;

  /// Stops take effect through this object from now on (defer_stops()). All must outlive it.
  Drain(HttpServer& server, RequestBoard& board);
  ~Drain();
  Drain(const Drain&) = delete;
  Drain& operator=(const Drain&) = delete;

  /// Called once nothing is computed any more: waits until the answers are sent, as long as the time allows, and closes the server.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  void watch();
  void look();

  HttpServer& server_;
  RequestBoard& board_;
  std::atomic<bool> is_computing_ = true, has_ended_ = false;
  std::atomic<Clock::time_point> deadline_ = Clock::time_point::max();
  std::thread watcher_, last_resort_;
};

}  // namespace lora_train::serve
