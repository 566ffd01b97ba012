// The coordinator's frames, and its decisions about ranks: who has left, who is lost, and when the job has ended.
#include "protocol/coordinator/coordinator.h"

#include "base/limits.h"
#include "protocol/coordinator/impl.h"
#include "wire/bytes.h"

namespace shoal {

using wire::Header;
using wire::Type;

namespace {

// How long a report waits for the concerned rank's own word: it may have left, or have a better reason.
constexpr Time report_wait = second / 2;

// A server that is lost so soon after it came back is tried less often. Each time costs a peer timeout, so that must
// not be a large part of it.
constexpr Time shortest_probation = 60 * second;
constexpr Time peer_timeouts_of_probation = 4;

constexpr const char* look_at_rank = "see the last lines of that rank's output, and its machine's log";

Status refused(std::string what) { return Status::error(Code::protocol, std::move(what)); }

}  // namespace

Coordinator::Impl::Impl(const JobConfig& config, CoordinatorWorld& world)
    : config_(config),
      probation_(std::max(shortest_probation, peer_timeouts_of_probation * config.peer_timeout * second)),
      world_(world),
      members_(config.size()) {}

void Coordinator::Impl::attach_worker(LinkId link, std::uint32_t rank) {
  members_[rank].link = link;
  links_[link].rank = rank;
}

Placement Coordinator::Impl::on_header(LinkId link, const Header& header) {
  LinkState& from = links_.at(link);
  const bool known = header.type == Type::leave || header.type == Type::report || header.type == Type::abort ||
                     header.type == Type::reached || header.type == Type::waits || header.type == Type::calls;
  if (!known || header.epoch != 0) {
    return {refused(std::string(wire::name_of(header.type)) + " is not for the coordinator"), nullptr};
  }
  const bool of_circles = header.type == Type::waits || header.type == Type::calls;
  const std::size_t most = header.type == Type::leave ? 0 : of_circles ? wire::circle_bytes : limits::text_bytes + 16;
  if (header.length > most) {
    return {refused(std::string(wire::name_of(header.type)) + " of " + std::to_string(header.length) + " bytes"),
            nullptr};
  }
  from.header = header;
  if (of_circles) {
    return {{}, place_counted(from)};
  }
  from.payload.resize(header.length);
  return {{}, from.payload.data()};
}

Status Coordinator::Impl::on_payload(LinkId link) {
  LinkState& from = links_.at(link);
  switch (from.header.type) {
    case Type::leave:
      members_[from.rank].left = true;
      circles_.forget(from.rank);
      break;
    case Type::waits:
      return hear_waits(from);
    case Type::calls:
      return hear_calls(from);
    case Type::reached:
      return hear_reached(from);
    case Type::abort:
      lose_rank(from.rank, Code::aborted,
                rank_text(from.rank, config_) + " ended with an error: " + wire::text_of(from.payload));
      break;
    default: {
      wire::Loss loss;
      if (Status status = wire::decode(from.payload, loss); !status.ok()) {
        return status;
      }
      return hear_report(from.rank, loss);
    }
  }
  end_if_all_gone();
  return {};
}

void Coordinator::Impl::on_lost(LinkId link, const Status& why) {
  const std::uint32_t rank = links_.at(link).rank;
  arriving_ -= links_.at(link).arriving;
  links_.erase(link);
  members_[rank].link.reset();
  const std::string text = " is lost: its connection to " + rank_text(0, config_) + " ended (" + why.message + ")";
  if (members_[rank].left) {
    lose_what_it_serves(rank, text);
  } else {
    lose_rank(rank, Code::peer_lost, rank_text(rank, config_) + text + "; " + look_at_rank);
  }
  end_if_all_gone();
}

void Coordinator::Impl::on_time(Time now) {
  now_ = now;
  while (!reports_.empty() && reports_.begin()->first <= now) {
    const Report report = reports_.begin()->second;
    reports_.erase(reports_.begin());
    act_on(report);
  }
  for (auto& [server, reconnection] : reconnections_) {
    if (reconnection.deadline() <= now) {
      if (reconnection.is_tried()) {
        reconnection.give_up(now);
      } else {
        try_again(server, reconnection);
      }
    }
  }
  say(circles_.on_time(now));
  end_if_all_gone();
}

Time Coordinator::Impl::deadline() const {
  Time first = std::min(circles_.deadline(), reports_.empty() ? never : reports_.begin()->first);
  for (const auto& [server, reconnection] : reconnections_) {
    first = std::min(first, reconnection.deadline());
  }
  return first;
}

// --- Reports and losses ---

Status Coordinator::Impl::hear_report(std::uint32_t by, wire::Loss loss) {
  const bool is_server = loss.kind == wire::Loss::Kind::server;
  if (loss.index >= (is_server ? config_.servers() : config_.size())) {
    return refused("REPORT of something that does not exist");
  }
  if (is_server) {
    loss.index = config_.first_lane(loss.index);
  }
  if (is_server && config_.server_ranks[loss.index] < 0) {
    // It has no word of its own to wait for.
    hear_server_report(by, loss);
  } else if (reported_.emplace(loss.kind, loss.index).second) {  // one report is enough, whoever made it
    reports_.emplace(now_ + report_wait, Report{by, std::move(loss)});
  }
  return {};
}

// Of a rank, or of the server in its process. Where ranks average from the start, who cannot be reached to do it is
// lost; one that only stands by is done without, and so is what a rank serves that has left.
void Coordinator::Impl::act_on(const Report& report) {
  const bool is_server = report.loss.kind == wire::Loss::Kind::server;
  const std::uint32_t index = report.loss.index;
  const auto rank = is_server ? static_cast<std::uint32_t>(config_.server_ranks[index]) : index;
  const bool server_only = is_server && (members_[rank].left || config_.weights[index] == 0);
  if (members_[rank].lost || (members_[rank].left && !is_server)) {
    return;
  }
  const std::string text = cannot_reach(report.by, report.loss);
  if (server_only) {
    lose_server(index, "server " + config_.server_names[index] + text);
  } else {
    lose_rank(rank, Code::peer_lost, rank_text(rank, config_) + text + "; " + look_at_rank);
  }
}

std::string Coordinator::Impl::cannot_reach(std::uint32_t by, const wire::Loss& loss) const {
  return " is lost: " + rank_text(by, config_) + " cannot reach it (" + loss.status.message + ")";
}

void Coordinator::Impl::lose_rank(std::uint32_t rank, Code code, std::string text) {
  if (std::exchange(members_[rank].lost, true)) {
    return;
  }
  circles_.forget(rank);
  announce({wire::Loss::Kind::rank, rank, Status::error(code, std::move(text), static_cast<std::int32_t>(rank))});
}

bool Coordinator::Impl::all_are_there() const {
  for (std::uint32_t rank = 0; rank < config_.size(); ++rank) {
    if (!is_there(rank)) {
      return false;
    }
  }
  return true;
}

void Coordinator::Impl::end_if_all_gone() {
  for (std::uint32_t rank = 0; rank < config_.size(); ++rank) {
    if (is_there(rank)) {
      return;
    }
  }
  if (std::exchange(ended_, true)) {
    return;
  }
  tell_all(Type::ended, 0, {});
}

// --- Ranks that wait for each other ---

// Each rank may say a megabyte at any time, and there are thousands: so what they say together is counted before it is
// read, and nothing is kept but what they wait for.
std::byte* Coordinator::Impl::place_counted(LinkState& from) {
  if (!circles_.has_room(arriving_ + from.header.length)) {
    from.payload = {};
    unread_.resize(wire::circle_bytes);
    return unread_.data();
  }
  from.arriving = from.header.length;
  arriving_ += from.arriving;
  from.payload.resize(from.header.length);
  return from.payload.data();
}

std::optional<wire::Bytes> Coordinator::Impl::take_counted(LinkState& from) {
  const bool is_read = from.payload.size() == from.header.length;
  arriving_ -= std::exchange(from.arriving, 0);
  return is_read ? std::optional(std::exchange(from.payload, {})) : std::nullopt;
}

Status Coordinator::Impl::hear_waits(LinkState& from) {
  const std::uint32_t rank = from.rank;
  const std::optional<wire::Bytes> payload = take_counted(from);
  circles_.forget(rank);
  if (!payload) {
    say_that_there_is_no_room();
    return {};
  }
  wire::Waits waits;
  if (Status status = wire::decode(*payload, waits); !status.ok()) {
    return status;
  }
  for (const wire::Wait& wait : waits.waits) {
    if (!wait.members.empty() && wait.members.back().last() >= config_.size()) {
      return refused("WAITS with a rank that does not exist");
    }
    if (std::none_of(wait.members.begin(), wait.members.end(),
                     [rank](const auto& stride) { return stride.has(rank); })) {
      return refused("WAITS of a rank that is not a member");
    }
  }
  if (waits.waits.empty()) {
    return refused("WAITS for nothing");
  }
  if (!is_there(rank)) {
    return {};
  }
  if (!circles_.has_room(arriving_ + Circles::bytes_of(waits))) {
    say_that_there_is_no_room();
    return {};
  }
  say(circles_.hear(rank, std::move(waits), now_));
  return {};
}

// Who is not heard counts as one that does not answer.
Status Coordinator::Impl::hear_calls(LinkState& from) {
  const std::optional<wire::Bytes> payload = take_counted(from);
  if (!payload) {
    say_that_there_is_no_room();
    return {};
  }
  wire::Calls calls;
  if (Status status = wire::decode(*payload, calls); !status.ok()) {
    return status;
  }
  say(circles_.hear(from.rank, calls, now_));
  return {};
}

void Coordinator::Impl::say_that_there_is_no_room() {
  if (!std::exchange(no_room_said_, true)) {
    world_.warn("what the ranks say that they wait for takes all the memory that it may on " + rank_text(0, config_) +
                ", " + bytes_text(config_.tables.waits) +
                " (waits_bytes): ranks that wait for each other in a circle may not be told, and wait until "
                "SHOAL_TIMEOUT; wait for operations earlier, so that fewer are open at once");
  }
}

void Coordinator::Impl::say(Circles::Messages messages) {
  for (Circles::Message& message : messages) {
    if (is_there(message.rank)) {
      tell(members_[message.rank], message.type, 0, std::move(message.bytes));
    }
  }
}

// --- Telling ---

void Coordinator::Impl::announce(const wire::Loss& loss) { tell_all(Type::lost, 0, wire::encode(loss)); }

void Coordinator::Impl::tell_all(Type type, std::uint32_t epoch, const wire::Bytes& bytes) {
  for (const Member& member : members_) {
    tell(member, type, epoch, bytes);
  }
}

void Coordinator::Impl::tell(const Member& member, Type type, std::uint32_t epoch, wire::Bytes bytes) {
  if (member.link) {
    const Header header{.type = type, .epoch = epoch, .length = static_cast<std::uint32_t>(bytes.size())};
    world_.send(*member.link, header, std::move(bytes), {}, 0);
  }
}

Coordinator::Coordinator(const JobConfig& config, CoordinatorWorld& world)
    : impl_(std::make_unique<Impl>(config, world)) {}
Coordinator::~Coordinator() = default;
void Coordinator::attach_worker(LinkId link, std::uint32_t rank) { impl_->attach_worker(link, rank); }
Placement Coordinator::on_header(LinkId link, const Header& header) { return impl_->on_header(link, header); }
Status Coordinator::on_payload(LinkId link) { return impl_->on_payload(link); }
void Coordinator::on_sent(Token /*token*/) {}
void Coordinator::on_lost(LinkId link, const Status& why) { impl_->on_lost(link, why); }
void Coordinator::on_time(Time now) { impl_->on_time(now); }
Time Coordinator::deadline() const { return impl_->deadline(); }

}  // namespace shoal
