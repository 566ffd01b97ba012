// The loop's links: sockets, pairs in memory, and what follows from actions on them.
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "drivers/tcp/loop.h"

namespace shoal::tcp {

namespace {

// How often the kernel is reminded of what it has not sent.
constexpr Time push_interval = second / 1000;

}  // namespace

// --- Sockets ---

void Loop::handle_socket(LinkId link, std::uint32_t events) {
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

void Loop::receive(LinkId link) {
  const auto end = sockets_.find(link);
  if (end == sockets_.end()) {
    return;
  }
  Link& socket = *end->second.link;
  receiving_ = end->second.machine;
  if (socket.receive(*this, traffic_) == Link::Progress::lost) {
    lose_socket(link, socket.why());
  }
}

Placement Loop::frame_begins(LinkId link, const wire::Header& header) { return receiving_->on_header(link, header); }

Buffer Loop::spare(std::size_t bytes) { return receiving_->spare(bytes); }

Status Loop::frame_ends(LinkId link) { return receiving_->on_payload(link); }

void Loop::list(Link& link) {
  if (!link.is_listed && !link.waits_for_room) {
    link.is_listed = true;
    to_flush_.push_back(link.id());
  }
}

void Loop::flush_listed() {
  std::vector<LinkId> links;
  links.swap(to_flush_);
  for (LinkId link : links) {
    if (const auto end = sockets_.find(link); end != sockets_.end()) {
      end->second.link->is_listed = false;
      flush(end->second);
    }
  }
}

void Loop::flush(SocketEnd& end) {
  Link& link = *end.link;
  if (link.broken()) {
    return;
  }
  std::vector<Token> sent;
  const Link::Progress progress = link.flush(sent, traffic_, now());
  tokens_return(end.machine, sent);
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
    follow_ups_.push_back({FollowUp::Kind::read, end.machine, link.id()});
  }
}

void Loop::push_backlog() {
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

void Loop::look_at_links() {
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
    lose_socket(id, Status::error(Code::peer_lost, "its host has not answered for " + std::to_string(seconds) +
                                                       " s (SHOAL_PEER_TIMEOUT)"));
  }
}

// Often enough that the time of a loss is right to a tenth, also that of the link with the least patience.
void Loop::look_within(int peer_timeout_seconds, Time time) {
  const Time interval = std::clamp<Time>(peer_timeout_seconds * second / 20, second / 10, second);
  next_look_ = std::min(next_look_, time + interval);
}

void Loop::wait_for(Link& link, bool room, int operation) {
  epoll_event event{};
  event.events = room ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u32 = link.id();
  if (::epoll_ctl(epoll_.number(), operation, link.socket(), &event) < 0) {
    throw std::system_error(errno, std::generic_category(), "cannot watch a connection");
  }
  link.waits_for_room = room;
}

void Loop::lose_socket(LinkId link, Status why) {
  const auto end = sockets_.find(link);
  if (end == sockets_.end()) {
    return;  // a machine has closed it when it heard of the loss of another
  }
  Machine* const machine = end->second.machine;
  // Tokens come after on_lost: follow-ups wait for this call to return.
  drop_socket(end);
  machine->on_lost(link, why);
}

std::unordered_map<LinkId, Loop::SocketEnd>::iterator Loop::drop_socket(
    std::unordered_map<LinkId, SocketEnd>::iterator end) {
  std::vector<Token> unsent;
  end->second.link->close(unsent);
  tokens_return(end->second.machine, unsent);
  closed_.push_back(std::move(end->second.link));
  ++links_gone_;
  return sockets_.erase(end);
}

void Loop::tokens_return(Machine* machine, const std::vector<Token>& tokens) {
  for (Token token : tokens) {
    if (token != 0) {
      sent_.emplace_back(machine, token);
    }
  }
}

// --- Follow-ups and links in memory ---

void Loop::carry_out_follow_ups(std::size_t most) {
  for (std::size_t count = 0; count < most && (!sent_.empty() || !follow_ups_.empty()); ++count) {
    if (!sent_.empty()) {
      const auto [machine, token] = sent_.front();
      sent_.pop_front();
      machine->on_sent(token);
      continue;
    }
    FollowUp next = std::move(follow_ups_.front());
    follow_ups_.pop_front();
    carry_out(next);
  }
}

void Loop::carry_out(FollowUp& next) {
  switch (next.kind) {
    case FollowUp::Kind::summed:
      next.machine->on_summed(next.token);
      break;
    case FollowUp::Kind::deliver:
      give_back(next);
      deliver(next);
      tokens_return(next.machine, {next.token});
      break;
    case FollowUp::Kind::other_end_closed:
      lose_memory(next.link, Status::error(Code::peer_lost, "connection closed by peer"));
      break;
    case FollowUp::Kind::read:
      receive(next.link);
      break;
  }
}

void Loop::give_back(const FollowUp& frame) {
  const auto lent = frame.borrowed.empty() ? lent_.end() : lent_.find(frame.token);
  if (lent != lent_.end() && --lent->second == 0) {
    lent_.erase(lent);
  }
}

void Loop::deliver(FollowUp& frame) {
  const auto sender = memory_.find(frame.link);
  if (sender == memory_.end()) {
    return;
  }
  const LinkId to = sender->second.other;
  const auto receiver = memory_.find(to);
  if (receiver == memory_.end()) {
    return;
  }
  Machine* const machine = receiver->second.machine;
  const Placement placement = machine->on_header(to, frame.header);
  if (!memory_.contains(to)) {
    return;
  }
  if (!placement.status.ok()) {
    lose_memory(to, placement.status);
    return;
  }
  if (!frame.owned.empty()) {
    std::memcpy(placement.memory, frame.owned.data(), frame.owned.size());
  }
  if (!frame.borrowed.empty()) {
    std::memcpy(placement.memory + frame.owned.size(), frame.borrowed.data(), frame.borrowed.size());
  }
  const Status status = machine->on_payload(to);
  if (!status.ok() && memory_.contains(to)) {
    lose_memory(to, status);
  }
}

void Loop::lose_memory(LinkId link, const Status& why) {
  const auto end = memory_.find(link);
  if (end == memory_.end()) {
    return;
  }
  Machine* const machine = end->second.machine;
  drop_memory(link);
  machine->on_lost(link, why);
}

void Loop::drop_memory(LinkId link) {
  const auto end = memory_.find(link);
  if (end == memory_.end()) {
    return;
  }
  const LinkId other = end->second.other;
  memory_.erase(end);
  ++links_gone_;
  if (const auto rest = memory_.find(other); rest != memory_.end()) {
    follow_ups_.push_back({FollowUp::Kind::other_end_closed, rest->second.machine, other});
  }
}

}  // namespace shoal::tcp
