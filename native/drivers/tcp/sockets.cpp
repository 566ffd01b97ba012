#include "drivers/tcp/sockets.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "base/invariant.h"
#include "drivers/common/checked.h"
#include "drivers/tcp/clock.h"

namespace shoal::tcp {

namespace {

// How often the kernel is reminded of what it has not sent.
constexpr Time push_interval = second / 1000;

// With so much queued, a link is flushed at once, so that the network works while the machines do.
constexpr std::size_t flush_early_bytes = 128 * 1024;

}  // namespace

// --- Sockets that come and go ---

void Sockets::add(LinkId id, Machine& machine, Socket socket, const LinkOptions& options) {
  auto link = std::make_unique<Link>(id, std::move(socket), options);
  wait_for(*link, false, EPOLL_CTL_ADD);
  look_within(options.peer_timeout_seconds, now());
  const bool holds_bytes = link->holds_bytes();
  sockets_.emplace(id, End{&machine, std::move(link)});
  if (holds_bytes) {
    follow_ups_.add_read(machine, id);
  }
}

std::size_t Sockets::count(const Machine& machine) const {
  return static_cast<std::size_t>(std::count_if(sockets_.begin(), sockets_.end(),
                                                [&](const auto& entry) { return entry.second.machine == &machine; }));
}

std::size_t Sockets::undelivered_bytes() const {
  std::size_t bytes = 0;
  for (const auto& [id, end] : sockets_) {
    bytes += end.link->queued_bytes() + static_cast<std::size_t>(end.link->unacknowledged_bytes());
  }
  return bytes;
}

bool Sockets::close(LinkId link) {
  const auto end = sockets_.find(link);
  if (end == sockets_.end()) {
    return false;
  }
  drop(end);
  return true;
}

void Sockets::forget(const Machine& machine) {
  for (auto end = sockets_.begin(); end != sockets_.end();) {
    end = end->second.machine == &machine ? drop(end) : std::next(end);
  }
}

Sockets::Ends::iterator Sockets::drop(Ends::iterator end) {
  std::vector<Token> unsent;
  end->second.link->close(unsent);
  follow_ups_.add_sent(*end->second.machine, unsent);
  closed_.push_back(std::move(end->second.link));
  ++gone_;
  return sockets_.erase(end);
}

void Sockets::lose(LinkId link, Status why) {
  const auto end = sockets_.find(link);
  if (end == sockets_.end()) {
    return;  // a machine has closed it when it heard of the loss of another
  }
  Machine& machine = *end->second.machine;
  // Tokens come after on_lost: follow-ups wait for this call to return.
  drop(end);
  machine.on_lost(link, why);
  check_after_event(machine);
}

void Sockets::wait_for(Link& link, bool room, int operation) {
  epoll_event event{};
  event.events = room ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u32 = link.id();
  if (::epoll_ctl(epoll_, operation, link.socket(), &event) < 0) {
    throw std::system_error(errno, std::generic_category(), "cannot watch a connection");
  }
  link.waits_for_room = room;
}

// --- Actions ---

Sockets::End* Sockets::find(LinkId link) {
  const auto end = sockets_.find(link);
  return end == sockets_.end() ? nullptr : &end->second;
}

void Sockets::send(End& end, const wire::Header& header, Bytes owned, std::span<const std::byte> borrowed,
                   Token token) {
  Link& to = *end.link;
  to.queue(header, std::move(owned), borrowed, token);
  list(to);
  if (to.queued_bytes() >= flush_early_bytes && !to.waits_for_room) {
    flush(end);
  }
}

void Sockets::detach(const Machine& machine, Token token) {
  for (auto& [id, end] : sockets_) {
    if (end.machine == &machine) {
      end.link->detach(token);
    }
  }
}

void Sockets::compete(LinkId link, bool on) {
  if (const auto end = sockets_.find(link); end != sockets_.end()) {
    end->second.link->compete(on);
  }
}

std::uint64_t Sockets::retransmissions(LinkId link) const {
  const auto end = sockets_.find(link);
  return end == sockets_.end() ? 0 : end->second.link->retransmissions();
}

// --- Reading ---

void Sockets::handle(LinkId link, std::uint32_t events) {
  // A link that was closed earlier in this round is not found here.
  if ((events & EPOLLOUT) != 0) {
    if (const auto end = sockets_.find(link); end != sockets_.end()) {
      wait_for(*end->second.link, false, EPOLL_CTL_MOD);
      list(*end->second.link);
    }
  }
  if ((events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) {
    receive(link);
  }
}

void Sockets::receive(LinkId link) {
  const auto end = sockets_.find(link);
  if (end == sockets_.end()) {
    return;
  }
  Link& socket = *end->second.link;
  receiving_ = end->second.machine;
  if (socket.receive(*this, traffic_) == Link::Progress::lost) {
    lose(link, socket.why());
  }
}

Placement Sockets::frame_begins(LinkId link, const wire::Header& header) { return receiving_->on_header(link, header); }

Buffer Sockets::spare(std::size_t bytes) { return receiving_->spare(bytes); }

Status Sockets::frame_ends(LinkId link) {
  Status status = receiving_->on_payload(link);
  if (status.ok()) {
    check_after_event(*receiving_);
  }
  return status;
}

// --- Writing ---

void Sockets::list(Link& link) {
  if (!link.is_listed && !link.waits_for_room) {
    link.is_listed = true;
    to_flush_.push_back(link.id());
  }
}

void Sockets::flush_listed() {
  std::vector<LinkId> links;
  links.swap(to_flush_);
  for (LinkId link : links) {
    if (const auto end = sockets_.find(link); end != sockets_.end()) {
      end->second.link->is_listed = false;
      flush(end->second);
    }
  }
}

void Sockets::flush(End& end) {
  Link& link = *end.link;
  if (link.broken()) {
    return;
  }
  std::vector<Token> sent;
  const Link::Progress progress = link.flush(sent, traffic_, now());
  follow_ups_.add_sent(*end.machine, sent);
  if (progress == Link::Progress::more) {
    list(link);
  } else if (progress == Link::Progress::blocked) {
    wait_for(link, true, EPOLL_CTL_MOD);
  } else if (progress == Link::Progress::idle && !link.is_backlogged && link.unsent_bytes() > 0) {
    link.is_backlogged = true;
    if (backlogged_.empty()) {
      next_push_ = now() + push_interval;
    }
    backlogged_.push_back(link.id());
  } else if (progress == Link::Progress::lost) {
    follow_ups_.add_read(*end.machine, link.id());
  }
}

void Sockets::push_backlog() {
  if (backlogged_.empty() || now() < next_push_) {
    return;
  }
  next_push_ = now() + push_interval;
  std::erase_if(backlogged_, [this](LinkId id) {
    const auto end = sockets_.find(id);
    if (end == sockets_.end()) {
      return true;
    }
    Link& link = *end->second.link;
    link.is_backlogged = link.unsent_bytes() > 0;
    if (link.is_backlogged) {
      link.push();
    }
    return !link.is_backlogged;
  });
}

Time Sockets::deadline() const {
  if (!to_flush_.empty()) {
    return 0;
  }
  return backlogged_.empty() ? never : next_push_;
}

// --- Silent hosts ---

void Sockets::look() {
  const Time time = now();
  if (time < next_look_) {
    return;
  }
  next_look_ = never;
  std::vector<std::pair<LinkId, int>> silent;
  for (const auto& [id, end] : sockets_) {
    look_within(end.link->peer_timeout_seconds(), time);
    end.link->look(now());
    if (end.link->is_silent()) {
      silent.emplace_back(id, end.link->peer_timeout_seconds());
    }
  }
  for (const auto& [id, seconds] : silent) {
    lose(id, Status::error(Code::peer_lost,
                           "its host has not answered for " + std::to_string(seconds) + " s (SHOAL_PEER_TIMEOUT)"));
  }
}

// Often enough that the time of a loss is right to a tenth, also that of the link with the least patience.
void Sockets::look_within(int peer_timeout_seconds, Time time) {
  const Time interval = std::clamp<Time>(peer_timeout_seconds * second / 20, second / 10, second);
  next_look_ = std::min(next_look_, time + interval);
}

void Sockets::check_invariants() const {
  std::size_t listed = 0;
  for (const auto& [id, end] : sockets_) {
    SHOAL_INVARIANT(end.machine != nullptr && end.link->id() == id);
    const auto times = static_cast<std::size_t>(std::count(to_flush_.begin(), to_flush_.end(), id));
    SHOAL_INVARIANT(times == (end.link->is_listed ? 1U : 0U));
    SHOAL_INVARIANT(!end.link->is_backlogged || std::count(backlogged_.begin(), backlogged_.end(), id) == 1);
    listed += times;
  }
  SHOAL_INVARIANT(listed <= to_flush_.size());
  SHOAL_INVARIANT(sockets_.empty() || next_look_ != never);
}

}  // namespace shoal::tcp
