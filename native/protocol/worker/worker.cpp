#include "protocol/worker/worker.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/invariant.h"
#include "protocol/joining.h"
#include "protocol/keys.h"
#include "protocol/worker/header_checks.h"
#include "wire/bytes.h"

namespace shoal {

using wire::Header;
using wire::Type;
using worker::Frame;
using worker::Link;

Worker::Worker(const JobConfig& config, std::uint32_t rank, WorkerWorld& world, BufferPool& pool)
    : environment_(config, rank, world, pool),
      groups_(environment_),
      links_(environment_),
      frames_(environment_, links_),
      lost_ranks_(environment_),
      goodbye_(environment_, links_, frames_),
      operations_(environment_, groups_, lost_ranks_, links_, frames_, goodbye_),
      joins_(environment_, groups_, goodbye_, frames_),
      waits_(environment_, operations_.table(), groups_, operations_.calls(), links_),
      reconnection_(environment_, links_) {}

std::uint32_t Worker::make_group(std::vector<std::uint32_t> ranks, const std::string& name) {
  std::vector<std::uint32_t> needed = ranks;
  return groups_.make(std::move(ranks), std::move(needed), name);
}

std::uint32_t Worker::make_group_of_nodes(std::vector<std::uint32_t> leaders, std::uint32_t of,
                                          const std::string& name) {
  return groups_.make_of_nodes(std::move(leaders), of, name);
}

// --- Links ---

void Worker::attach_server(LinkId link, std::uint32_t index) { links_.attach_server(link, index); }

void Worker::attach_coordinator(LinkId link) { links_.attach_coordinator(link); }

void Worker::attach_peer(LinkId link, std::uint32_t rank) {
  if (links_.attach_peer(link, rank)) {
    operations_.peer_attached(rank);
  }
}

void Worker::peer_unreachable(std::uint32_t rank, const std::string& why) { report(wire::Loss::Kind::rank, rank, why); }

void Worker::attach_returned(LinkId link, std::uint32_t index, std::uint32_t attempt, const wire::ServerId& process) {
  if (goodbye_.is_said()) {
    environment_.world().close(link);  // too late
    return;
  }
  reconnection_.attach(link, index, attempt, process);
}

void Worker::server_unreachable(std::uint32_t server, std::uint32_t attempt) {
  if (reconnection_.attempt_at(server) == attempt) {
    give_up_server(server);
  }
}

void Worker::on_lost(LinkId id, const Status& why) {
  const Link link = links_.remove(id);
  switch (link.kind) {
    case Link::Kind::server:
      if (reconnection_.attempt_at(link.index) != 0) {
        give_up_server(environment_.config().first_lane(link.index));
      } else {
        report(wire::Loss::Kind::server, link.index, why.message);
      }
      break;
    case Link::Kind::peer:
      report(wire::Loss::Kind::rank, link.index, why.message);
      lost_ranks_.await_word_of(link.index);
      break;
    case Link::Kind::coordinator:
      if (links_.coordinator().empty()) {
        lose_coordinator(why.message);
      } else if (!goodbye_.is_said() && !lost_ranks_.job_has_ended()) {
        environment_.world().warn(environment_.own_name() + ": one of its control links to " +
                                  rank_text(0, environment_.config()) + " has ended (" + why.message +
                                  "): it goes on with the others; see the network interfaces of both hosts");
      }
      break;
  }
}

// Whatever connected this worker with the server is gone: it may be another process by the time it is back, or one that
// has not heard of several epochs.
void Worker::close_server(std::uint32_t server) {
  links_.close_server(server);
  frames_.forget(server);
  operations_.close_server(server);
}

void Worker::give_up_server(std::uint32_t server) {
  for (const std::uint32_t lane : environment_.config().lanes_of(server)) {
    close_server(lane);
  }
  reconnection_.give_up(server);
}

// --- Frames ---

Placement Worker::on_header(LinkId id, const Header& header) {
  Link& link = links_.at(id);
  const std::uint32_t epoch = link.kind == Link::Kind::server ? environment_.epoch() : 0;
  Status status;
  if (header.epoch > epoch && header.type != Type::epoch) {
    status = refused("epoch " + std::to_string(header.epoch) + " has not been announced");
  } else {
    switch (link.kind) {
      case Link::Kind::server:
        status = worker::check_server_header(link.index, header, operations_.table(), environment_);
        break;
      case Link::Kind::coordinator:
        status = worker::check_coordinator_header(header, environment_.config());
        break;
      case Link::Kind::peer:
        status = operations_.check_peer_header(link.index, header);
        break;
    }
  }
  if (!status.ok()) {
    return {std::move(status), nullptr};
  }
  link.frame.header = header;
  link.frame.payload = header.length > 0 ? environment_.pool().take(header.length) : Buffer();
  return {{}, link.frame.payload.data(), &link.frame.payload};
}

Status Worker::on_payload(LinkId id) {
  Link& link = links_.at(id);
  Status status;
  switch (link.kind) {
    case Link::Kind::server:
      status = receive_from_server(link.index, link.frame);
      break;
    case Link::Kind::coordinator:
      if (links_.take_from_coordinator(id)) {
        status = receive_from_coordinator(link.frame);
      }
      break;
    case Link::Kind::peer:
      status = operations_.receive_from_peer(link.index, link.frame);
      break;
  }
  link.frame.payload = Buffer();
  return status;
}

Status Worker::receive_from_server(std::uint32_t server, Frame& frame) {
  const Header& header = frame.header;
  if (header.epoch < environment_.epoch()) {
    return {};  // its epoch may have ended while it came
  }
  if (header.type == Type::window) {
    environment_.world().compete(*links_.server(server), (header.flags & wire::flag_competing) != 0);
    return {};
  }
  if (header.type == Type::called) {
    return receive_called(frame);
  }
  return operations_.receive_from_server(server, frame);
}

// It may have joined no more when this was on its way.
Status Worker::receive_called(const Frame& frame) {
  wire::Opening opening;
  if (Status status = wire::decode_called(frame.bytes(), opening); !status.ok()) {
    return status;
  }
  const worker::Group* const group = groups_.find(opening.group);
  const Hash128& keys = group == nullptr ? opening.group : group->keys;
  if (opening.key != operation_key(keys, opening.name, opening.occurrence)) {
    return refused("CALLED of '" + opening.name + "' with another key");
  }
  const std::optional<worker::Joins::Joined> joined = joins_.find(opening.group);
  const wire::Call call{opening.group, opening.occurrence, opening.name};
  if (!joined || !is_told(opening) || operations_.calls().has_called(call)) {
    return {};
  }
  if (joined->as != joined->group) {
    opening.divisor = 0;  // that of the leaders' sums
  }
  note_others_go_on(joined->as);
  note_others_go_on(joined->group);
  environment_.world().called(joined->as, opening);
  return {};
}

Status Worker::receive_from_coordinator(const Frame& frame) {
  switch (frame.header.type) {
    case Type::ended:
      if (!goodbye_.end()) {
        return refused("ENDED a second time");
      }
      environment_.world().ended();
      return {};
    case Type::epoch:
      return receive_epoch(frame);
    case Type::reconnect:
      return receive_reconnect(frame);
    case Type::probe:
      return waits_.receive_probe(frame);
    case Type::circle:
      return receive_circle(frame);
    case Type::gone:
      return receive_gone(frame);
    default:
      return receive_loss(frame);
  }
}

Status Worker::receive_gone(const Frame& frame) {
  const auto rank = frame.bytes().size() == sizeof(std::uint32_t) ? wire::get<std::uint32_t>(frame.bytes().data())
                                                                  : environment_.config().size();
  if (rank >= environment_.config().size() || rank == environment_.rank()) {
    return refused("GONE of a rank that does not exist, or is this one");
  }
  environment_.world().gone(rank);
  return {};
}

Status Worker::receive_loss(const Frame& frame) {
  wire::Loss loss;
  if (Status status = wire::decode(frame.bytes(), loss); !status.ok()) {
    return status;
  }
  if (loss.kind == wire::Loss::Kind::server) {
    end_job(loss.status);
  } else if (loss.index < environment_.config().size()) {
    lose_rank(loss.index, loss.status);
  }
  return {};
}

Status Worker::receive_circle(const Frame& frame) {
  std::map<std::uint64_t, Status> failed;
  if (Status status = waits_.receive_circle(frame, failed); !status.ok()) {
    return status;
  }
  for (const auto& [number, why] : failed) {
    operations_.give_up(number, why);
  }
  return {};
}

Status Worker::receive_reconnect(const Frame& frame) {
  wire::Attempt attempt;
  if (Status status = reconnection_.decode(frame, attempt); !status.ok() || goodbye_.is_said()) {
    return status;
  }
  for (const std::uint32_t lane : environment_.config().lanes_of(attempt.server)) {
    close_server(lane);
  }
  reconnection_.begin(attempt);
  return {};
}

// --- Epochs ---

Status Worker::receive_epoch(const Frame& frame) {
  const std::uint32_t number = frame.header.epoch;
  const std::uint32_t present = environment_.epoch();
  wire::Epoch epoch;
  if (Status status = wire::decode(frame.bytes(), epoch); !status.ok()) {
    return status;
  }
  if (epoch.text.empty()) {
    return refused("EPOCH " + std::to_string(number) + ", which does not say why");
  }
  if (number <= present || epoch.weights.size() != environment_.config().servers() ||
      std::accumulate(epoch.weights.begin(), epoch.weights.end(), std::uint64_t{0}) == 0) {
    return refused("EPOCH " + std::to_string(number) + ", which cannot follow epoch " + std::to_string(present));
  }
  if (environment_.rank() == 0) {
    environment_.world().warn(epoch.text);
  }
  const std::vector<std::uint64_t> numbers = operations_.suspend();
  begin_epoch(number, epoch.weights);
  if (goodbye_.is_said()) {
    frames_.fall_silent();
    return {};
  }
  epoch.text.clear();
  tell_servers(0, wire::encode(epoch));
  operations_.reopen(numbers);
  tell_servers(wire::flag_reopened, {});
  joins_.tell_again();
  operations_.tell_window_again();
  return {};
}

void Worker::begin_epoch(std::uint32_t number, const std::vector<std::uint32_t>& weights) {
  const JobConfig& config = environment_.config();
  for (std::uint32_t server = 0; server < config.servers(); ++server) {
    // Co-located servers that are not needed any more may be needed again.
    if (weights[server] == 0 && config.weights[server] > 0 && config.server_ranks[server] < 0) {
      close_server(server);
    }
  }
  environment_.begin_epoch(number, weights);
  for (std::uint32_t server = 0; server < config.servers(); ++server) {
    frames_.restart(server);
    operations_.restart_server(server);
  }
}

// Also servers without a share: they may have had one, and have to forget its operations.
void Worker::tell_servers(std::uint8_t flags, const wire::Bytes& epoch) {
  for (std::uint32_t server = 0; server < environment_.config().servers(); ++server) {
    frames_.send(server, {.type = Type::epoch, .flags = flags}, epoch);
  }
}

// --- Losses ---

// Tells the coordinator, who decides. Not after goodbye: links may end then.
void Worker::report(wire::Loss::Kind kind, std::uint32_t index, const std::string& why) const {
  wire::Loss loss;
  loss.kind = kind;
  loss.index = index;
  loss.status = Status::error(Code::peer_lost, why);
  links_.tell_coordinator(Type::report, wire::encode(loss));
}

void Worker::lose_rank(std::uint32_t rank, const Status& why) {
  lost_ranks_.add_rank(rank, why);
  if (rank == environment_.rank() || holds_server(rank)) {
    end_job(why);
  } else {
    operations_.end_needing(rank, why);
  }
}

void Worker::lose_coordinator(const std::string& why) {
  if (!goodbye_.is_said()) {
    const Status* known = lost_ranks_.of_rank(0);  // and said why
    end_job(known != nullptr ? Status(*known)
                             : Status::error(Code::peer_lost,
                                             rank_text(0, environment_.config()) +
                                                 " is lost, and with it the job: its connection to " +
                                                 environment_.own_name() + " ended (" + why + ")",
                                             0));
  }
  if (goodbye_.end()) {
    environment_.world().ended();
  }
}

void Worker::end_job(const Status& why) {
  lost_ranks_.end_job(why);
  operations_.end_all(why);
}

bool Worker::holds_server(std::uint32_t rank) const {
  const JobConfig& config = environment_.config();
  for (std::uint32_t server = 0; server < config.servers(); ++server) {
    if (config.weights[server] > 0 && config.server_ranks[server] == static_cast<std::int32_t>(rank)) {
      return true;
    }
  }
  return false;
}

bool Worker::serves() const { return holds_server(environment_.rank()); }

void Worker::abort(const std::string& reason) {
  const std::string text = wire::cut(reason);
  goodbye_.abort(text);
  end_job(Status::error(Code::aborted, "this rank ends with an error: " + text, environment_.own_rank()));
}

void Worker::end(const Status& why) {
  if (!lost_ranks_.job_has_ended()) {
    goodbye_.abort(wire::cut(why.message));
    end_job(why);
  }
}

// --- The driver ---

void Worker::on_sent(Token token) {
  if (token == worker::Goodbye::token) {
    goodbye_.count_sent();
  } else {
    operations_.sent(token);
  }
}

Time Worker::deadline() const {
  return std::min(
      {waits_.deadline(), operations_.deadline(), frames_.deadline(), goodbye_.deadline(), lost_ranks_.deadline()});
}

void Worker::on_time(Time now) {
  environment_.set_now(now);
  operations_.on_time();
  while (const std::optional<std::uint32_t> rank = lost_ranks_.take_due()) {
    if (operations_.fail_lacking(*rank)) {
      lost_ranks_.await_word_of(*rank);  // the home may be lost before it hears of it
    }
  }
  if (frames_.deadline() <= now) {
    frames_.acknowledge(now - worker::ServerFrames::acknowledge_after);
  }
  if (waits_.deadline() <= now) {
    const bool is_over = links_.coordinator().empty() || goodbye_.is_said() || lost_ranks_.job_has_ended();
    if (is_over) {
      waits_.stop();
    } else {
      waits_.look();
    }
  }
  if (goodbye_.take_due()) {
    operations_.forget_finished();
  }
}

void Worker::check_invariants() const {
  environment_.check_invariants();
  groups_.check_invariants();
  links_.check_invariants();
  frames_.check_invariants();
  lost_ranks_.check_invariants();
  goodbye_.check_invariants();
  operations_.check_invariants();
  joins_.check_invariants();
  waits_.check_invariants();
  reconnection_.check_invariants();
}

}  // namespace shoal
