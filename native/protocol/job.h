// What the coordinator decided at `init`, equal on every worker and server (docs/protocol/format.md, Messages).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/limits.h"

namespace shoal {

struct JobConfig {
  std::vector<std::string> hosts;          // by rank: the name of its machine, for messages
  std::vector<std::string> server_names;   // by server index (lanes included): where it is, for messages
  std::vector<std::int32_t> server_ranks;  // by server index: the rank whose process holds it, -1: dedicated
  std::vector<std::uint32_t> weights;      // by server index: its share of every operation
  std::uint32_t segment = 0;               // bytes, of the server with the largest weight; a multiple of the alignment
  std::uint32_t credit = 0;                // bytes per worker and that server; at least a segment
  std::uint32_t eager = 0;                 // bytes of unanswered inline data per worker and server
  std::uint32_t small = 0;                 // operations of at most so many bytes live on their home server alone
  std::uint32_t least_shard = 1;           // bytes: larger ones have no more servers than leave each so many
  std::uint32_t least_segment = 0;         // bytes, of the server with the largest weight: short operations have
                                           // segments down to this; 0: all have the same
  bool ring = false;                       // all-reduces that are not small go round the ring
  std::uint64_t rate = 0;                  // bytes a second of an operation of all ranks that the links allow, as far
                                           // as known; 0: windows stay as they are. Not at dedicated servers
  bool standby = false;                  // co-located servers of weight 0 have links too, and average when no other can
  std::vector<std::uint32_t> leaders{};  // by rank: the first rank of its node; empty: every rank is a node of its own
  std::uint32_t peer_timeout = 15;       // seconds of silence from a host after which it counts as lost

  // What tables may take, in bytes (base/limits.h): each process's own, of which no other needs to know.
  struct Tables {
    std::size_t open = limits::open_bytes;
    std::size_t names = limits::names_bytes;
    std::size_t groups = limits::groups_bytes;
    std::size_t server = limits::tables_bytes;
    std::size_t waits = limits::waits_bytes;
    friend bool operator==(const Tables&, const Tables&) = default;
  };
  Tables tables{};

  // What one server averages in proportion to its weight, it also moves in pieces of that proportion, so that the parts
  // of an operation end together and no link is full of one server's bytes while another server waits. (Workers' own
  // servers beside dedicated ones: in fewer and larger pieces, but in step with those.)
  struct Window {
    std::uint32_t segment = 0;
    std::uint32_t credit = 0;
  };
  Window window_of(std::size_t server) const;
  // The credit of that server's window when the job's credit is this one: from a segment to most_credit
  // (congestion_controller.h).
  std::uint32_t credit_of(std::size_t server, std::uint32_t job_credit) const;
  std::uint32_t segment_of(std::size_t server) const;
  std::uint32_t most_credit() const;
  // Whether no worker sends it a larger part of its shard than it has sent to each reference server: so it is
  // with workers' own servers beside dedicated ones.
  bool follows_reference(std::size_t server) const;
  bool is_reference(std::size_t server) const { return weights[server] == largest_weight(); }
  // How an operation of so many bytes is cut by a server with that window that has this shard of it. A small one is not
  // cut.
  std::uint32_t segment_for(const Window& window, std::uint64_t bytes, std::uint64_t shard_bytes) const;
  // What of a shard of such segments may travel with the opening: the first segment.
  std::uint32_t inline_of(std::uint64_t shard_bytes, std::uint32_t shard_segment) const;
  std::uint32_t most_inline() const { return std::max(segment, small); }

  // The servers of one name are the lanes of one server: the index of its first, and all of them.
  std::uint32_t first_lane(std::uint32_t server) const;
  std::vector<std::uint32_t> lanes_of(std::uint32_t server) const;

  // The node of a rank: all its ranks, ascending.
  std::vector<std::uint32_t> node_of(std::uint32_t rank) const;

  std::uint32_t size() const { return static_cast<std::uint32_t>(hosts.size()); }
  std::uint32_t servers() const { return static_cast<std::uint32_t>(weights.size()); }
  friend bool operator==(const JobConfig&, const JobConfig&) = default;

 private:
  struct Cut {
    std::uint32_t quarters;  // of the segment that is in proportion to the weight
    std::uint32_t divisor;   // segments of the credit at the server with the largest weight, for one here
    std::uint32_t least;     // no segment is smaller than the largest by this
  };
  Cut cut_of(std::size_t server) const;
  std::uint32_t largest_weight() const { return *std::max_element(weights.begin(), weights.end()); }
};

// Empty if the configuration can be worked with, otherwise what is wrong with it.
std::string problem_with(const JobConfig& config);

// "256 MiB", for messages.
std::string bytes_text(std::size_t bytes);

// "rank 3 (host)" and "ranks 3 (a), 5 (b)", for messages. Of many ranks the first are named.
std::string rank_text(std::uint32_t rank, const JobConfig& config);
std::string ranks_text(const std::vector<std::uint32_t>& ranks, const JobConfig& config);

}  // namespace shoal
