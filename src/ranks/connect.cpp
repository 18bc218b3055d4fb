#include "lora_train/ranks/connect.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/Logging.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "control.h"
#include "lora_train/base/error.h"
#include "lora_train/base/stop_request.h"
#include "rendezvous.h"
#include "transport.h"

namespace lora_train::ranks {
namespace {

constexpr std::chrono::seconds kTimeToConnect(10);  // for ranks that have all arrived
constexpr std::chrono::seconds kTimeToName(2);      // until Control knows why a collective failed

/// The address at which the other ranks reach this one. A rank on the master's node only knows the loopback route, so
/// it takes the interface towards the first rank with another address.
std::string own_address(const launch::World& world, const Rendezvous& place) {
  std::string address = local_address_towards(place.host);
  if (world.is_on_one_host()) return address;
  place.store->set(fmt::format("address/{}", world.rank), address);
  for (int rank = 0; rank < world.size && is_loopback(address); ++rank) {
    const std::string other = place.store->get_to_str(fmt::format("address/{}", rank));
    if (!is_loopback(other)) address = local_address_towards(other);
  }
  return address;
}

/// The state that Control's threads use.
struct Connection {
  Connection(const launch::World& own_world, const ConnectOptions& options)
      : world(own_world), place(meet(world, options.shared_folder, options.connect_timeout)) {
    wait_for_all(world, place, options.connect_timeout);
    try {
      join_transport(options);
      place.published.reset();
      defer_stops();
      control->start();
    } catch (const DeviceError&) {
      look_for_a_cause();
      throw;
    } catch (const c10::Error& error) {  // from the store
      look_for_a_cause();
      throw DeviceError(fmt::format("rank {} of {}", world.rank, world.size),
                        std::string("cannot connect to the other ranks: ") + error.what_without_backtrace());
    }
  }

  void look_for_a_cause() {
    if (transport != nullptr) transport->abort();  // else the destructor would wait for it
    look_for_ends(world, place);
  }

  void join_transport(const ConnectOptions& options) {
    const auto timeout = std::min<std::chrono::milliseconds>(options.connect_timeout, kTimeToConnect);
    auto host = make_gloo_transport(place.store, world.rank, world.size, own_address(world, place), timeout);
    transport = make_nccl_transport(std::move(host), world.rank, world.size);
    const Control::Hooks hooks{[this] { transport->abort(); }, [this] { return transport->asynchronous_error(); }};
    control.emplace(world, place.store, gate, hooks, options.patience);
    transport->all_gather("");
  }

  const launch::World world;
  Rendezvous place;
  std::unique_ptr<Transport> transport;
  Gate gate;
  std::optional<Control> control;  ///< its threads use the members above
};

class ConnectedRanks : public Communicator {
 public:
  ConnectedRanks(const launch::World& world, const ConnectOptions& options)
      : connection_(std::make_unique<Connection>(world, options)) {}
  ~ConnectedRanks() override {
    if (!connection_->control->end()) (void)connection_.release();  // its threads are stuck in calls
  }

  int rank() const override { return connection_->world.rank; }
  int world_size() const override { return connection_->world.size; }

  void all_reduce(std::span<const at::Tensor> tensors) override {
    collective([&] { connection_->transport->all_reduce(tensors); });
  }

  std::string broadcast(const std::string& bytes) override {
    std::string result;
    collective([&] {
      const auto size = at::empty({1}, at::kLong);
      *size.mutable_data_ptr<std::int64_t>() = static_cast<std::int64_t>(bytes.size());
      connection_->transport->broadcast(std::array{size});
      const auto sent = at::empty({*size.const_data_ptr<std::int64_t>()}, at::kByte);
      if (rank() == 0) std::memcpy(sent.mutable_data_ptr(), bytes.data(), bytes.size());
      if (sent.numel() > 0) connection_->transport->broadcast(std::array{sent});
      result.assign(static_cast<const char*>(sent.const_data_ptr()), static_cast<std::size_t>(sent.numel()));
    });
    return result;
  }

  void broadcast(std::span<const at::Tensor> tensors) override {
    collective([&] { connection_->transport->broadcast(tensors); });
  }

  std::vector<std::string> all_gather(const std::string& text) override {
    std::vector<std::string> result;
    collective([&] { result = connection_->transport->all_gather(text); });
    return result;
  }

  void set_abort_flag(const at::Tensor& flag) override { connection_->transport->set_abort_flag(flag); }
  void throw_if_failed() override { connection_->gate.rethrow_failure(std::chrono::milliseconds(0)); }

  void begin_steps() override {
    all_gather("");
    connection_->gate.begin_steps();
  }
  void end_steps() override { connection_->gate.open(); }
  bool report(const ErrorReport& error) override { return connection_->control->report(error); }
  int leave(int exit_code) override {
    const int code = connection_->control->leave(exit_code);
    connection_->transport->end();
    return code;
  }

 private:
  template <typename Body>
  void collective(const Body& body) {
    connection_->gate.pass();
    try {
      body();
    } catch (const DeviceError&) {
      throw_if_stop_requested();  // a stop before the first step ends waiting calls
      connection_->gate.rethrow_failure(kTimeToName);
      throw;
    }
  }

  std::unique_ptr<Connection> connection_;
};

}  // namespace

std::unique_ptr<Communicator> connect(const launch::World& world, const ConnectOptions& options) {
  if (world.size == 1) return std::make_unique<OneRank>();
  ::setenv("TORCH_CPP_LOG_LEVEL", "FATAL", 0);  // c10d's lines have stack traces; what failed is in our exceptions
  c10::initLogging();                           // reads the variable
  return std::make_unique<ConnectedRanks>(world, options);
}

}  // namespace lora_train::ranks
