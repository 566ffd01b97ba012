#include "protocol/worker/sender.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/invariant.h"
#include "protocol/collectives.h"
#include "protocol/keys.h"
#include "protocol/sharding.h"

namespace shoal::worker {

using wire::Header;
using wire::Type;

Sender::Sender(const Environment& environment, const OperationTable& operations, ServerFrames& frames)
    : environment_(environment), operations_(operations), frames_(frames), servers_(environment.config().servers()) {
  for (std::uint32_t server = 0; server < servers_.size(); ++server) {
    restart(server);
  }
}

void Sender::restart(std::uint32_t server) {
  const JobConfig& config = environment_.config();
  Server begun;
  begun.nodes = {config.window_of(server), config.follows_reference(server)};
  begun.ranks = {config.window_of(server, Senders::ranks), config.follows_reference(server, Senders::ranks)};
  begun.credit = begun.nodes.window.credit;
  begun.most_credit = config.credit_of(server, config.most_credit());
  begun.is_reference = config.is_reference(server);
  servers_[server] = std::move(begun);
}

// --- Openings ---

void Sender::plan(Operation& operation) const {
  const JobConfig& config = environment_.config();
  const std::uint32_t home = home_of(operation.opening().key, config);
  const Senders senders = operation.group().senders;
  std::vector<Part> parts;
  const auto add = [&](std::uint32_t server, Range shard) {
    const JobConfig::Window& window = servers_[server].sizes(senders).window;
    const std::uint32_t segment = config.segment_for(window, operation.bytes(), shard.size(), senders);
    parts.emplace_back(server, shard, segment, operation.contributes()).set_reference(servers_[server].is_reference);
  };
  if (!operation.needs_admission() || operation.opening().failed) {
    add(home, {0, operation.bytes()});
  } else {
    const std::vector<Share> shares = shares_of(operation.bytes(), home, config);
    parts.reserve(shares.size());
    for (const Share& share : shares) {
      add(share.server, share.shard);
    }
    follow_reference(operation, parts);
  }
  operation.plan(home, std::move(parts));
}

// In a short operation, following a reference server only adds latency.
void Sender::follow_reference(const Operation& operation, std::vector<Part>& parts) const {
  const bool is_short = std::any_of(parts.begin(), parts.end(), [&](const Part& part) {
    return part.is_reference() && has_smaller_segments(operation, part);
  });
  for (Part& part : parts) {
    // Multiples of the golden ratio are spread evenly, however servers and ranks are numbered.
    constexpr double golden_ratio = 0.6180339887498949;
    double whole = 0;
    const double fraction = std::modf(golden_ratio * (part.server() + environment_.rank()), &whole);
    part.follow_reference(servers_[part.server()].sizes(operation.group().senders).follows_reference && !is_short,
                          static_cast<std::uint32_t>(fraction * part.segment()));
  }
}

void Sender::open(Operation& operation, bool again) {
  // Workers visit servers in an order rotated by their rank.
  std::vector<Part>& parts = operation.parts();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Part& part = parts[(i + environment_.rank()) % parts.size()];
    frames_.announce(part.server(), operation.submission().group, operation.group());
    const Range taken = take_inline(operation, part, again);
    operation.opening().inline_bytes = static_cast<std::uint32_t>(taken.size());
    send_contribution(operation, part, {.type = Type::open, .operation = operation.number()},
                      wire::encode(operation.opening()), taken);
  }
}

