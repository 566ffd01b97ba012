#include "protocol/local/internode.h"

#include <algorithm>
#include <map>
#include <utility>

#include "protocol/keys.h"
#include "protocol/local/local_mean.h"
#include "protocol/sharding.h"

namespace shoal::local {

std::optional<Internode> internode_of(const JobConfig& config, const std::vector<std::uint32_t>& ranks,
                                      std::vector<std::uint32_t>& leaders) {
  std::map<std::uint32_t, std::uint32_t> sizes;
  std::vector<std::uint32_t> nodes;
  for (const std::uint32_t rank : ranks) {
    const std::uint32_t leader = config.leaders.empty() ? 0 : config.leaders[rank];
    if (sizes[leader]++ == 0) {
      leaders.push_back(leader);
    }
    nodes.push_back(static_cast<std::uint32_t>(std::find(leaders.begin(), leaders.end(), leader) - leaders.begin()));
  }
  if (leaders.size() < 2) {
    return std::nullopt;
  }
  Internode internode;
  internode.ranks = config.size();
  for (const auto& [leader, size] : sizes) {
    internode.largest = std::max(internode.largest, size);
  }
  internode.weights = config.weights;
  internode.shared_from = shared_from(config);
  internode.nodes = std::move(nodes);
  internode.count = static_cast<std::uint32_t>(leaders.size());
  internode.leaders = leaders;
  return internode;
}

Submission submission_up(const Submission& called, std::uint32_t occurrence, const Internode& internode) {
  Submission up;
  up.handle = called.handle;
  up.collective = Collective::all_reduce;
  up.group = internode.group;
  up.name = called.name;
  up.occurrence = occurrence;
  up.op = called.op;
  up.dtype = called.dtype;
  up.shape = called.shape;
  up.input = up.output = called.output;
  up.input_bytes = up.output_bytes = called.output_bytes;
  up.timeout = called.timeout + others_first;
  up.divisor = local_mean_of(called.dtype, called.op, internode.ranks, internode.largest).rest;
  return up;
}

Submission scatter_up(const Submission& called, std::uint32_t occurrence, const Internode& internode,
                      const Crossing& crossing, std::byte* array) {
  Submission up = submission_up(called, occurrence, internode);
  up.collective = Collective::reduce_scatter;
  up.input = array;
  up.input_bytes = crossing.bytes;
  up.output = array + crossing.result.begin;
  up.output_bytes = crossing.result.size();
  return up;
}

Submission sizes_up(const Submission& called, std::uint32_t occurrence, const Internode& internode, ConstBytes told) {
  Submission up = submission_up(called, occurrence, internode);
  up.collective = Collective::all_gather;
  up.input = told.data();
  up.input_bytes = told.size();
  up.output = nullptr;
  up.output_bytes = 0;
  return up;
}

Submission gather_up(const Submission& called, std::uint32_t occurrence, const Internode& internode,
                     const Crossing& crossing, std::uint32_t own_node, std::byte* array) {
  Submission up = submission_up(called, occurrence | second_of_leaders, internode);
  up.collective = Collective::all_gather;
  up.input = array + crossing.nodes[own_node].begin;
  up.input_bytes = crossing.nodes[own_node].size();
  up.output = array;
  up.output_bytes = crossing.bytes;
  return up;
}

Submission submission_failed(const wire::Opening& opening, std::uint32_t group, const Status& why) {
  Submission failed;
  failed.group = group;
  failed.occurrence = opening.occurrence;
  failed.name = opening.name == unnamed ? std::string() : opening.name;
  failed.timeout = second;
  failed.failure = why.message;
  failed.failure_code = why.code;
  failed.failure_rank = why.rank;
  return failed;
}

}  // namespace shoal::local
