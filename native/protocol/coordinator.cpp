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

constexpr const char* look_at_rank = "see the last lines of that rank's output, and its machine's log";

Status refused(std::string what) { return Status::error(Code::protocol, std::move(what)); }

}  // namespace

class Coordinator::Impl {
 public:
  Impl(const JobConfig& config, Wire& world)
      : config_(config), weights_(config.weights), world_(world), members_(config.size()) {}

  void attach_node(LinkId link, std::uint32_t rank) {
    members_[rank].link = link;
    links_[link].rank = rank;
  }

  Placement on_header(LinkId link, const Header& header) {
    LinkState& from = links_.at(link);
    const bool known = header.type == Type::leave || header.type == Type::report || header.type == Type::abort;
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
    if (is_needed(rank)) {
      lose_rank(rank, Code::peer_lost,
                rank_text(rank, config_) + " is lost: its connection to " + rank_text(0, config_) + " ended (" +
                    why.message + "); " + look_at_rank);
    }
    end_if_all_gone();
  }

  void on_time(Time now) {
    now_ = now;
    while (!reports_.empty() && reports_.begin()->first <= now) {
      const Report report = reports_.begin()->second;
      reports_.erase(reports_.begin());
      const std::string text =
          " is lost: " + rank_text(report.by, config_) + " cannot reach it (" + report.loss.status.message + ")";
      if (is_needed(report.loss.index)) {
        lose_rank(report.loss.index, Code::peer_lost,
                  rank_text(report.loss.index, config_) + text + "; " + look_at_rank);
      }
    }
    end_if_all_gone();
  }

  Time deadline() const { return reports_.empty() ? never : reports_.begin()->first; }

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

  static bool is_there(const Member& member) { return !member.left && !member.lost; }

  Status hear_report(std::uint32_t by, wire::Loss loss) {
    const std::size_t count = loss.kind == wire::Loss::Kind::rank ? config_.size() : config_.servers();
    if (loss.index >= count) {
      return refused("REPORT of something that does not exist");
    }
    // One report of a thing is enough, whoever made it.
    if (!reported_.emplace(loss.kind, loss.index).second) {
      return {};
    }
    if (loss.kind == wire::Loss::Kind::server) {
      // It has no word of its own to wait for.
      lose_server(loss.index, "server " + config_.server_names[loss.index] + " is lost: " + rank_text(by, config_) +
                                  " cannot reach it (" + loss.status.message + ")");
    } else {
      reports_.emplace(now_ + report_wait, Report{by, std::move(loss)});
    }
    return {};
  }

  // A rank that has left still serves, if it holds a server, until all have left.
  bool is_needed(std::uint32_t rank) const {
    bool serves = rank == 0;
    for (std::uint32_t i = 0; i < config_.servers(); ++i) {
      serves = serves || (weights_[i] > 0 && config_.server_ranks[i] == static_cast<std::int32_t>(rank));
    }
    return !members_[rank].left || (serves && !ended_);
  }

  void lose_rank(std::uint32_t rank, Code code, std::string text) {
    if (std::exchange(members_[rank].lost, true)) {
      return;
    }
    announce({wire::Loss::Kind::rank, rank, Status::error(code, std::move(text), static_cast<std::int32_t>(rank))});
  }

  // A server goes with all of its lanes, and the others share what it averaged.
  void lose_server(std::uint32_t index, std::string text) {
    bool in_use = false;
    for (std::uint32_t i = 0; i < config_.servers(); ++i) {
      if (config_.server_ranks[i] < 0 && config_.server_names[i] == config_.server_names[index] &&
          lost_servers_.insert(i).second) {
        in_use = in_use || weights_[i] > 0;
        weights_[i] = 0;
      }
    }
    if (!in_use) {
      return;
    }
    const auto works = [](std::uint32_t weight) { return weight > 0; };
    std::string others = "The others go on with what it averaged";
    if (std::none_of(weights_.begin(), weights_.end(), works)) {
      call_up();
      others = "Ranks and servers that averaged nothing do so now";
    }
    if (std::none_of(weights_.begin(), weights_.end(), works)) {
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

  // Those who had nothing to do average now, dedicated servers before ranks.
  void call_up() {
    bool found = false;
    for (const bool dedicated : {true, false}) {
      for (std::uint32_t i = 0; i < config_.servers() && !(found && !dedicated); ++i) {
        const std::int32_t rank = config_.server_ranks[i];
        const bool there = rank < 0 ? lost_servers_.count(i) == 0 : config_.standby && is_there(members_[rank]);
        if ((rank < 0) == dedicated && there) {
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
    const wire::Epoch epoch{weights_, std::move(text)};
    for (const Member& member : members_) {
      if (member.link) {
        wire::Bytes bytes = wire::encode(epoch);
        const Header header{.type = Type::epoch, .epoch = epoch_, .length = static_cast<std::uint32_t>(bytes.size())};
        world_.send(*member.link, header, std::move(bytes), {}, 0);
      }
    }
  }

  void announce(const wire::Loss& loss) {
    for (const Member& member : members_) {
      if (member.link) {
        wire::Bytes bytes = wire::encode(loss);
        const Header header{.type = Type::lost, .length = static_cast<std::uint32_t>(bytes.size())};
        world_.send(*member.link, header, std::move(bytes), {}, 0);
      }
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
    for (const Member& member : members_) {
      if (member.link) {
        world_.send(*member.link, {.type = Type::ended}, {}, {}, 0);
      }
    }
  }

  const JobConfig config_;
  std::vector<std::uint32_t> weights_;  // at present
  std::uint32_t epoch_ = 0;
  Wire& world_;
  Time now_ = 0;
  std::vector<Member> members_;  // by rank
  std::unordered_map<LinkId, LinkState> links_;
  std::multimap<Time, Report> reports_;
  std::set<std::pair<wire::Loss::Kind, std::uint32_t>> reported_;
  std::set<std::uint32_t> lost_servers_;
  bool ended_ = false;
};

Coordinator::Coordinator(const JobConfig& config, Wire& world) : impl_(std::make_unique<Impl>(config, world)) {}
Coordinator::~Coordinator() = default;
void Coordinator::attach_node(LinkId link, std::uint32_t rank) { impl_->attach_node(link, rank); }
Placement Coordinator::on_header(LinkId link, const Header& header) { return impl_->on_header(link, header); }
Status Coordinator::on_payload(LinkId link) { return impl_->on_payload(link); }
void Coordinator::on_sent(Token /*token*/) {}
void Coordinator::on_lost(LinkId link, const Status& why) { impl_->on_lost(link, why); }
void Coordinator::on_time(Time now) { impl_->on_time(now); }
Time Coordinator::deadline() const { return impl_->deadline(); }

}  // namespace shoal