// The bytes that travel with the opening, which count from now on.
Range Sender::take_inline(Operation& operation, Part& part, bool again) {
  const bool may_travel = operation.needs_admission() || (operation.is_small() && !operation.submission().streamed);
  if (operation.opening().failed || !operation.contributes() || !may_travel) {
    return {};
  }
  if (again && operation.gathers()) {
    // Opened again, a gather's inline bytes go through the home once more, outside credit and eager bytes.
    const bool wanted = operation.is_small() && operation.opening().exchange == 0;
    return {0, wanted ? operation.bytes() : 0};
  }
  const JobConfig& config = environment_.config();
  Server& server = servers_[part.server()];
  const Range& shard = part.shard();
  const std::uint32_t bytes = config.inline_of(shard.size(), part.segment());
  if (!operation.has_contribution({shard.begin, shard.begin + bytes})) {
    return {};
  }
  const bool answered_before = operation.opening().finished || operation.has_answers();
  if (answered_before || bytes == 0 || server.eager + bytes > config.eager) {
    return {};
  }
  // Sending a part of a shard early saves one round trip. Behind other operations there is none to save.
  if (bytes < shard.size() && (server.unanswered > 0 || server.eager > 0)) {
    return {};
  }
  part.send_inline(bytes);
  server.eager += bytes;
  note_sending(operation);
  return {shard.begin, shard.begin + bytes};
}

// --- Segments ---

void Sender::admit(Operation& operation, Part& part, bool full) {
  part.admit();
  servers_[part.server()].admitted.push_back(operation.number());
  if (full) {
    lengthen(operation, part);
  }
}

// Others' second segments do not wait any longer for one here.
void Sender::lengthen(Operation& operation, Part& part) {
  part.lengthen(servers_[part.server()].sizes(operation.group().senders).window.segment);
  follow_reference(operation, operation.parts());
  for (const Part& other : operation.parts()) {
    if (other.server() != part.server() && has_smaller_segments(operation, other)) {
      send_on(other.server());
    }
  }
}

bool Sender::may_be_full(const Operation& operation, const Part& part) const {
  return traits_of(operation.opening().collective).all_give() && part.has_sent_nothing() &&
         has_smaller_segments(operation, part);
}

// While DATA is unanswered, inline bytes count against the window too, so that no more than a window is in flight.
// Otherwise credit for one segment suffices, so that operations that wait for their last member hold nothing up.
bool Sender::Server::may_send(std::uint64_t length, Senders senders) const {
  const auto least = static_cast<std::int64_t>(std::min<std::uint64_t>(length, nodes.window.segment));
  return credit >= least && (unanswered == 0 || unanswered + eager + length <= window(senders));
}

// A rank that sends for itself keeps to its part of its node's window.
std::uint64_t Sender::Server::window(Senders senders) const {
  const auto granted = static_cast<std::uint64_t>(std::max<std::int64_t>(credit, 0)) + unanswered;
  return granted * sizes(senders).window.credit / nodes.window.credit;
}

// At most as many smaller segments are in flight as full ones would fit. A second one waits until every server that is
// owed more has been sent as many: a burst on one link would keep the worker's wire from the others.
bool Sender::has_enough_on_its_way(const Operation& operation, const Part& part, std::uint64_t length) const {
  const Server& server = servers_[part.server()];
  if (!has_smaller_segments(operation, part) || part.on_its_way() == 0) {
    return false;
  }
  const Senders senders = operation.group().senders;
  const std::uint64_t segments =
      std::max<std::uint64_t>(server.window(senders) / server.sizes(senders).window.segment, 1);
  return part.on_its_way() + length > segments * part.segment() ||
         part.segments_sent() > operation.least_segments_sent();
}

bool Sender::has_smaller_segments(const Operation& operation, const Part& part) const {
  return part.segment() < servers_[part.server()].sizes(operation.group().senders).window.segment;
}

