// The coordinator's parts: coordinator.cpp turns frames into decisions about ranks, servers.cpp decides
// about servers. Who averages how much is reckoned in active_weights.h, how a lost one comes back in reconnection.h,
// who waits for whom in circles.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "protocol/coordinator/active_weights.h"
#include "protocol/coordinator/circles.h"
#include "protocol/coordinator/coordinator.h"
#include "protocol/coordinator/reconnection.h"
#include "wire/opening.h"

namespace shoal {

class Coordinator::Impl {
 public:
  Impl(const JobConfig& config, CoordinatorWorld& world);

  void attach_worker(LinkId link, std::uint32_t rank);
  Placement on_header(LinkId link, const wire::Header& header);
  Status on_payload(LinkId link);
  void on_lost(LinkId link, const Status& why);
  void on_time(Time now);
  Time deadline() const;

 private:
  struct Member {
    std::optional<LinkId> link;
    bool left = false;
    bool lost = false;
  };
  struct LinkState {
    std::uint32_t rank = 0;
    wire::Header header;
    wire::Bytes payload;
    std::size_t arriving = 0;  // bytes of it that are counted, until it has come
  };
  struct Report {
    std::uint32_t by = 0;
    wire::Loss loss;
  };

  // Ranks (coordinator.cpp).
  bool is_there(std::uint32_t rank) const { return !members_[rank].left && !members_[rank].lost; }
  bool all_are_there() const;
  Status hear_report(std::uint32_t by, wire::Loss loss);
  void act_on(const Report& report);
  void lose_rank(std::uint32_t rank, Code code, std::string text);
  void end_if_all_gone();
  // Where a WAITS or CALLS goes, and what has come: nothing if there was no room for it.
  std::byte* place_counted(LinkState& from);
  std::optional<wire::Bytes> take_counted(LinkState& from);
  Status hear_waits(LinkState& from);
  Status hear_calls(LinkState& from);
  void say_that_there_is_no_room();
  void say(Circles::Messages messages);
  // " is lost: rank 1 (b) cannot reach it (...)".
  std::string cannot_reach(std::uint32_t by, const wire::Loss& loss) const;
  void announce(const wire::Loss& loss);
  void tell_all(wire::Type type, std::uint32_t epoch, const wire::Bytes& bytes);
  void tell(const Member& member, wire::Type type, std::uint32_t epoch, wire::Bytes bytes);

  // Servers (servers.cpp).
  void hear_server_report(std::uint32_t by, const wire::Loss& loss);
  void lose_what_it_serves(std::uint32_t rank, const std::string& text);
  void lose_server(std::uint32_t index, const std::string& text);
  void go_on_without(std::uint32_t index, const std::string& text);
  bool decide_shares();
  void announce_epoch(std::string text);
  void try_again(std::uint32_t server, Reconnection& reconnection);
  Status hear_reached(const LinkState& from);
  void ask_to_reach(std::uint32_t rank, std::uint32_t server, const Reconnection& reconnection);
  void say_ambiguous(std::uint32_t server, std::uint32_t rank);
  void bring_back(std::uint32_t server, Reconnection& reconnection);

  const JobConfig config_;
  const Time probation_;
  CoordinatorWorld& world_;
  ActiveWeights active_weights_{config_};
  Circles circles_{config_};
  std::uint32_t epoch_ = 0;
  Time now_ = 0;
  std::vector<Member> members_;  // by rank
  std::unordered_map<LinkId, LinkState> links_;
  std::size_t arriving_ = 0;  // bytes of all links: of WAITS and CALLS for which there is room
  wire::Bytes unread_;        // where the payloads of others go, of all links
  bool no_room_said_ = false;
  std::multimap<Time, Report> reports_;
  std::set<std::pair<wire::Loss::Kind, std::uint32_t>> reported_;  // ranks, and servers of ranks
  std::map<std::uint32_t, Reconnection>
      reconnections_;    // of servers that were ever lost, by the index of their first lane
  bool broken_ = false;  // no server is left
  bool ended_ = false;
};

}  // namespace shoal
