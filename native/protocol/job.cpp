#include "protocol/job.h"

#include <algorithm>
#include <numeric>

#include "base/limits.h"

namespace shoal {

namespace {

// Of a shard: with fewer, most of an operation's time goes by before the first results are there.
constexpr std::uint64_t wanted_segments = 16;

// src/shoal/tuning/limits.py, rule 1.
constexpr std::uint64_t most_toward_a_port = std::uint64_t{4} * 1024 * 1024;

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + limits::shard_alignment - 1) / limits::shard_alignment * limits::shard_alignment;
}

}  // namespace

JobConfig::Window JobConfig::largest_window(Senders senders) const {
  const bool shared = senders == Senders::ranks && rank_segment > 0;
  return shared ? Window{rank_segment, rank_credit} : Window{segment, credit};
}

std::uint64_t JobConfig::port_window(Senders senders) const {
  std::uint64_t nodes = leaders.empty() ? size() : 0;
  for (std::uint32_t rank = 0; rank < leaders.size(); ++rank) {
    nodes += leaders[rank] == rank ? 1 : 0;
  }
  // Blocks go by one connection, whatever channel has it.
  const std::uint64_t flows = std::max<std::uint64_t>(lanes, lanes_of(0).size());
  const std::uint64_t of_all = largest_window(senders).credit * nodes * flows;
  return std::max<std::uint64_t>(largest_window(senders).credit, std::min(of_all, most_toward_a_port));
}

JobConfig::Window JobConfig::window_of(std::size_t server, Senders senders) const {
  return {segment_of(server, senders), credit_of(server, largest_window(senders).credit, senders)};
}

std::uint32_t JobConfig::segment_of(std::size_t server, Senders senders) const {
  const Cut cut = cut_of(server, senders);
  const std::uint32_t largest = largest_window(senders).segment;
  const std::uint64_t four_of_largest = std::uint64_t{4} * largest_weight();
  const std::uint64_t wanted =
      (std::uint64_t{largest} * weights[server] * cut.quarters + four_of_largest - 1) / four_of_largest;
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
      aligned(std::max<std::uint64_t>(wanted, largest / cut.least)), limits::shard_alignment, largest));
}

std::uint32_t JobConfig::credit_of(std::size_t server, std::uint32_t job_credit, Senders senders) const {
  const std::uint64_t least = segment_of(server, senders);
  const std::uint64_t largest = largest_window(senders).segment;
  const std::uint64_t in_proportion = least * job_credit / (largest * cut_of(server, senders).divisor);
  return static_cast<std::uint32_t>(std::max(least, in_proportion));
}

bool JobConfig::follows_reference(std::size_t server, Senders senders) const {
  // A reference server waits for nobody. If servers waited for each other, workers could wait for each other's next
  // segments.
  const Window window = largest_window(senders);
  if (server_ranks[server] < 0 || is_reference(server) || window.credit < 2 * window.segment) {
    return false;
  }
  const std::uint32_t largest = largest_weight();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (server_ranks[i] < 0 && weights[i] == largest) {
      return true;
    }
  }
  return false;
}

// Bytes on their way to co-located servers fill the links through which results of dedicated servers come. So where
// dedicated servers are the largest and windows hold more than a segment, co-located servers have three quarters of
// what their weights would give: one segment where two would be small. A segment below half of the largest costs more
// processor time than a common end is worth. But only servers that follow the reference may have more than their weight
// gives, since others would run ahead. docs/decisions/followers.md.
JobConfig::Cut JobConfig::cut_of(std::size_t server, Senders senders) const {
  if (!follows_reference(server, senders)) {
    return {4, 1, 16};
  }
  return 9 * std::uint64_t{weights[server]} > 4 * std::uint64_t{largest_weight()} ? Cut{3, 1, 2} : Cut{6, 2, 2};
}

std::uint32_t JobConfig::most_credit() const {
  return std::max({credit, 2 * segment, static_cast<std::uint32_t>(limits::port_bytes / size())});
}

std::uint32_t JobConfig::segment_for(const Window& window, std::uint64_t bytes, std::uint64_t shard_bytes,
                                     Senders senders) const {
  if (bytes <= small) {
    return std::max(small, window.segment);
  }
  if (least_segment == 0) {
    return window.segment;
  }
  const std::uint64_t least = aligned(std::uint64_t{window.segment} * least_segment / largest_window(senders).segment);
  const std::uint64_t wanted = aligned((shard_bytes + wanted_segments - 1) / wanted_segments);
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(std::max(least, wanted), window.segment));
}

