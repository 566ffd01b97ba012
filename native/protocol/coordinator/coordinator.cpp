#include "protocol/coordinator/coordinator.h"

#include <algorithm>
#include <utility>

#include "base/invariant.h"
#include "base/limits.h"
#include "wire/bytes.h"

namespace shoal {

using wire::Header;
using wire::Type;

namespace {

constexpr const char* look_at_rank = "see the last lines of that rank's output, and its machine's log";

bool is_of_circles(Type type) { return type == Type::waits || type == Type::calls; }

bool is_for_coordinator(Type type) {
  return type == Type::leave || type == Type::report || type == Type::abort || type == Type::reached ||
         is_of_circles(type);
}

// Whether a rank may say that it waits for this.
Status check_waits(const wire::Waits& waits, std::uint32_t rank, std::uint32_t ranks) {
  for (const wire::Wait& wait : waits.waits) {
    if (!wait.members.empty() && wait.members.back().last() >= ranks) {
      return refused("WAITS with a rank that does not exist");
    }
    if (std::none_of(wait.members.begin(), wait.members.end(),
                     [rank](const auto& stride) { return stride.has(rank); })) {
      return refused("WAITS of a rank that is not a member");
    }
  }
  return waits.waits.empty() ? refused("WAITS for nothing") : Status{};
}

}  // namespace

Coordinator::Coordinator(const JobConfig& config, CoordinatorWorld& world)
    : config_(config),
      world_(world),
      members_(config.size(), world),
      servers_(config_, members_, world),
      circles_(config_) {}

// --- Frames ---

Placement Coordinator::on_header(LinkId link, const Header& header) {
  if (!is_for_coordinator(header.type) || header.epoch != 0) {
    return {refused(std::string(wire::name_of(header.type)) + " is not for the coordinator"), nullptr};
  }
  const bool of_circles = is_of_circles(header.type);
  const std::size_t most = header.type == Type::leave ? 0 : of_circles ? wire::circle_bytes : limits::text_bytes + 16;
  if (header.length > most) {
    return {refused(std::string(wire::name_of(header.type)) + " of " + std::to_string(header.length) + " bytes"),
            nullptr};
  }
  if (of_circles) {
    return {{}, inbox_.begin_counted(link, header, circles_.has_room(inbox_.arriving() + header.length))};
  }
  return {{}, inbox_.begin(link, header)};
}

Status Coordinator::on_payload(LinkId link) {
  const std::uint32_t rank = members_.rank_of(link);
  if (!members_.take(link)) {
    inbox_.drop(link);
    return {};
  }
  switch (inbox_.header(link).type) {
    case Type::leave:
      members_.leave(rank);
      circles_.forget(rank);
      break;
    case Type::waits:
      return hear_waits(link);
    case Type::calls:
      return hear_calls(link);
    case Type::reached:
      return hear_reached(link);
    case Type::abort:
      lose_rank(rank, Code::aborted,
                rank_text(rank, config_) + " ended with an error: " + wire::text_of(inbox_.payload(link)));
      break;
    default: {
      wire::Loss loss;
      if (Status status = wire::decode(inbox_.payload(link), loss); !status.ok()) {
        return status;
      }
      return hear_report(rank, std::move(loss));
    }
  }
  members_.end_if_all_gone();
  return {};
}

void Coordinator::on_lost(LinkId link, const Status& why) {
  const std::uint32_t rank = members_.rank_of(link);
  inbox_.forget(link);
  if (members_.detach(link)) {
    if (members_.is_there(rank)) {
      world_.warn("one of the control links between " + rank_text(rank, config_) + " and " + rank_text(0, config_) +
                  " has ended (" + why.message +
                  "): the job goes on with the others, and does not make it again; see " +
                  "the network interfaces of both hosts");
    }
    return;
  }
  const std::string text = " is lost: its connection to " + rank_text(0, config_) + " ended (" + why.message + ")";
  if (members_.has_left(rank)) {
    tell_its_node_that_it_is_gone(rank);
    servers_.lose_of_rank(rank, text, now_);
    servers_.go_on();
  } else {
    lose_rank(rank, Code::peer_lost, rank_text(rank, config_) + text + "; " + look_at_rank);
  }
  members_.end_if_all_gone();
}

// A rank that ends as it should says so in the memory of its machine. One that is killed after it has left does not,
// and what the others write for it would never be read.
void Coordinator::tell_its_node_that_it_is_gone(std::uint32_t rank) {
  wire::Bytes bytes;
  wire::append(bytes, rank);
  for (const std::uint32_t other : config_.node_of(rank)) {
    if (other != rank) {
      members_.tell(other, Type::gone, bytes);
    }
  }
}

void Coordinator::on_time(Time now) {
  now_ = now;
  while (const std::optional<Report> report = reports_.next(now)) {
    act_on(*report);
  }
  servers_.go_on();
  servers_.on_time(now);
  pass_on(circles_.on_time(now));
  members_.end_if_all_gone();
}

Time Coordinator::deadline() const { return std::min({circles_.deadline(), reports_.deadline(), servers_.deadline()}); }

// --- Reports and losses ---

Status Coordinator::hear_report(std::uint32_t by, wire::Loss loss) {
  const bool is_server = loss.kind == wire::Loss::Kind::server;
  if (loss.index >= (is_server ? config_.servers() : config_.size())) {
    return refused("REPORT of something that does not exist");
  }
  if (is_server) {
    loss.index = config_.first_lane(loss.index);
  }
  Report report{by, std::move(loss)};
  if (is_server && config_.server_ranks[report.loss.index] < 0) {
    act_on(report);  // it has no word of its own to wait for
    servers_.go_on();
  } else {
    reports_.add(std::move(report), now_);
  }
  return {};
}

// A report about a rank, or about the server in its process. If the server averages from the start and cannot be
// reached, its rank is lost. If it only stands by, its rank has left, or it is there over another network, where it has
// other lanes, only the server is.
void Coordinator::act_on(const Report& report) {
  const bool is_server = report.loss.kind == wire::Loss::Kind::server;
  const std::uint32_t index = report.loss.index;
  const std::string text =
      " is lost: " + rank_text(report.by, config_) + " cannot reach it (" + report.loss.status.message + ")";
  if (is_server && config_.server_ranks[index] < 0) {
    servers_.hear_break(index, report.by, text, now_);
    return;
  }
  const auto rank = is_server ? static_cast<std::uint32_t>(config_.server_ranks[index]) : index;
  if (members_.is_lost(rank) || (members_.has_left(rank) && !is_server)) {
    return;
  }
  if (is_server && (members_.has_left(rank) || config_.weights[index] == 0 || servers_.has_other_lanes(index))) {
    servers_.lose(index, "server " + config_.server_names[index] + text, now_);
  } else {
    lose_rank(rank, Code::peer_lost, rank_text(rank, config_) + text + "; " + look_at_rank);
  }
}

void Coordinator::lose_rank(std::uint32_t rank, Code code, std::string text) {
  if (members_.lose(rank)) {
    circles_.forget(rank);
    const Status why = Status::error(code, std::move(text), static_cast<std::int32_t>(rank));
    members_.tell_all(Type::lost, wire::encode(wire::Loss{wire::Loss::Kind::rank, rank, why}));
  }
}

Status Coordinator::hear_reached(LinkId link) {
  wire::Reached reached;
  if (Status status = wire::decode(inbox_.payload(link), reached); !status.ok()) {
    return status;
  }
  const bool unreachable = (inbox_.header(link).flags & wire::flag_unreachable) != 0;
  return servers_.hear_reached(members_.rank_of(link), reached, unreachable, now_);
}

// --- Ranks that wait for each other ---

Status Coordinator::hear_waits(LinkId link) {
  const std::uint32_t rank = members_.rank_of(link);
  const std::optional<wire::Bytes> payload = inbox_.take_counted(link);
  circles_.forget(rank);
  if (!payload) {
    warn_that_there_is_no_room();
    return {};
  }
  wire::Waits waits;
  if (Status status = wire::decode(*payload, waits); !status.ok()) {
    return status;
  }
  if (Status status = check_waits(waits, rank, config_.size()); !status.ok()) {
    return status;
  }
  if (!members_.is_there(rank)) {
    return {};
  }
  if (!circles_.has_room(inbox_.arriving() + Circles::bytes_of(waits))) {
    warn_that_there_is_no_room();
    return {};
  }
  pass_on(circles_.hear(rank, std::move(waits), now_));
  return {};
}

// A rank whose CALLS find no room counts as one that does not answer.
Status Coordinator::hear_calls(LinkId link) {
  const std::optional<wire::Bytes> payload = inbox_.take_counted(link);
  if (!payload) {
    warn_that_there_is_no_room();
    return {};
  }
  wire::Calls calls;
  if (Status status = wire::decode(*payload, calls); !status.ok()) {
    return status;
  }
  pass_on(circles_.hear(members_.rank_of(link), calls, now_));
  return {};
}

void Coordinator::pass_on(const Circles::Messages& messages) {
  for (const Circles::Message& message : messages) {
    if (members_.is_there(message.rank)) {
      members_.tell(message.rank, message.type, message.bytes);
    }
  }
}

void Coordinator::warn_that_there_is_no_room() {
  if (!std::exchange(has_warned_, true)) {
    world_.warn("what the ranks say that they wait for takes all the memory that it may on " + rank_text(0, config_) +
                ", " + bytes_text(config_.tables.waits) +
                " (waits_bytes): ranks that wait for each other in a circle may not be told, and wait until "
                "SHOAL_TIMEOUT; wait for operations earlier, so that fewer are open at once");
  }
}

void Coordinator::check_invariants() const {
  members_.check_invariants();
  inbox_.check_invariants();
  reports_.check_invariants();
  servers_.check_invariants();
  circles_.check_invariants();
  SHOAL_INVARIANT(circles_.has_room(inbox_.arriving()));
  for (std::uint32_t rank = 0; rank < config_.size(); ++rank) {
    SHOAL_INVARIANT(members_.is_there(rank) || !circles_.is_blocked(rank));
  }
}

}  // namespace shoal
