// The job's configuration: rank 0 decides it at `init`, and every worker and server has the same
// (docs/protocol/format.md, Messages).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/limits.h"

namespace shoal {

// Who sends what the ranks of a group contribute: one rank for all ranks of its node, which have shared memory; or
// every rank for itself. Then as many flows may be on a node's link as it has ranks: where ranks are in groups of one
// rank a node, those groups work at the same time.
enum class Senders : std::uint8_t { nodes, ranks };

struct JobConfig {
  std::vector<std::string> hosts;          // by rank: the name of its machine, for messages
  std::vector<std::string> server_names;   // by server index (lanes included): where it is, for messages
  std::vector<std::int32_t> server_ranks;  // by server index: the rank whose process holds it, -1: dedicated
  std::vector<std::uint32_t> weights;      // by server index: its share of every operation
  std::uint32_t segment = 0;               // bytes, of the server with the largest weight; a multiple of the alignment
  std::uint32_t credit = 0;                // bytes per worker and that server; at least a segment
  std::uint32_t eager = 0;                 // bytes of unanswered inline data per worker and server
  std::uint32_t small = 0;                 // operations of at most so many bytes live on their home server alone
  std::uint32_t least_shard = 1;           // bytes: a larger operation has at most as many servers as leave each this
  std::uint32_t least_segment = 0;         // bytes, of the server with the largest weight: segments of short
                                           // operations shrink down to this; 0: all segments are alike
  bool ring = false;                       // all-reduces that are not small go round the ring
  std::uint64_t rate = 0;                  // bytes a second of an operation of all ranks that the links allow, as far
                                           // as known; 0: windows do not change. Dedicated servers are not told
  bool standby = false;                  // co-located servers of weight 0 have links too, and average when no other can
  std::vector<std::uint32_t> leaders{};  // by rank: the first rank of its node; empty: every rank is a node of its own
  std::uint32_t peer_timeout = 15;       // seconds of silence from a host after which it counts as lost
  std::uint32_t rank_segment = 0;        // segment and credit where each rank of a node sends for itself, since all
  std::uint32_t rank_credit = 0;         // share its link; 0: the same
  std::uint32_t lanes = 1;               // connections between a node and a server. Where there are several channels,
                                         // so many indices, one after the other, are one server
  std::uint32_t networks = 1;            // lane i runs over network i mod networks; `lanes` is a multiple of it
  std::uint32_t channels = 1;            // threads of each process among which the lanes are divided, those that run
                                         // over each network alike

  // What tables may take, in bytes (base/limits.h). Each process has its own; no other needs to know them.
  struct Tables {
    std::size_t open = limits::open_bytes;
    std::size_t names = limits::names_bytes;
    std::size_t groups = limits::groups_bytes;
    std::size_t server = limits::tables_bytes;
    std::size_t waits = limits::waits_bytes;
    std::size_t crossing = limits::crossing_bytes;
    friend bool operator==(const Tables&, const Tables&) = default;
  };
  Tables tables{};

  // A server's segment and credit are in proportion to its weight, as its shards are. So the shards of an operation end
  // together, and no link is full of one server's bytes while another server waits. (Co-located servers beside
  // dedicated ones have fewer and larger segments, but follow those.)
  struct Window {
    std::uint32_t segment = 0;
    std::uint32_t credit = 0;
  };
  Window window_of(std::size_t server, Senders senders = Senders::nodes) const;
  // The credit of that server's window for this credit of the job, which ranges from a segment to most_credit
  // (congestion_controller.h).
  std::uint32_t credit_of(std::size_t server, std::uint32_t job_credit, Senders senders = Senders::nodes) const;
  std::uint32_t segment_of(std::size_t server, Senders senders = Senders::nodes) const;
  std::uint32_t most_credit() const;
  // Segment and credit of the server with the largest weight.
  Window largest_window(Senders senders) const;
  // What may be on its way toward one rank of a group's members on other nodes, all together: what these windows allow
  // toward a server's port from all nodes, but no more than a switch keeps.
  std::uint64_t port_window(Senders senders) const;
  // Whether workers send it no larger part of its shard than they have sent to each reference server. Co-located
  // servers beside dedicated ones follow so.
  bool follows_reference(std::size_t server, Senders senders = Senders::nodes) const;
  bool is_reference(std::size_t server) const { return weights[server] == largest_weight(); }
  // The segment of an operation of so many bytes at a server with this window and shard. A small operation is not cut.
  std::uint32_t segment_for(const Window& window, std::uint64_t bytes, std::uint64_t shard_bytes,
                            Senders senders = Senders::nodes) const;
  // Whether so many bytes, which follow each other at a server, are enough for segments of that size. Fewer are a short
  // operation, whose segments are smaller.
  static bool fills_segments(std::uint32_t segment_bytes, std::uint64_t bytes);
  // How many bytes of a shard may travel with the opening: its first segment.
  std::uint32_t inline_of(std::uint64_t shard_bytes, std::uint32_t shard_segment) const;
  std::uint32_t most_inline() const { return std::max(segment, small); }

  // Servers of one name are the lanes of one server. The index of its first lane, and all of them.
  std::uint32_t first_lane(std::uint32_t server) const;
  std::vector<std::uint32_t> lanes_of(std::uint32_t server) const;

  // By rank: whether workers have links to every lane of the server in its process. They do if one lane has a weight,
  // or if all may get one.
  std::vector<bool> linked_ranks() const;

  // The channel that serves the lane with this server index: lanes 0 to networks - 1 are channel 0, as many after them
  // channel 1, and so on by turns. The lane's index there, and back.
  std::uint32_t channel_of(std::uint32_t index) const { return index % lanes / networks % channels; }
  std::uint32_t index_in_channel(std::uint32_t index) const;
  std::uint32_t index_of(std::uint32_t channel, std::uint32_t index_there) const;
  // The job as this channel's machines know it: only the servers' lanes of the channel, and one channel.
  JobConfig of_channel(std::uint32_t channel) const;
  // The weights of each channel's lanes, together.
  std::vector<std::uint32_t> channel_weights() const;

  // The node of a rank: all its ranks, ascending.
  std::vector<std::uint32_t> node_of(std::uint32_t rank) const;

  std::uint32_t size() const { return static_cast<std::uint32_t>(hosts.size()); }
  std::uint32_t servers() const { return static_cast<std::uint32_t>(weights.size()); }
  friend bool operator==(const JobConfig&, const JobConfig&) = default;

 private:
  struct Cut {
    std::uint32_t quarters;  // its segment, in quarters of the one in proportion to the weight
    std::uint32_t divisor;   // how many segments the server with the largest weight has in its credit for each one here
    std::uint32_t least;     // the largest segment is at most this many times its segment
  };
  Cut cut_of(std::size_t server, Senders senders) const;
  std::uint32_t lanes_in(std::uint32_t channel) const {
    return (lanes / networks - channel + channels - 1) / channels * networks;
  }
  std::uint32_t largest_weight() const { return *std::max_element(weights.begin(), weights.end()); }
};

// Empty if the configuration is valid, otherwise what is wrong with it.
std::string problem_with(const JobConfig& config);

// "256 MiB", for messages.
std::string bytes_text(std::size_t bytes);

// "rank 3 (host)" and "ranks 3 (a), 5 (b)", for messages. Of many ranks the first are named.
std::string rank_text(std::uint32_t rank, const JobConfig& config);
std::string ranks_text(const std::vector<std::uint32_t>& ranks, const JobConfig& config);

}  // namespace shoal
