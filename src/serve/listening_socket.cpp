#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "lora_train/base/error.h"
#include "lora_train/serve/http_server.h"

namespace lora_train::serve {
namespace {

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
  if (code != 0) throw IoError("--host " + host, std::string("is no address of this machine: ") + ::gai_strerror(code));
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

ListeningSocket::ListeningSocket(const std::string& host, std::uint16_t port) {
  const Addresses addresses = look_up(host, port);
  const auto refuse = [&](const char* what) {
    const int error = errno;
    if (fd_ >= 0) ::close(fd_);
    const std::string advice =
        error == EADDRINUSE ? ". Another program listens there: give another --port, or 0 for a free one" : "";
    throw IoError(host + ":" + std::to_string(port), std::string(what) + ": " + std::strerror(error) + advice);
  };
  fd_ = ::socket(addresses->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd_ < 0) refuse("cannot open a socket");
  const int on = 1;
  ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd_, addresses->ai_addr, addresses->ai_addrlen) != 0) refuse("cannot listen");
  if (::listen(fd_, SOMAXCONN) != 0) refuse("cannot listen");
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  ::getsockname(fd_, reinterpret_cast<sockaddr*>(&bound), &size);
  is_loopback_ = is_of_this_machine(reinterpret_cast<const sockaddr&>(bound));
  url_ = url_of(reinterpret_cast<const sockaddr&>(bound), size);
}

ListeningSocket::~ListeningSocket() { ::close(fd_); }

}  // namespace lora_train::serve
