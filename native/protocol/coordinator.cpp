#include "protocol/coordinator.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "base/limits.h"
#include "wire/bytes.h"
#include "wire/epoch.h"

namespace shoal {

using wire::Header;
using wire::Type;

namespace {

// How long a report waits for the concerned rank's own word: it may have left, or have a better reason.
constexpr Time report_wait = second / 2;

// How long after its loss, or after an attempt in vain, a server is tried again: at first, and at most.
constexpr Time first_pause = second;
constexpr Time longest_pause = 8 * second;
// How long an attempt may take. Rank 0's node and then the others may each need what a connection is given.
constexpr Time longest_attempt = 45 * second;
// One that is lost so soon after it came back has to wait twice as long as the last time, at most so long.
constexpr Time probation = 60 * second;
constexpr Time longest_penalty = 600 * second;

constexpr const char* look_at_rank = "see the last lines of that rank's output, and its machine's log";

Status refused(std::string what) { return Status::error(Code::protocol, std::move(what)); }

}  // namespace

class Coordinator::Impl {
 public:
  Impl(const JobConfig& config, CoordinatorWorld& world)
      : config_(config), weights_(config.weights), world_(world), members_(config.size()) {}

  void attach_node(LinkId link, std::uint32_t rank) {
    members_[rank].link = link;
    links_[link].rank = rank;
  }

  Placement on_header(LinkId link, const Header& header) {
    LinkState& from = links_.at(link);
    const bool known = header.type == Type::leave || header.type == Type::report || header.type == Type::abort ||
                       header.type == Type::reached;
    if (!known || header.epoch != 0) {
      return {refused(std::string(wire::name_of(header.type)) + " is not for the coordinator"), nullptr};
    }
    const std::size_t most = header.type == Type::leave ? 0 : limits::text_bytes + 16;
    if (header.length > most) {
      return {refused(std::string(wire::name_of(header.type)) + " of " + std::to_string(header.length) + " bytes"),
              nullptr};
    }
    from.header = header;
    from.payload.resize(header.length);
    return {{}, from.payload.data()};
  }

