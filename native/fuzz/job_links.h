// The network of a fuzzed job: links between its machines, and what is on its way over each. Frames come as they were
// sent, or changed, twice, never, or without having been sent; links break.
//
// What must hold: a machine sends over links of its own, what it sends can be read, and no header makes a machine take
// more memory than the longest payload of its peers has.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "fuzz/damage.h"
#include "fuzz/input.h"
#include "protocol/machine.h"
#include "wire/epoch.h"
#include "wire/late.h"
#include "wire/waits.h"

namespace shoal::fuzz {

// The longest payload that any machine takes: parts of an operation that a server asks for again, or what a rank waits
// for.
inline std::size_t longest_payload() {
  return std::max({wire::missing_limit(), wire::late_limit(), wire::circle_bytes + limits::text_bytes + 16});
}

class JobLinks {
 public:
  enum class Way { honest, changed, twice, never };

  // `machines`: by actor; must outlive it.
  JobLinks(Input& input, const std::vector<Machine*>& machines) : input_(input), machines_(machines) {}

  // Nothing was changed, lost or made up, and no link is broken.
  bool honest() const { return honest_; }
  void note_dishonest() { honest_ = false; }

  // The link's two ends.
  std::pair<LinkId, LinkId> connect(std::size_t near, std::size_t far);

  // --- Actions of machines ---

  void send(std::size_t actor, LinkId link, const wire::Header& header, Bytes owned,
            std::span<const std::byte> borrowed, Token token);
  void detach(std::size_t actor, Token token);
  void close(LinkId link);

  // --- Events ---

  LinkId any() { return static_cast<LinkId>(1 + input_.byte() % last_link_); }
  // An end that has something to send, if there is one.
  LinkId any_busy();
  void deliver(LinkId from, Way way);
  // A frame that nobody sent.
  void make_up(LinkId to);
  // The result of what has not left yet.
  void answer_early(LinkId to);
  // Both ends go; what was not sent is thrown away. `tell`: the machine at this end has not closed it by itself.
  void break_link(LinkId link, bool tell);
  void break_all_of(std::size_t actor);
  void break_all();
  // A machine hears that a link is closed, or that borrowed memory is free again. False: there is nothing to hear.
  bool return_token();
  // What was sent first over the first link arrives. False: nothing is on its way.
  bool deliver_next();

 private:
  struct Queued {
    wire::Header header;
    Bytes owned;
    std::span<const std::byte> borrowed;
    Token token = 0;
  };
  // One end of a link; `queue` is what it sends.
  struct End {
    std::size_t actor = 0;
    LinkId other = 0;
    bool open = true;
    std::deque<Queued> queue;
  };

  void receive(LinkId to, const Frame& frame);
  void throw_away(End& end);

