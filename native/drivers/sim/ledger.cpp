#include "drivers/sim/ledger.h"

#include "protocol/collectives.h"
#include "wire/bytes.h"
#include "wire/epoch.h"
#include "wire/opening.h"

namespace shoal::sim {

using wire::Type;

namespace {

// Where an opening says how much inline data follows it (docs/protocol/format.md, Openings).
constexpr std::size_t inline_length_at = 84;
constexpr std::size_t group_at = 32;

bool is_gather_opening(const Bytes& owned) {
  return is_gather(static_cast<Collective>(wire::get<std::uint8_t>(owned.data())));
}

}  // namespace

Ledger::Flow& Ledger::flow(const End& end) {
  const LinkId id = end.is_client ? end.id : end.other->id;
  const auto [found, is_new] = flows_.try_emplace(id);
  if (is_new) {
    begin(found->second, end.service, config_);
  }
  return found->second;
}

void Ledger::begin(Flow& at, std::uint32_t server, const JobConfig& config) const {
  at.least = config.segment_of(server);
  at.credit = at.window = config.window_of(server).credit;
  at.rank_window = config.window_of(server, Senders::ranks).credit;
  at.limit = config.credit_of(server, config.most_credit());
}

void Ledger::worker_begins(Flow& at, std::uint32_t server, const wire::Header& header, const Bytes& owned) {
  at.reopening = (header.flags & wire::flag_reopened) == 0;
  wire::Epoch epoch;
  if (!at.reopening || !wire::decode(owned, epoch).ok()) {
    return;
  }
  JobConfig config = config_;
  weights_[header.epoch] = config.weights = epoch.weights;
  begin(at, server, config);
  at.epoch = header.epoch;
  at.eager = 0;
  at.results = 0;
  at.inlined.clear();
  at.order.clear();
  at.of_ranks.clear();
  at.failing = false;
  at.last_sent = 0;
}

std::string Ledger::sent(const End& from, const wire::Header& header, const Bytes& owned) {
  if (from.kind == LinkKind::server) {
    Flow& at = flow(from);
    if (from.is_client && header.type == Type::epoch) {
      worker_begins(at, from.service, header, owned);
      return "";
    }
    if (from.is_client && header.type == Type::leave) {
      return "";  // said to servers that are not in use, too
    }
    if (from.is_client) {
      return header.epoch == at.epoch ? worker_sent(at, header, owned) : "is not of the worker's epoch";
    }
    // While the rest of an EPOCH is on its way, the server is still in the one before.
    if (header.epoch != at.server_epoch) {
      return header.epoch < at.server_epoch ? "" : "is of an epoch that the worker has not announced here";
    }
    // The worker throws away what comes of an epoch before its own, and windows may be others since then.
    return header.epoch == at.epoch ? server_sent(at, header) : "";
  }
  if (from.kind == LinkKind::peer && header.type == Type::data) {
    std::int64_t& granted = granted_[{from.id, header.operation}];
    granted -= header.length;
    if (granted < 0) {
      return "a block goes beyond what its receiver has granted";
    }
  }
  return "";
}

std::string Ledger::arrived(const End& to, const wire::Header& header) {
  if (to.kind == LinkKind::peer && header.type == Type::grant) {
    granted_[{to.id, header.operation}] += header.credit;
  }
  if (to.kind != LinkKind::server) {
    return "";
  }
  Flow& at = flow(to);
  if (to.is_client) {
    return header.epoch == at.epoch ? worker_heard(at, header) : "";
  }
  if (header.type == Type::epoch && header.epoch != at.server_epoch) {
    at.server_epoch = header.epoch;
    at.unanswered = 0;
  }
  Standing& server = servers_[to.seat];
  if (header.epoch > server.epoch) {
    server = {header.epoch, 0};
  }
  if (header.type == Type::window && header.epoch == server.epoch) {
    server.job_credit = header.credit;
  }
  if (header.type == Type::data && header.epoch == at.server_epoch) {
    at.unanswered += header.length;
  }
  return "";
}

void Ledger::received(const End& to, const wire::Header& header) {
  if (to.kind == LinkKind::server && to.is_client && header.epoch == flow(to).epoch &&
      (header.type == Type::result || header.type == Type::sizes)) {
    ++flow(to).results;
  }
}

std::string Ledger::at_rest(const End& client) const {
  const auto flow = flows_.find(client.id);
  const auto server = servers_.find(client.other->seat);
  if (flow == flows_.end() || server == servers_.end() || flow->second.epoch != server->second.epoch ||
      flow->second.server_epoch != server->second.epoch) {
    return "";
  }
  JobConfig config = config_;
  config.weights = weights_.at(server->second.epoch);
  const std::uint32_t job_credit = server->second.job_credit != 0 ? server->second.job_credit : config.credit;
  const std::int64_t window = config.credit_of(client.service, job_credit);
  const std::int64_t credit = flow->second.credit;
  return credit >= window ? "" : std::to_string(window - credit) + " bytes of credit have not come back";
}

std::string Ledger::worker_sent(Flow& at, const wire::Header& header, const Bytes& owned) {
  if (header.acknowledged > at.results) {
    return "the worker acknowledges results that it does not have whole";
  }
  if (header.type == Type::group) {
    wire::GroupMembers group;
    if (wire::decode(owned, group).ok() && group.of_nodes) {
      node_groups_.insert(group.id);
    }
  } else if (header.type == Type::window) {
    window_changes_ = true;
  } else if (header.type == Type::open && owned.size() >= inline_length_at + 4) {
    worker_opens(at, header, owned);
    const bool counts = !at.reopening || !is_gather_opening(owned);
    const auto bytes = counts ? wire::get<std::uint32_t>(owned.data() + inline_length_at) : 0;
    at.inlined[header.operation] = bytes;
    at.eager += bytes;
    if (at.eager > config_.eager || bytes > config_.most_inline()) {
      return std::to_string(at.eager) + " bytes of inline data are unanswered, at most " +
             std::to_string(config_.eager) + " are allowed";
    }
  } else if (header.type == Type::drop) {
    answered(at, header.operation);
    at.failing |= at.in_flight() > 0;
  } else if (header.type == Type::fail) {
    at.failing |= at.in_flight() > 0;
  } else if (header.type == Type::data) {
    if (std::string wrong = beside(at, header); !wrong.empty()) {
      return wrong;
    }
    // One frame may always be on its way.
    const bool first = at.credit >= at.least;
    at.credit -= header.length;
    if (at.credit < 0 && !first) {
      return "DATA goes beyond the credit by " + std::to_string(-at.credit) + " bytes";
    }
    const auto place = at.order.find(header.operation);
    if (place == at.order.end() || place->second < at.last_sent) {
      return "DATA of operation " + std::to_string(header.operation) + " is out of the server's order";
    }
    at.last_sent = place->second;
  }
  return "";
}

void Ledger::worker_opens(Flow& at, const wire::Header& header, const Bytes& owned) {
  if (!node_groups_.contains(wire::get<Hash128>(owned.data() + group_at))) {
    at.of_ranks.insert(header.operation);
  }
}

std::string Ledger::beside(const Flow& at, const wire::Header& header) const {
  if (window_changes_ || at.failing || at.in_flight() <= 0 || !at.of_ranks.contains(header.operation)) {
    return "";
  }
  const std::int64_t bytes = at.in_flight() + at.eager + header.length;
  return bytes <= at.rank_window ? ""
                                 : std::to_string(bytes) + " bytes are in flight of a rank that has " +
                                       std::to_string(at.rank_window) + " of its node's window";
}

std::string Ledger::server_sent(Flow& at, const wire::Header& header) {
  at.unanswered -= header.credit;
  // A window that has grown is granted beside what answers DATA.
  return at.unanswered < at.least - at.limit ? "the server grants more than it was sent and windows can grow" : "";
}

std::string Ledger::worker_heard(Flow& at, const wire::Header& header) {
  at.credit += header.credit;
  at.failing = (at.failing || header.type == Type::fail) && at.in_flight() > 0;
  if (at.credit > at.limit) {
    return "the worker has more credit than the job allows";
  }
  // Where no ADMIT has come the first RESULT says the same.
  if (header.type == Type::admit || header.type == Type::result) {
    at.order.emplace(header.operation, at.order.size() + 1);
  }
  const bool resumes = header.type == Type::admit && (header.flags & wire::flag_resumed) != 0;
  if (resumes || header.type == Type::result || header.type == Type::fail || header.type == Type::sizes) {
    answered(at, header.operation);
  }
  return "";
}

void Ledger::answered(Flow& at, std::uint64_t operation) {
  const auto found = at.inlined.find(operation);
  if (found != at.inlined.end()) {
    at.eager -= found->second;
    at.inlined.erase(found);
  }
}

}  // namespace shoal::sim