void Sender::send_on(std::uint32_t server) {
  Server& to = servers_[server];
  while (!to.admitted.empty()) {
    // One that has failed sends nothing more: its arrays are not the worker's any longer.
    Operation* operation = operations_.find_going_on(to.admitted.front());
    if (operation == nullptr || operation->part_of(server).all_sent()) {
      to.admitted.pop_front();
      continue;
    }
    Part& part = operation->part_of(server);
    const Cursor at = part.next_to_send();
    const Range segment = part.segment_at(at);
    const std::uint64_t length = segment.size();
    if (!operation->has_contribution(segment) || !to.may_send(length, operation->group().senders) ||
        !operation->in_step(part) || has_enough_on_its_way(*operation, part, length)) {
      return;
    }
    const bool is_short = has_smaller_segments(*operation, part);
    const std::uint64_t least_sent = is_short ? operation->least_segments_sent() : 0;
    const bool is_followed = part.is_reference() && operation->follows_reference();
    const double step = is_followed ? operation->reference_fraction() : 1;
    send_segment(*operation, part, at, segment);
    // Others' next ones may have waited for this one.
    const bool least_rose = is_short && operation->least_segments_sent() > least_sent;
    const bool step_rose = is_followed && operation->reference_fraction() > step;
    for (const Part& other : operation->parts()) {
      if (least_rose || (step_rose && other.follows_reference())) {
        send_on(other.server());
      }
    }
  }
}

void Sender::send_segment(Operation& operation, Part& part, const Cursor& at, Range segment) {
  Server& to = servers_[part.server()];
  to.credit -= static_cast<std::int64_t>(segment.size());
  to.unanswered += segment.size();
  part.send(at, segment);
  const Header header{.type = Type::data,
                      .dtype = operation.opening().wire_dtype(),
                      .operation = operation.number(),
                      .offset = segment.begin};
  note_sending(operation);
  send_contribution(operation, part, header, {}, segment);
}

// After what is `owned`. Bytes that are borrowed from an array are counted until they have left.
void Sender::send_contribution(Operation& operation, const Part& part, const Header& header, wire::Bytes owned,
                               Range segment) {
  std::span<const std::byte> data;
  if (!segment.empty()) {
    data = operation.contribution(segment, owned);
  }
  const bool sent = frames_.send(part.server(), header, std::move(owned), data, data.empty() ? 0 : operation.number());
  if (sent && !data.empty()) {
    operation.count_unsent();
  }
}

void Sender::send_followers(const Operation& operation, std::uint32_t server) {
  for (const Part& part : operation.parts()) {
    if (part.follows_reference() && part.server() != server) {
      send_on(part.server());
    }
  }
}

void Sender::note_sending(Operation& operation) const {
  if (operation.begins_to_send()) {
    environment_.world().sending(operation.handle());
  }
}

// --- Answers ---

bool Sender::add_credit(std::uint32_t server, std::uint32_t bytes) {
  Server& from = servers_[server];
  if (from.credit + std::int64_t{bytes} > from.most_credit) {
    return false;
  }
  from.credit += bytes;
  return true;
}

Range Sender::answered(Operation& operation, Part& part) {
  if (operation.gathers()) {
    answered_inline(part);
    return part.next_answer();
  }
  const Part::Answered answered = part.answer_next();
  servers_[part.server()].unanswered -= answered.bytes;
  answered_inline(part);
  return answered.segment;
}

void Sender::answered_inline(Part& part) { servers_[part.server()].eager -= part.answer_inline(); }

void Sender::answered_all(Part& part) {
  servers_[part.server()].unanswered -= part.answer_all();
  answered_inline(part);
}

void Sender::check_invariants() const {
  std::vector<std::uint64_t> eager(servers_.size());
  std::vector<std::uint64_t> unanswered(servers_.size());
  operations_.visit_all([&](const Operation& operation) {
    for (const Part& part : operation.parts()) {
      eager[part.server()] += part.eager();
      unanswered[part.server()] += part.unanswered();
    }
  });
  for (std::size_t server = 0; server < servers_.size(); ++server) {
    SHOAL_INVARIANT(servers_[server].credit <= servers_[server].most_credit);
    SHOAL_INVARIANT(servers_[server].eager == eager[server]);
    SHOAL_INVARIANT(servers_[server].unanswered == unanswered[server]);
    for (const std::uint64_t number : servers_[server].admitted) {
      SHOAL_INVARIANT(operations_.was_given(number));
    }
  }
}

}  // namespace shoal::worker