  Status on_payload(LinkId link) {
    LinkState& from = links_.at(link);
    switch (from.header.type) {
      case Type::leave:
        members_[from.rank].left = true;
        break;
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

  void on_lost(LinkId link, const Status& why) {
    const std::uint32_t rank = links_.at(link).rank;
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

  void on_time(Time now) {
    now_ = now;
    while (!reports_.empty() && reports_.begin()->first <= now) {
      const Report report = reports_.begin()->second;
      reports_.erase(reports_.begin());
      act_on(report);
    }
    for (auto& [server, away] : away_) {
      if (away.next <= now) {
        try_again(server, away);
      } else if (away.until <= now) {
        give_up(away);
      }
    }
    end_if_all_gone();
  }

  Time deadline() const {
    Time first = reports_.empty() ? never : reports_.begin()->first;
    for (const auto& [server, away] : away_) {
      first = std::min({first, away.next, away.until});
    }
    return first;
  }

 private:
  struct Member {
    std::optional<LinkId> link;
    bool left = false;
    bool lost = false;
  };
  struct LinkState {
    std::uint32_t rank = 0;
    Header header;
    wire::Bytes payload;
  };
  struct Report {
    std::uint32_t by = 0;
    wire::Loss loss;
  };

  // A dedicated server that has been lost. While it is tried, `next` is never and `reached` has the ranks that reach it
  // in this attempt: rank 0 first, then all others at once, who must find the same process.
  struct Away {
    bool lost = true;        // false: it is back
    bool ambiguous = false;  // different ranks have found different processes, which has been said
    wire::ServerId process{};
    Time next = never;
    Time until = never;  // while it is tried: when that is given up
    Time pause = first_pause;
    Time penalty = first_pause;
    Time back_since = 0;
    std::uint32_t attempt = 0;
    std::set<std::uint32_t> reached;
  };

  static bool is_there(const Member& member) { return !member.left && !member.lost; }

  Status hear_report(std::uint32_t by, wire::Loss loss) {
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
  void act_on(const Report& report) {
    const bool is_server = report.loss.kind == wire::Loss::Kind::server;
    const std::uint32_t index = report.loss.index;
    const auto rank = is_server ? static_cast<std::uint32_t>(config_.server_ranks[index]) : index;
    const std::string text =
        " is lost: " + rank_text(report.by, config_) + " cannot reach it (" + report.loss.status.message + ")";
    if (!is_server && members_[rank].left) {
      return;
    }
    if (is_server && !members_[rank].lost && (members_[rank].left || config_.weights[index] == 0)) {
      lose_server(index, "server " + config_.server_names[index] + text);
    } else {
      lose_rank(rank, Code::peer_lost, rank_text(rank, config_) + text + "; " + look_at_rank);
    }
  }

  void hear_server_report(std::uint32_t by, const wire::Loss& loss) {
    const auto away = away_.find(loss.index);
    if (away == away_.end() || !away->second.lost) {
      lose_server(loss.index, "server " + config_.server_names[loss.index] + " is lost: " + rank_text(by, config_) +
                                  " cannot reach it (" + loss.status.message + ")");
    } else if (away->second.reached.count(by) > 0) {
      give_up(away->second);  // otherwise it speaks of the link that it had before
    }
  }

  // --- Servers that come back ---

  // Only while every rank is there: a server that starts anew cannot know who has left. Rank 0's node alone tries
  // whether there is a server at all.
  void try_again(std::uint32_t server, Away& away) {
    away.next = never;
    if (!broken_ && std::all_of(members_.begin(), members_.end(), is_there)) {
      ++away.attempt;
      away.until = now_ + longest_attempt;
      away.reached.clear();
      tell_reconnect(0, server, away);
    }
  }

  void give_up(Away& away) {
    away.reached.clear();
    away.until = never;
    away.next = now_ + away.pause;
    away.pause = std::min(2 * away.pause, longest_pause);
  }

  Status hear_reached(const LinkState& from) {
    wire::Reached reached;
    if (Status status = wire::decode(from.payload, reached); !status.ok()) {
      return status;
    }
    const wire::Attempt attempt = reached.attempt;
    const auto found = away_.find(attempt.server);
    if (found == away_.end() || attempt.number > found->second.attempt) {
      return refused("REACHED of a server that was not to be tried");
    }
    Away& away = found->second;
    if (attempt.number < away.attempt || !away.lost || away.next != never) {
      return {};  // of an attempt that is over
    }
    if ((from.header.flags & wire::flag_unreachable) != 0) {
      give_up(away);
      return {};
    }
    if (from.rank == 0) {
      away.process = reached.process;
    } else if (reached.process != away.process) {
      refuse_ambiguous(attempt.server, away, from.rank);
      return {};
    }
    away.reached.insert(from.rank);
    for (std::uint32_t rank = 1; rank < config_.size() && from.rank == 0; ++rank) {
      tell_reconnect(rank, attempt.server, away);
    }
    if (away.reached.size() == config_.size() && std::all_of(members_.begin(), members_.end(), is_there)) {
      bring_back(attempt.server, away);
    }
    return {};
  }

  // Its address means several processes. Were it used, ranks would wait for each other at different ones.
  void refuse_ambiguous(std::uint32_t server, Away& away, std::uint32_t rank) {
    if (!std::exchange(away.ambiguous, true)) {
      world_.warn("server " + config_.server_names[server] + " is not used again: " + ranks_text({0, rank}, config_) +
                  " reach different processes there, so it is a balancer of load or a name with several machines: name "
                  "each server by itself in SHOAL_SERVERS. It is tried further");
    }
    give_up(away);
  }

  void tell_reconnect(std::uint32_t rank, std::uint32_t server, const Away& away) {
    tell(members_[rank], Type::reconnect, 0, wire::encode(wire::Attempt{server, away.attempt}));
  }

  void bring_back(std::uint32_t server, Away& away) {
    away.lost = away.ambiguous = false;
    away.until = never;
    away.back_since = now_;
    away.pause = first_pause;
    bool has_share = false;
    for (std::uint32_t lane : config_.lanes_of(server)) {
      lost_servers_.erase(lane);
      weights_[lane] = config_.weights[lane];
      has_share = has_share || weights_[lane] > 0;
    }
    if (!has_share) {
      return;  // it is only there again for when others are lost
    }
    // Ranks that averaged in its place do so no more.
    for (std::uint32_t i = 0; i < config_.servers(); ++i) {
      if (config_.server_ranks[i] >= 0) {
        weights_[i] = config_.weights[i];
      }
    }
    ++epoch_;
    announce_epoch("server " + config_.server_names[server] +
                   " is used again: every rank has reached it; dedicated servers left: " + dedicated_left());
  }

  // --- Losses ---

  void note_away(std::uint32_t index) {
    Away& away = away_[config_.first_lane(index)];
    const bool soon = !away.lost && now_ - away.back_since < probation;
    away.penalty = soon ? std::min(2 * away.penalty, longest_penalty) : first_pause;
    away.lost = true;
    away.reached.clear();
    away.until = never;
    away.next = now_ + away.penalty;
  }

  // A rank that has left still serves, if its server averages, until all have left.
  void lose_what_it_serves(std::uint32_t rank, const std::string& text) {
    for (std::uint32_t i = 0; i < config_.servers(); ++i) {
      if (config_.server_ranks[i] == static_cast<std::int32_t>(rank) && weights_[i] > 0) {
        return lose_server(i, "server " + config_.server_names[i] + text);
      }
    }
  }

  void lose_rank(std::uint32_t rank, Code code, std::string text) {
    if (std::exchange(members_[rank].lost, true)) {
      return;
    }
    announce({wire::Loss::Kind::rank, rank, Status::error(code, std::move(text), static_cast<std::int32_t>(rank))});
  }

  // A server goes with all of its lanes, and the others share what it averaged.
  void lose_server(std::uint32_t index, std::string text) {
    if (ended_) {
      return;
    }
    bool in_use = false;
    for (std::uint32_t lane : config_.lanes_of(index)) {
      lost_servers_.insert(lane);
      in_use = in_use || weights_[lane] > 0;
      weights_[lane] = 0;
    }
    const std::int32_t holder = config_.server_ranks[index];
    if (holder < 0) {
      note_away(index);
    }
    if (!in_use) {
      if (holder >= 0 && is_there(members_[static_cast<std::size_t>(holder)])) {
        world_.warn(text +
                    ". It averages nothing, but it will not be there if no dedicated server is left; see whether "
                    "a firewall is between them (SHOAL_PORT_RANGE says which ports are used)");
      }
      return;
    }
    const auto works = [](std::uint32_t weight) { return weight > 0; };
    std::string others = "The others go on with what it averaged";
    if (std::none_of(weights_.begin(), weights_.end(), works)) {
      call_up();
      others = "Ranks and servers that averaged nothing do so now";
    }
    if (std::none_of(weights_.begin(), weights_.end(), works)) {
      broken_ = true;
      announce({wire::Loss::Kind::server, index,
                Status::error(Code::peer_lost, text + ", and there is no other; see that server's log")});
      return;
    }
    ++epoch_;
    announce_epoch(text + "; dedicated servers left: " + dedicated_left() + ". " + others + "; see that server's log");
  }

  // "1 of 2": how many dedicated servers there are.
  std::string dedicated_left() const {
    std::set<std::string> all;
    std::set<std::string> left;
    for (std::uint32_t i = 0; i < config_.servers(); ++i) {
      if (config_.server_ranks[i] < 0) {
        all.insert(config_.server_names[i]);
        if (lost_servers_.count(i) == 0) {
          left.insert(config_.server_names[i]);
        }
      }
    }
    return std::to_string(left.size()) + " of " + std::to_string(all.size());
  }

  // Rank 0's process serves until the end of the job, any other that averages nothing may end when its rank has left.
  bool may_average(std::uint32_t server) const {
    const std::int32_t rank = config_.server_ranks[server];
    const bool has_process = rank <= 0 || is_there(members_[static_cast<std::size_t>(rank)]);
    return lost_servers_.count(server) == 0 && has_process && (rank < 0 || config_.standby);
  }

  // Those who had nothing to do average now, dedicated servers before ranks.
  void call_up() {
    for (const bool dedicated : {true, false}) {
      bool found = false;
      for (std::uint32_t i = 0; i < config_.servers(); ++i) {
        if ((config_.server_ranks[i] < 0) == dedicated && may_average(i)) {
          weights_[i] = 1;
          found = true;
        }
      }
      if (found) {
        return;
      }
    }
  }

  void announce_epoch(std::string text) {
    tell_all(Type::epoch, epoch_, wire::encode(wire::Epoch{weights_, std::move(text)}));
  }

  void announce(const wire::Loss& loss) { tell_all(Type::lost, 0, wire::encode(loss)); }

  void tell_all(Type type, std::uint32_t epoch, const wire::Bytes& bytes) {
    for (const Member& member : members_) {
      tell(member, type, epoch, bytes);
    }
  }

  void tell(const Member& member, Type type, std::uint32_t epoch, wire::Bytes bytes) {
    if (member.link) {
      const Header header{.type = type, .epoch = epoch, .length = static_cast<std::uint32_t>(bytes.size())};
      world_.send(*member.link, header, std::move(bytes), {}, 0);
    }
  }

  void end_if_all_gone() {
    for (const Member& member : members_) {
      if (is_there(member)) {
        return;
      }
    }
    if (std::exchange(ended_, true)) {
      return;
    }
    tell_all(Type::ended, 0, {});
  }

  const JobConfig config_;
  std::vector<std::uint32_t> weights_;  // at present
  std::uint32_t epoch_ = 0;
  CoordinatorWorld& world_;
  Time now_ = 0;
  std::vector<Member> members_;  // by rank
  std::unordered_map<LinkId, LinkState> links_;
  std::multimap<Time, Report> reports_;
  std::set<std::pair<wire::Loss::Kind, std::uint32_t>> reported_;  // ranks, and servers of ranks
  std::set<std::uint32_t> lost_servers_;                           // by index
  std::map<std::uint32_t, Away> away_;  // those that were ever lost, by the index of their first lane
  bool broken_ = false;                 // no server is left
  bool ended_ = false;
};

Coordinator::Coordinator(const JobConfig& config, CoordinatorWorld& world)
    : impl_(std::make_unique<Impl>(config, world)) {}
Coordinator::~Coordinator() = default;
void Coordinator::attach_node(LinkId link, std::uint32_t rank) { impl_->attach_node(link, rank); }
Placement Coordinator::on_header(LinkId link, const Header& header) { return impl_->on_header(link, header); }
Status Coordinator::on_payload(LinkId link) { return impl_->on_payload(link); }
void Coordinator::on_sent(Token /*token*/) {}
void Coordinator::on_lost(LinkId link, const Status& why) { impl_->on_lost(link, why); }
void Coordinator::on_time(Time now) { impl_->on_time(now); }
Time Coordinator::deadline() const { return impl_->deadline(); }

}  // namespace shoal