bool JobConfig::fills_segments(std::uint32_t segment_bytes, std::uint64_t bytes) {
  return bytes > std::uint64_t{segment_bytes} * (wanted_segments - 1);
}

std::uint32_t JobConfig::inline_of(std::uint64_t shard_bytes, std::uint32_t shard_segment) const {
  const std::uint64_t first = std::min<std::uint64_t>(shard_bytes, shard_segment);
  return first <= limits::inline_bytes ? static_cast<std::uint32_t>(first) : 0;
}

std::uint32_t JobConfig::first_lane(std::uint32_t server) const { return lanes_of(server).front(); }

std::vector<std::uint32_t> JobConfig::lanes_of(std::uint32_t server) const {
  std::vector<std::uint32_t> found;
  for (std::uint32_t i = 0; i < servers(); ++i) {
    if (server_ranks[i] == server_ranks[server] && server_names[i] == server_names[server]) {
      found.push_back(i);
    }
  }
  return found;
}

std::vector<bool> JobConfig::linked_ranks() const {
  std::vector<bool> linked(hosts.size(), standby);
  for (std::uint32_t i = 0; i < servers(); ++i) {
    if (weights[i] > 0 && server_ranks[i] >= 0) {
      linked[static_cast<std::size_t>(server_ranks[i])] = true;
    }
  }
  return linked;
}

std::uint32_t JobConfig::index_in_channel(std::uint32_t index) const {
  const std::uint32_t lane = index % lanes;
  const std::uint32_t row = lane / networks;
  return index / lanes * lanes_in(row % channels) + row / channels * networks + lane % networks;
}

std::uint32_t JobConfig::index_of(std::uint32_t channel, std::uint32_t index_there) const {
  const std::uint32_t here = lanes_in(channel);
  const std::uint32_t lane = index_there % here;
  const std::uint32_t row = lane / networks * channels + channel;
  return index_there / here * lanes + row * networks + lane % networks;
}

std::vector<std::uint32_t> JobConfig::channel_weights() const {
  std::vector<std::uint32_t> together(channels);
  for (std::uint32_t index = 0; index < servers(); ++index) {
    together[channel_of(index)] += weights[index];
  }
  return together;
}

JobConfig JobConfig::of_channel(std::uint32_t channel) const {
  if (channels == 1) {
    return *this;
  }
  JobConfig part = *this;
  part.server_names.clear();
  part.server_ranks.clear();
  part.weights.clear();
  std::uint64_t all = 0;
  std::uint64_t here = 0;
  for (std::uint32_t index = 0; index < servers(); ++index) {
    all += weights[index];
    if (channel_of(index) == channel) {
      part.server_names.push_back(server_names[index]);
      part.server_ranks.push_back(server_ranks[index]);
      part.weights.push_back(weights[index]);
      here += weights[index];
    }
  }
  // It has this part of every operation that it is measured by.
  part.rate =
      static_cast<std::uint64_t>(static_cast<double>(rate) * static_cast<double>(here) / static_cast<double>(all));
  part.channels = 1;
  return part;
}

std::vector<std::uint32_t> JobConfig::node_of(std::uint32_t rank) const {
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t other = 0; other < leaders.size(); ++other) {
    if (leaders[other] == leaders[rank]) {
      ranks.push_back(other);
    }
  }
  return ranks.empty() ? std::vector<std::uint32_t>{rank} : ranks;
}

