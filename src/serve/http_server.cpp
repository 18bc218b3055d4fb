#include "lora_train/serve/http_server.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "lora_train/base/error.h"
#include "lora_train/base/library.h"
#include "lora_train/base/log.h"
#include "lora_train/base/stop_request.h"
#include "lora_train/base/text.h"
#include "lora_train/base/utf8.h"

namespace lora_train::serve {
namespace {

// GNU libmicrohttpd (https://www.gnu.org/software/libmicrohttpd, LGPL-2.1), loaded if installed. Declarations as in
// microhttpd.h 0.9.75, whose library has ABI version 12.
namespace mhd {

struct Daemon;
struct Connection;
struct Response;
union ConnectionInfo {
  int connect_fd;
};

// Results, start flags, start options, and other constants.
constexpr int kNo = 0, kYes = 1;
constexpr unsigned kEpollInternalThread = 520, kAllowSuspendResume = 9216;
constexpr int kOptionEnd = 0, kOptionConnectionMemory = 1, kOptionConnectionLimit = 2, kOptionConnectionTimeout = 3,
              kOptionNotifyCompleted = 4, kOptionListenSocket = 12, kOptionNotifyConnection = 27;
constexpr int kHeaderKind = 1, kMustCopy = 2, kConnectionFd = 6, kCompletedOk = 0, kConnectionClosed = 1;
constexpr ssize_t kEndOfStream = -1, kEndWithError = -2;
constexpr std::uint64_t kSizeUnknown = ~std::uint64_t{0};

using AccessHandler = int (*)(void* context, Connection*, const char* url, const char* method, const char* version,
                              const char* upload_data, std::size_t* upload_size, void** request);
using CompletedCallback = void (*)(void* context, Connection*, void** request, int reason);
using ContentReader = ssize_t (*)(void* context, std::uint64_t position, char* to, std::size_t most);
using FreeCallback = void (*)(void* context);

struct Api {
  SharedLibrary library;
  Daemon* (*start)(unsigned flags, std::uint16_t port, void* accept, void* accept_context, AccessHandler, void* context,
                   ...) = library.find("MHD_start_daemon");
  void (*stop)(Daemon*) = library.find("MHD_stop_daemon");
  int (*quiesce)(Daemon*) = library.find("MHD_quiesce_daemon");
  Response* (*response_of_bytes)(std::size_t size, void* bytes,
                                 int mode) = library.find("MHD_create_response_from_buffer");
  Response* (*response_of_reader)(std::uint64_t size, std::size_t block, ContentReader, void* context,
                                  FreeCallback) = library.find("MHD_create_response_from_callback");
  int (*add_header)(Response*, const char* name, const char* value) = library.find("MHD_add_response_header");
  int (*queue)(Connection*, unsigned status, Response*) = library.find("MHD_queue_response");
  void (*destroy_response)(Response*) = library.find("MHD_destroy_response");
  void (*suspend)(Connection*) = library.find("MHD_suspend_connection");
  void (*resume)(Connection*) = library.find("MHD_resume_connection");
  const char* (*lookup)(Connection*, int kind, const char* name) = library.find("MHD_lookup_connection_value");
  const ConnectionInfo* (*info)(Connection*, int kind, ...) = library.find("MHD_get_connection_info");
};

/// Null if it cannot be loaded. It stays loaded.
const Api* load() {
  static const Api api{SharedLibrary("libmicrohttpd.so.12")};
  return api.library.problem().empty() ? &api : nullptr;
}

}  // namespace mhd

using Clock = std::chrono::steady_clock;

constexpr unsigned kMaxConnections = 512, kIdleSeconds = 120;
constexpr std::size_t kConnectionBytes = std::size_t{64} << 10, kBlockBytes = std::size_t{16} << 10;
constexpr std::chrono::seconds kCloseTime{2};  // for all connections of a server that stops
constexpr int kClientGone = 499;               // as nginx logs it

/// A request from its headers to the last byte of its answer. Used by the library's thread, except `answer`, which is
/// set once.
struct OpenRequest {
  mhd::Connection* connection = nullptr;
  HttpRequest request;
  HttpReply reply;
  bool has_reply = false, is_discarded = false;
  Clock::time_point start = Clock::now();
};

/// Reads a stream: the part of the answer that exists so far.
struct StreamContext {
  const mhd::Api* api;
  mhd::Connection* connection;
  std::shared_ptr<Answer> answer;
};

std::string header(const mhd::Api& api, mhd::Connection* connection, const char* name) {
  const char* const value = api.lookup(connection, mhd::kHeaderKind, name);
  return value == nullptr ? "" : value;
}

/// "POST /v1/chat/completions 200, 12 + 34 tokens, 0.53 s"
std::string log_line(const OpenRequest& open, int status) {
  std::string line =
      fmt::format("{} {} {}", open.request.method.substr(0, 20), open.request.path.substr(0, 100), status);
  if (const Answer* const answer = open.reply.answer.get()) {
    line += fmt::format(", {}, {} + {} tokens", answer->request().model, answer->num_prompt_tokens(),
                        answer->num_new_tokens());
  }
  const std::chrono::duration<double> seconds = Clock::now() - open.start;
  return visible_text(fmt::format("{}, {:.2f} s", line, seconds.count()));
}

/// True if the other end has closed, or reset, its connection.
bool has_hung_up(int fd) {
  char byte = 0;
  const ssize_t count = ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return count == 0 || (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Addresses look_up(const std::string& host, std::uint16_t port) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (code != 0)
    throw IoError("--host " + host, std::string("is not an address of this machine: ") + ::gai_strerror(code));
  return Addresses(found);
}

bool is_of_this_machine(const sockaddr& address) {
  if (address.sa_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  }
  const std::uint32_t number = ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr);
  return number >> 24 == 127;
}

std::string url_of(const sockaddr& address, socklen_t size) {
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
  ::getnameinfo(&address, size, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
  const bool is_v6 = address.sa_family == AF_INET6;
  return std::string("http://") + (is_v6 ? "[" : "") + host + (is_v6 ? "]:" : ":") + port;
}

}  // namespace

struct HttpServer::Impl {
  Impl(Service& of_service, const ListeningSocket& on) : service(of_service), socket(on) {}

