#include "protocol/worker/job_window.h"

#include "base/invariant.h"

namespace shoal::worker {

using wire::Type;

JobWindow::JobWindow(const Environment& environment, const Links& links, ServerFrames& frames)
    : environment_(environment),
      links_(links),
      frames_(frames),
      congestion_(environment.config()),
      node_size_(environment.config().node_of(environment.rank()).size()) {}

void JobWindow::set(const CongestionController::Setting& setting) {
  told_ = setting;
  const std::uint8_t flags = setting.competing ? wire::flag_competing : 0;
  const JobConfig& config = environment_.config();
  for (std::uint32_t server = 0; server < config.servers(); ++server) {
    if (config.weights[server] > 0) {
      frames_.send(server, {.type = Type::window, .flags = flags, .credit = setting.credit});
    }
  }
}

void JobWindow::tell_again() {
  if (told_) {
    const CongestionController::Setting setting = *told_;
    set(setting);
  }
}

void JobWindow::begin_measuring() {
  if (measured_++ == 0) {
    congestion_.begin(environment_.now());
  }
}

void JobWindow::end_measuring() {
  if (--measured_ == 0) {
    congestion_.pause(environment_.now());
  }
}

void JobWindow::answered(std::uint64_t bytes, Senders senders) {
  const std::uint64_t others = senders == Senders::ranks ? (node_size_ - 1) * bytes : 0;
  if (congestion_.answered(bytes, others, environment_.now())) {
    if (const auto setting = congestion_.decide(retransmissions(), environment_.now())) {
      set(*setting);
    }
  }
}

std::uint64_t JobWindow::retransmissions() const {
  std::uint64_t sum = 0;
  for (std::uint32_t server = 0; server < environment_.config().servers(); ++server) {
    const std::optional<LinkId> link = links_.server(server);
    sum += link ? environment_.world().retransmissions(*link) : 0;
  }
  return sum;
}

void JobWindow::check_invariants() const {
  SHOAL_INVARIANT(!told_ || told_->credit <= environment_.config().most_credit());
  SHOAL_INVARIANT(measured_ == 0 || measures());
}

}  // namespace shoal::worker