std::string problem_with(const JobConfig& config) {
  const auto servers = config.weights.size();
  if (config.hosts.empty() || config.hosts.size() > limits::world_size) {
    return "a job has 1 to " + std::to_string(limits::world_size) + " ranks, not " +
           std::to_string(config.hosts.size());
  }
  if (config.server_names.size() != servers || config.server_ranks.size() != servers) {
    return "names, ranks and weights of the servers have different lengths";
  }
  const bool ranks_exist = std::all_of(config.server_ranks.begin(), config.server_ranks.end(), [&](std::int32_t rank) {
    return rank >= -1 && rank < static_cast<std::int32_t>(config.hosts.size());
  });
  if (!ranks_exist) {
    return "a server is said to be in a rank that does not exist";
  }
  const auto& leaders = config.leaders;
  const bool nodes_exist = leaders.empty() || (leaders.size() == config.hosts.size() &&
                                               std::all_of(leaders.begin(), leaders.end(), [&](std::uint32_t leader) {
                                                 return leader < leaders.size() && leaders[leader] == leader;
                                               }));
  if (!nodes_exist) {
    return "a rank is said to be on the node of a rank that is not the first there";
  }
  for (std::uint32_t rank = 0; rank < leaders.size(); ++rank) {
    if (config.ring && leaders[rank] != rank) {
      return "the ring is for jobs whose ranks share no memory";
    }
  }
  if (std::accumulate(config.weights.begin(), config.weights.end(), std::uint64_t{0}) == 0) {
    return "no server has a weight above zero";
  }
  const bool lanes_fit = config.lanes > 0 && config.networks > 0 && config.lanes % config.networks == 0 &&
                         config.channels > 0 && config.channels <= config.lanes / config.networks;
  if (!lanes_fit || (config.channels > 1 && servers % config.lanes != 0)) {
    return std::to_string(config.channels) + " channels cannot serve the " + std::to_string(config.lanes) +
           " lanes of each server over " + std::to_string(config.networks) + " networks, of which there are " +
           std::to_string(servers) + " together";
  }
  if (config.channels > 1 && config.ring) {
    return "the ring has one channel";
  }
  const std::vector<std::uint32_t> of_channels = config.channel_weights();
  if (std::find(of_channels.begin(), of_channels.end(), 0U) != of_channels.end()) {
    return "a channel has no server with a weight above zero";
  }
  if (config.segment == 0 || config.segment % limits::shard_alignment != 0 || config.segment > limits::segment_bytes) {
    return "the segment size must be a multiple of " + std::to_string(limits::shard_alignment) + " up to " +
           std::to_string(limits::segment_bytes) + ", not " + std::to_string(config.segment);
  }
  if (config.credit < config.segment) {
    return "the credit (" + std::to_string(config.credit) + " bytes) must be at least a segment (" +
           std::to_string(config.segment) + ")";
  }
  if (config.small > config.segment || config.small > limits::inline_bytes) {
    return "small operations (up to " + std::to_string(config.small) + " bytes) must fit into a segment (" +
           std::to_string(config.segment) + ") and into an opening (" + std::to_string(limits::inline_bytes) + ")";
  }
  if (config.rank_segment % limits::shard_alignment != 0 || config.rank_segment > config.segment ||
      config.rank_credit < config.rank_segment || config.rank_credit > config.credit) {
    return "segment and credit of a rank beside others of its node (" + std::to_string(config.rank_segment) + ", " +
           std::to_string(config.rank_credit) + ") must be at most those of a node, and the segment a multiple of " +
           std::to_string(limits::shard_alignment);
  }
  if (config.least_shard == 0) {
    return "least_shard must be at least 1";
  }
  if (config.least_segment > config.segment) {
    return "least_segment must be at most a segment (" + std::to_string(config.segment) + ")";
  }
  if (config.peer_timeout == 0 || config.peer_timeout > limits::peer_timeout_seconds) {
    return "the peer timeout must be 1 to " + std::to_string(limits::peer_timeout_seconds) + " s, not " +
           std::to_string(config.peer_timeout) + " s";
  }
  return "";
}

std::string bytes_text(std::size_t bytes) {
  constexpr std::size_t mebibyte = 1024 * 1024;
  return bytes >= 10 * mebibyte ? std::to_string(bytes / mebibyte) + " MiB" : std::to_string(bytes) + " bytes";
}

std::string rank_text(std::uint32_t rank, const JobConfig& config) {
  return "rank " + std::to_string(rank) + " (" + config.hosts[rank] + ")";
}

std::string ranks_text(const std::vector<std::uint32_t>& ranks, const JobConfig& config) {
  constexpr std::size_t shown = 16;
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size() && i < shown; ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]) + " (" + config.hosts[ranks[i]] + ")";
  }
  if (ranks.size() > shown) {
    text += " and " + std::to_string(ranks.size() - shown) + " more";
  }
  return text;
}

}  // namespace shoal