  static int on_request(void* context, mhd::Connection* connection, const char* url, const char* method, const char*,
                        const char* data, std::size_t* size, void** request) {
    auto& server = *static_cast<Impl*>(context);
    try {
      if (*request == nullptr) return server.open_request(connection, url, method, request);
      auto& open = *static_cast<OpenRequest*>(*request);
      if (*size == 0) return server.answer(open);
      server.take_body(open, data, *size);
      *size = 0;
      return mhd::kYes;
    } catch (const std::exception&) {  // out of memory: closes the connection
      return mhd::kNo;
    }
  }

  static void on_completed(void* context, mhd::Connection*, void** request, int reason) {
    auto& server = *static_cast<Impl*>(context);
    const std::unique_ptr<OpenRequest> open(static_cast<OpenRequest*>(*request));
    *request = nullptr;
    if (!open) return;
    if (open->reply.answer) open->reply.answer->outbox.abandon();
    const bool is_answered = reason == mhd::kCompletedOk && open->has_reply;
    log_info(log_line(*open, is_answered ? open->reply.status : kClientGone));
    const std::lock_guard lock(server.mutex);
    server.open_requests.erase(open.get());
    server.closed.notify_all();
  }

  static void on_connection(void* context, mhd::Connection* connection, void**, int event) {
    auto& server = *static_cast<Impl*>(context);
    const std::lock_guard lock(server.mutex);
    if (event == mhd::kConnectionClosed) {
      server.connections.erase(connection);
      server.closed.notify_all();
    } else if (const mhd::ConnectionInfo* const info = server.api->info(connection, mhd::kConnectionFd)) {
      server.connections[connection] = info->connect_fd;
      if (server.is_stopping) ::shutdown(info->connect_fd, SHUT_RDWR);
    }
  }

  static ssize_t on_read(void* context, std::uint64_t, char* to, std::size_t most) {
    const auto& stream = *static_cast<const StreamContext*>(context);
    Outbox& outbox = stream.answer->outbox;
    const std::size_t count = outbox.read(to, most, [&] { stream.api->suspend(stream.connection); });
    if (count > 0) return static_cast<ssize_t>(count);
    if (outbox.is_cancelled()) return mhd::kEndWithError;
    return outbox.is_finished() ? mhd::kEndOfStream : 0;
  }

  int open_request(mhd::Connection* connection, const char* url, const char* method, void** request) {
    auto open = std::make_unique<OpenRequest>();
    open->connection = connection;
    open->request = {method, url, header(*api, connection, "Authorization"), header(*api, connection, "Content-Type"),
                     ""};
    open->is_discarded = !service.has_access(open->request.authorization);
    const std::lock_guard lock(mutex);
    open_requests.insert(open.get());
    *request = open.release();
    return mhd::kYes;
  }

