#include "engine/channel.h"

#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/router.h"

namespace shoal::engine {

// For timelines and for ranks that have joined, the first channel speaks for all: others' parts of an operation follow
// from its own.
class Channel::World final : public OnLoop<WorkerWorld> {
 public:
  World(std::uint32_t channel, const JobConfig& job, Loop& loop, ChannelUser& user)
      : OnLoop(loop), channel_(channel), job_(job), user_(user) {}

  void sum(Sum sum) override { loop_.sum(*machine_, sum); }
  void numbered(std::uint64_t handle, std::uint32_t occurrence) override {
    if (is_first()) {
      user_.router().numbered(handle, occurrence);
    }
  }
  void sending(std::uint64_t handle) override {
    if (is_first()) {
      user_.router().sending(handle, loop_.round());
    }
  }
  void reached(std::uint64_t handle, Milestone milestone) override {
    if (is_first()) {
      milestone == Milestone::all_called ? user_.router().all_called(handle) : user_.router().first_result(handle);
    }
  }
  void received(std::uint64_t handle, Range range) override { user_.router().received(handle, range); }
  void finish(std::uint64_t handle, Status status) override { user_.router().end(handle, std::move(status)); }
  std::byte* allocate_output(std::uint64_t handle, const std::vector<std::uint64_t>& block_bytes) override {
    return user_.router().allocate_output(handle, block_bytes);
  }
  void connect(std::uint32_t rank) override { user_.tell({"connect", static_cast<std::int32_t>(rank), ""}); }
  void connect_server(std::uint32_t server, std::uint32_t attempt) override {
    user_.tell({"connect_server", static_cast<std::int32_t>(job_.index_of(channel_, server)), "", attempt});
  }
  void called(std::uint32_t group, const wire::Opening& opening) override { user_.router().called(group, opening); }
  void warn(std::string text) override { user_.warn(channel_, std::move(text)); }
  void ended() override { user_.ended(channel_); }
  void gone(std::uint32_t rank) override {
    if (is_first()) {
      user_.router().gone(rank);
    }
  }
  std::uint64_t retransmissions(LinkId link) const override { return loop_.retransmissions(link); }
  Waiting waiting() override { return user_.waiting(); }
  std::map<std::uint64_t, wire::Wait> described_inside(const std::vector<std::uint64_t>& handles) override {
    return user_.router().described(handles);
  }
  bool has_called_inside(const wire::Call& call) override { return user_.router().has_called(call); }
  Failed fail_inside(const wire::Call& call, const Status& why) override { return user_.router().fail(call, why); }

 private:
  bool is_first() const { return channel_ == 0; }

  const std::uint32_t channel_;
  const JobConfig& job_;
  ChannelUser& user_;
};

class Channel::DecidingWorld final : public OnLoop<CoordinatorWorld> {
 public:
  DecidingWorld(std::uint32_t channel, Loop& loop, ChannelUser& user) : OnLoop(loop), channel_(channel), user_(user) {}
  void warn(std::string text) override { user_.warn(channel_, std::move(text)); }

 private:
  const std::uint32_t channel_;
  ChannelUser& user_;
};

Channel::Channel(std::uint32_t number, std::uint32_t rank, const JobConfig& config, ChannelUser& user)
    : number_(number),
      config_(config.of_channel(number)),
      loop_(LinkOptions::of(config_)),
      world_(std::make_unique<World>(number, config, loop_, user)),
      deciding_world_(std::make_unique<DecidingWorld>(number, loop_, user)),
      machines_(std::make_unique<Machines>(rank, config_, loop_, *world_, *deciding_world_)) {}

Channel::~Channel() = default;

void Channel::note() {
  // In this order: a rank that has left and does not serve may end.
  serves_ = worker().serves();
  left_ = worker().left();
  has_losses_ = !worker().loss_of(0).ok();
  buffer_bytes_.store(machines_->buffer_bytes(), std::memory_order_relaxed);
}

}  // namespace shoal::engine