  Input& input_;
  const std::vector<Machine*>& machines_;
  bool honest_ = true;
  LinkId last_link_ = 0;
  std::map<LinkId, End> ends_;
  std::deque<std::pair<std::size_t, Token>> returned_;
  std::deque<LinkId> closed_;  // by the other end
};

inline std::pair<LinkId, LinkId> JobLinks::connect(std::size_t near, std::size_t far) {
  const LinkId a = ++last_link_;
  const LinkId b = ++last_link_;
  ends_[a] = {near, b, true, {}};
  ends_[b] = {far, a, true, {}};
  return {a, b};
}

inline void JobLinks::send(std::size_t actor, LinkId link, const wire::Header& header, Bytes owned,
                           std::span<const std::byte> borrowed, Token token) {
  require(ends_.contains(link) && ends_.at(link).actor == actor, "a machine sends over links of its own");
  require(header.length == owned.size() + borrowed.size(), "a header has its payload's length");
  wire::Header read = header;
  require(reread(read).ok() && read == header, "a frame that is sent can be read");
  require(borrowed.empty() || token != 0, "a machine hears when borrowed memory is free");
  if (!ends_.at(link).open) {
    returned_.push_back({actor, token});
    return;
  }
  ends_.at(link).queue.push_back({header, std::move(owned), borrowed, token});
}

inline void JobLinks::detach(std::size_t actor, Token token) {
  for (auto& [id, end] : ends_) {
    for (Queued& frame : end.queue) {
      if (end.actor == actor && frame.token == token) {
        frame.owned.insert(frame.owned.end(), frame.borrowed.begin(), frame.borrowed.end());
        frame.borrowed = {};
      }
    }
  }
}

inline void JobLinks::close(LinkId link) {
  // Whoever closes a link hears no more of it.
  std::erase(closed_, link);
  break_link(link, false);
}

inline LinkId JobLinks::any_busy() {
  std::vector<LinkId> busy;
  for (const auto& [id, end] : ends_) {
    if (!end.queue.empty()) {
      busy.push_back(id);
    }
  }
  return busy.empty() ? 1 : busy[input_.byte() % busy.size()];
}

inline void JobLinks::deliver(LinkId from, Way way) {
  End& end = ends_.at(from);
  if (!end.open || end.queue.empty()) {
    return;
  }
  Queued queued = std::move(end.queue.front());
  end.queue.pop_front();
  Frame frame{queued.header, std::move(queued.owned)};
  frame.payload.insert(frame.payload.end(), queued.borrowed.begin(), queued.borrowed.end());
  returned_.push_back({end.actor, queued.token});
  honest_ = honest_ && way == Way::honest;
  if (way == Way::never) {
    return;
  }
  if (way == Way::changed) {
    damage(frame, input_);
  }
  const LinkId to = end.other;
  receive(to, frame);
  if (way == Way::twice) {
    receive(to, frame);
  }
}

inline void JobLinks::make_up(LinkId to) {
  honest_ = false;
  Frame frame{{.type = static_cast<wire::Type>(1 + input_.below(20)),
               .operation = input_.size(),
               .offset = input_.size(),
               .credit = static_cast<std::uint32_t>(input_.size())},
              input_.bytes(input_.byte())};
  frame.header.dtype = input_.once_in(2) ? static_cast<DType>(input_.below(14)) : DType::none;
  frame.header.flags = input_.once_in(4) ? 1 : 0;
  frame.header.length = static_cast<std::uint32_t>(frame.payload.size());
  receive(to, frame);
}

inline void JobLinks::answer_early(LinkId to) {
  const std::deque<Queued>& queue = ends_.at(to).queue;
  if (queue.empty()) {
    return;
  }
  const Queued& asked = queue[input_.below(std::min<std::size_t>(queue.size(), 256))];
  honest_ = false;
  const auto bytes = static_cast<std::uint32_t>(asked.borrowed.size());
  Frame frame{{.type = wire::Type::result,
               .flags = input_.once_in(2) ? wire::flag_last : std::uint8_t{0},
               .dtype = asked.header.dtype == DType::none ? DType::int32 : asked.header.dtype,
               .operation = asked.header.operation,
               .offset = asked.header.offset,
               .length = bytes,
               .credit = asked.header.type == wire::Type::data ? bytes : 0},
              Bytes(bytes)};
  receive(to, frame);
}

inline void JobLinks::receive(LinkId to, const Frame& frame) {
  End& end = ends_.at(to);
  if (!end.open) {
    return;
  }
  Machine& machine = *machines_[end.actor];
  wire::Header header = frame.header;
  if (!reread(header).ok()) {
    break_link(to, true);
    return;
  }
  const Placement placement = machine.on_header(to, header);
  if (!end.open) {
    return;
  }
  if (!placement.status.ok()) {
    break_link(to, true);
    return;
  }
  require(header.length <= longest_payload(), "no header makes a machine take much memory");
  // What the header promises and the frame lacks is 0.
  const std::size_t there = std::min<std::size_t>(frame.payload.size(), header.length);
  std::copy_n(frame.payload.begin(), there, placement.memory);
  std::fill_n(placement.memory + there, header.length - there, std::byte{0});
  if (!machine.on_payload(to).ok()) {
    break_link(to, true);
  }
}

inline void JobLinks::break_link(LinkId link, bool tell) {
  End& near = ends_.at(link);
  End& far = ends_.at(near.other);
  if (!near.open) {
    return;
  }
  near.open = false;
  far.open = false;
  honest_ = false;
  throw_away(near);
  throw_away(far);
  const Status why = Status::error(Code::peer_lost, "gone");
  if (tell) {
    machines_[near.actor]->on_lost(link, why);
    machines_[far.actor]->on_lost(near.other, why);
  } else {
    closed_.push_back(near.other);
  }
}

inline void JobLinks::break_all_of(std::size_t actor) {
  for (LinkId link = 1; link <= last_link_; ++link) {
    if (ends_.at(link).actor == actor) {
      break_link(link, true);
    }
  }
}

inline void JobLinks::break_all() {
  for (LinkId link = 1; link <= last_link_; ++link) {
    break_link(link, true);
  }
}

inline void JobLinks::throw_away(End& end) {
  for (const Queued& frame : end.queue) {
    returned_.push_back({end.actor, frame.token});
  }
  end.queue.clear();
}

inline bool JobLinks::return_token() {
  if (!closed_.empty()) {
    const LinkId link = closed_.front();
    closed_.pop_front();
    machines_[ends_.at(link).actor]->on_lost(link, Status::error(Code::peer_lost, "closed"));
    return true;
  }
  if (returned_.empty()) {
    return false;
  }
  const auto [actor, token] = returned_.front();
  returned_.pop_front();
  if (token != 0) {
    machines_[actor]->on_sent(token);
  }
  return true;
}

inline bool JobLinks::deliver_next() {
  for (LinkId link = 1; link <= last_link_; ++link) {
    if (!ends_.at(link).queue.empty()) {
      deliver(link, Way::honest);
      return true;
    }
  }
  return false;
}

}  // namespace shoal::fuzz