  void take_body(OpenRequest& open, const char* data, std::size_t size) const {
    std::string& body = open.request.body;
    open.request.is_too_large = open.request.is_too_large || body.size() + size > kMaxBodyBytes;
    if (open.request.is_too_large || open.is_discarded) {
      body.clear();
    } else {
      body.append(data, size);
    }
  }

  /// Called once the whole body has arrived, and again after each suspension.
  int answer(OpenRequest& open) {
    if (!open.has_reply) {
      HttpReply reply = service.reply(open.request);
      const std::lock_guard lock(mutex);
      open.reply = std::move(reply);
      open.has_reply = true;
      open.request.body.clear();
      if (open.reply.answer) {
        open.reply.answer->outbox.set_resume([this, connection = open.connection] { api->resume(connection); });
        if (is_stopping) open.reply.answer->outbox.cancel();
      }
    }
    if (!open.reply.answer) return send(open, open.reply.status, open.reply.body);
    Outbox& outbox = open.reply.answer->outbox;
    if (open.reply.answer->request().streams) return send_stream(open);
    if (!outbox.is_whole_or([&] { api->suspend(open.connection); })) return mhd::kYes;
    if (outbox.is_cancelled()) return mhd::kNo;
    std::string body;
    char block[kBlockBytes];
    while (const std::size_t count = outbox.read(block, sizeof block, [] {})) body.append(block, count);
    open.reply.status = outbox.status();
    return send(open, open.reply.status, body);
  }

  int send(OpenRequest& open, int status, const std::string& body) {
    mhd::Response* const response = api->response_of_bytes(body.size(), const_cast<char*>(body.data()), mhd::kMustCopy);
    if (response == nullptr) return mhd::kNo;
    add_headers(response, open, "application/json");
    const int result = api->queue(open.connection, static_cast<unsigned>(status), response);
    api->destroy_response(response);
    return result;
  }

  int send_stream(OpenRequest& open) {
    auto* const context = new StreamContext{api, open.connection, open.reply.answer};
    mhd::Response* const response =
        api->response_of_reader(mhd::kSizeUnknown, kBlockBytes, &on_read, context,
                                [](void* freed) { delete static_cast<StreamContext*>(freed); });
    if (response == nullptr) {
      delete context;
      return mhd::kNo;
    }
    add_headers(response, open, "text/event-stream; charset=utf-8");
    api->add_header(response, "Cache-Control", "no-cache");
    const int result = api->queue(open.connection, 200, response);
    api->destroy_response(response);
    return result;
  }

  void add_headers(mhd::Response* response, const OpenRequest& open, const char* content_type) const {
    api->add_header(response, "Content-Type", content_type);
    for (const auto& [name, value] : open.reply.headers) api->add_header(response, name.c_str(), value.c_str());
    if (is_draining) api->add_header(response, "Connection", "close");
  }

  Service& service;
  const ListeningSocket& socket;
  const mhd::Api* api = nullptr;
  mhd::Daemon* daemon = nullptr;
  std::atomic<bool> is_draining = false;
  std::mutex mutex;
  std::condition_variable closed;
  std::set<OpenRequest*> open_requests;
  std::map<mhd::Connection*, int> connections;  // to their sockets
  bool is_stopping = false;
};

std::string missing_http_library() {
  if (mhd::load() != nullptr) return "";
  return "libmicrohttpd is not installed: apt install libmicrohttpd12 (Fedora: dnf install libmicrohttpd)";
}

HttpServer::HttpServer(Service& service, const ListeningSocket& socket)
    : impl_(std::make_unique<Impl>(service, socket)) {
  impl_->api = mhd::load();
}
HttpServer::~HttpServer() { stop(); }

void HttpServer::start() {
  if (impl_->api == nullptr) throw IoError("serve", missing_http_library());
  impl_->daemon =
      impl_->api->start(mhd::kEpollInternalThread | mhd::kAllowSuspendResume, 0, nullptr, nullptr, &Impl::on_request,
                        impl_.get(), mhd::kOptionListenSocket, impl_->socket.fd(), mhd::kOptionConnectionLimit,
                        kMaxConnections, mhd::kOptionConnectionTimeout, kIdleSeconds, mhd::kOptionConnectionMemory,
                        kConnectionBytes, mhd::kOptionNotifyCompleted, &Impl::on_completed, impl_.get(),
                        mhd::kOptionNotifyConnection, &Impl::on_connection, impl_.get(), mhd::kOptionEnd);
  if (impl_->daemon == nullptr) throw IoError(impl_->socket.url(), "libmicrohttpd cannot start");
}

void HttpServer::stop_accepting() {
  impl_->is_draining = true;
  if (impl_->daemon != nullptr) impl_->api->quiesce(impl_->daemon);
}

void HttpServer::drop_vanished() {
  const std::lock_guard lock(impl_->mutex);
  for (OpenRequest* const open : impl_->open_requests) {
    if (!open->has_reply || !open->reply.answer || open->reply.answer->outbox.is_finished()) continue;
    const mhd::ConnectionInfo* const info = impl_->api->info(open->connection, mhd::kConnectionFd);
    if (info != nullptr && has_hung_up(info->connect_fd)) open->reply.answer->outbox.cancel();
  }
}

bool HttpServer::wait_until_idle(Clock::time_point deadline) {
  std::unique_lock lock(impl_->mutex);
  return impl_->closed.wait_until(lock, deadline, [&] { return impl_->open_requests.empty(); });
}

void HttpServer::stop() {
  if (impl_->daemon == nullptr) return;
  if (!impl_->is_draining) stop_accepting();  // else the library would close the socket, which it does not own
  {
    std::unique_lock lock(impl_->mutex);
    for (OpenRequest* const open : impl_->open_requests) {
      if (open->has_reply && open->reply.answer) open->reply.answer->outbox.cancel();
    }
    // libmicrohttpd 0.9.75 reads a null pointer where it is stopped while it refuses what is no HTTP.
    impl_->is_stopping = true;
    for (const auto& [connection, fd] : impl_->connections) ::shutdown(fd, SHUT_RDWR);
    impl_->closed.wait_for(lock, kCloseTime, [&] { return impl_->connections.empty(); });
  }
  impl_->api->stop(impl_->daemon);
  impl_->daemon = nullptr;
}

ListeningSocket::ListeningSocket(const std::string& host, std::uint16_t port) {
  const Addresses addresses = look_up(host, port);
  const auto refuse = [&](const char* what) {
    const int error = errno;
    const std::string advice =
        error == EADDRINUSE ? ". Another program listens there: give another --port, or 0 for a free one" : "";
    throw IoError(fmt::format("{}:{}", host, port), "{}: {}{}", what, std::strerror(error), advice);
  };
  socket_ = Descriptor(::socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_.is_open()) refuse("cannot open a socket");
  const int on = 1;
  ::setsockopt(fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd(), addresses->ai_addr, addresses->ai_addrlen) != 0) refuse("cannot listen");
  if (::listen(fd(), SOMAXCONN) != 0) refuse("cannot listen");
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  ::getsockname(fd(), reinterpret_cast<sockaddr*>(&bound), &size);
  is_loopback_ = is_of_this_machine(reinterpret_cast<const sockaddr&>(bound));
  url_ = url_of(reinterpret_cast<const sockaddr&>(bound), size);
}

namespace {

constexpr auto kTick = std::chrono::milliseconds(50);

std::chrono::steady_clock::duration seconds(double count) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(count));
}

}  // namespace

Drain::Drain(HttpServer& server, RequestBoard& board) : server_(server), board_(board) {
  defer_stops();
  watcher_ = std::thread([this] {
    for (; is_computing_; std::this_thread::sleep_for(kTick)) watch();
  });
  last_resort_ = std::thread([this] {
    for (; !has_ended_; std::this_thread::sleep_for(kTick)) look();
  });
}

Drain::~Drain() {
  is_computing_ = false;
  has_ended_ = true;
  if (watcher_.joinable()) watcher_.join();
  last_resort_.join();
}

void Drain::watch() {
  server_.drop_vanished();
  if (requested_stop().empty()) return;
  if (deadline_.load() == Clock::time_point::max()) {
    deadline_ = Clock::now() + seconds(kDrainS);
    log_info("stopping: answers in progress may end within {} s", static_cast<int>(kDrainS));
    server_.stop_accepting();
    board_.close();
  }
  if (Clock::now() < deadline_.load()) return;
  board_.cancel_all();
  interrupt(std::make_exception_ptr(StopError(requested_stop(), "the answers in progress are given up")));
}

/// Ends the process if nothing else can.
void Drain::look() {
  const Clock::time_point deadline = deadline_;
  if (deadline == Clock::time_point::max() || Clock::now() < deadline + seconds(kLastResortS)) return;
  std::_Exit(static_cast<int>(ExitCode::kDone));
}

void Drain::finish() {
  is_computing_ = false;
  watcher_.join();
  if (deadline_.load() == Clock::time_point::max()) deadline_ = Clock::now();  // after an error: do not wait
  server_.wait_until_idle(deadline_);
  server_.stop();
}

}  // namespace lora_train::serve
