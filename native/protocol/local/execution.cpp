#include "protocol/local/execution.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <new>
#include <stdexcept>
#include <utility>

#include "base/invariant.h"
#include "protocol/call_registry.h"
#include "protocol/local/local_mean.h"
#include "protocol/local/plans.h"
#include "protocol/local/small_operations.h"

namespace shoal::local {

namespace {

// A quarter of a mailbox.
constexpr std::size_t most_told_at_once = 64 * 1024;

template <typename Value>
wire::Bytes encoded(const Value& value) {
  wire::Bytes body(sizeof value);
  std::memcpy(body.data(), &value, sizeof value);
  return body;
}

template <typename Value>
Value decoded(ConstBytes body) {
  Value value;
  if (body.size() != sizeof value) {
    throw std::runtime_error("the node's shared memory is damaged: a record of the wrong size");
  }
  std::memcpy(&value, body.data(), sizeof value);
  return value;
}

}  // namespace

Execution::Execution(const GroupMemory& memory, const Members& members, std::uint32_t own, bool has_other_nodes,
                     BufferPool& arrays, Outbox& outbox, World& world)
    : memory_(memory),
      members_(members),
      own_(own),
      has_other_nodes_(has_other_nodes),
      arrays_(arrays),
      outbox_(outbox),
      world_(world),
      flow_(memory, own, world, world),
      delivery_(memory, own, world, world) {}

// --- Beginning ---

Status Execution::finish_small(Operation& operation) {
  const Submission& s = operation.submission;
  const CollectiveTraits& traits = traits_of(s.collective);
  if (traits.shares_results()) {
    small::reduce(operation, own_, s.output, s.op, static_cast<double>(memory_.ranks()), world_);
  } else if (traits.receivers != CollectiveTraits::Receivers::none) {
    const Blocks blocks = blocks_of(operation, own_);
    if (Status problem = make_output(operation, blocks); !problem.ok()) {
      return problem;
    }
    small::move_blocks(operation, blocks, own_, world_);
  }
  return {};
}

void Execution::send_up_small(Operation& operation) {
  const Submission& s = operation.submission;
  const Internode& internode = *operation.group->internode;
  const LocalMean mean = local_mean_of(s.dtype, s.op, internode.ranks, internode.largest);
  const std::uint32_t occurrence = operation.opening.occurrence;
  Submission up;
  if (traits_of(s.collective).shares_results()) {
    small::reduce(operation, own_, s.output, mean.op, mean.divisor, world_);
    up = submission_up(s, occurrence, internode);
  } else {
    const Crossing& crossing = *operation.crossing;
    std::byte* const sum = crossing.is_plain ? operation.array.data() : operation.arranged.data();
    small::reduce(operation, own_, sum, mean.op, mean.divisor, world_);
    if (!crossing.is_plain) {
      arrange(crossing, sum, operation.array.data());
    }
    up = scatter_up(s, occurrence, internode, crossing, operation.array.data());
  }
  go_up(operation);
  world_.send_up(std::move(up), std::nullopt);
}

void Execution::send_up_sizes(Operation& operation) {
  const Internode& internode = *operation.group->internode;
  std::vector<std::uint64_t> sizes;
  std::vector<ConstBytes> blocks;
  std::uint64_t bytes = 0;
  for (const std::uint32_t place : operation.group->here) {
    sizes.push_back(operation.calls.opening_of(place, operation.opening).bytes);
    bytes += sizes.back();
  }
  // So all nodes together, with the sizes, tell no more than travels with openings, and than a mailbox has room for.
  const std::size_t most = std::min<std::size_t>(members_.config().small, most_told_at_once) / internode.count;
  if (operation.calls.all_have_data() && bytes + sizes.size() * sizeof(std::uint64_t) <= most) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      blocks.emplace_back(small::contribution_of(operation, operation.group->here[i], own_), sizes[i]);
    }
  }
  operation.told = encode_blocks(sizes, blocks);
  go_up(operation);
  world_.send_up(sizes_up(operation.submission, operation.opening.occurrence, internode, operation.told), std::nullopt);
}

// On the leader, which does nothing else with it before the network has answered.
void Execution::go_up(Operation& operation) {
  operation.state = Operation::State::at_network;
  operation.internode_state.begin_at_network();
  moving_[operation.submission.handle] = &operation;
}

bool Execution::hear_sizes(Operation& operation, const Told& told) {
  if (operation.state != Operation::State::at_network || !is_gather(operation.submission.collective)) {
    return true;
  }
  const GatheredBlocks gathered = decoded_blocks(told.bytes, told.by_node, operation.group->internode->nodes);
  if (gathered.is_whole) {
    return true;
  }
  // The leaders' second operation has the handle of the first.
  operation.state = Operation::State::complete;
  const bool alike =
      std::adjacent_find(gathered.sizes.begin(), gathered.sizes.end(), std::not_equal_to<>()) == gathered.sizes.end();
  wire::Bytes body((alike ? 1 : gathered.sizes.size()) * sizeof(std::uint64_t));
  std::memcpy(body.data(), gathered.sizes.data(), body.size());
  outbox_.say(RecordKind::blocks, operation.key, std::move(body));
  operation.block_sizes = gathered.sizes;
  return false;
}

// A crossing array alone always has room, and so has a small one.
Status Execution::make_room(Operation& operation) {
  const bool gathers = is_gather(operation.submission.collective);
  if (gathers) {
    if (Status problem = make_output(operation, operation.block_sizes); !problem.ok()) {
      return problem;
    }
  }
  if (!is_first()) {
    return {};
  }
  lay_out(operation);
  const Crossing& crossing = *operation.crossing;
  const std::uint64_t wanted = crossing.bytes * ((gathers ? 0U : 1U) + (crossing.is_plain ? 0U : 1U));
  const std::size_t most = members_.config().tables.crossing;
  // Of what is taken at least half is in use: sizes are rounded up to powers of two.
  if (wanted > members_.config().small && arrays_.taken_bytes() > 0 && arrays_.taken_bytes() / 2 + wanted > most) {
    return limit_reached("'" + operation.opening.name + "': arrays that are open between nodes", "crossing_bytes", most,
                         "wait for some of the reduce-scatters and all-gathers before", members_.rank_of(own_),
                         members_.config());
  }
  try {
    if (!gathers || !crossing.is_plain) {
      operation.array = arrays_.take(crossing.bytes);
    }
    if (!gathers && !crossing.is_plain) {
      operation.arranged = arrays_.take(crossing.bytes);
    }
  } catch (const std::bad_alloc&) {
    return Status::error(Code::failed_on_rank,
                         "'" + operation.opening.name + "' takes " + std::to_string(wanted) + " bytes on " +
                             members_.name_of(own_) + " between the nodes, for which there is no memory",
                         static_cast<std::int32_t>(members_.rank_of(own_)));
  }
  return {};
}

Status Execution::hand_out_small(Operation& operation, const Told& told) {
  if (!is_gather(operation.submission.collective)) {
    outbox_.say(RecordKind::done, operation.key, {}, {operation.result(), operation.result_bytes()});
    return {};
  }
  wire::Bytes by_node(told.by_node.size() * sizeof(std::uint64_t));
  std::memcpy(by_node.data(), told.by_node.data(), by_node.size());
  outbox_.say(RecordKind::done, operation.key, by_node, told.bytes);
  return take_small(operation, by_node, told.bytes);
}

void Execution::read_blocks(Operation& operation, ConstBytes body) const {
  const std::size_t members = operation.called ? operation.group->internode->nodes.size() : 0;
  const std::size_t count = body.size() / sizeof(std::uint64_t);
  if (!operation.is_open() || !is_gather(operation.submission.collective) || (count != 1 && count != members)) {
    throw std::runtime_error("blocks of an operation that has none");
  }
  std::vector<std::uint64_t> sizes(count);
  std::memcpy(sizes.data(), body.data(), count * sizeof(std::uint64_t));
  if (*std::max_element(sizes.begin(), sizes.end()) > most_of_block) {
    throw std::runtime_error("blocks that are larger than any array");
  }
  sizes.resize(members, sizes.front());
  operation.block_sizes = std::move(sizes);
}

Status Execution::take_small(Operation& operation, ConstBytes body, ConstBytes result) {
  Submission& s = operation.submission;
  if (!traits_of(s.collective).goes_up()) {
    throw std::runtime_error("a result of an operation that each rank has for itself");
  }
  if (is_gather(s.collective)) {
    std::vector<std::uint64_t> by_node(body.size() / sizeof(std::uint64_t));
    std::memcpy(by_node.data(), body.data(), by_node.size() * sizeof(std::uint64_t));
    const GatheredBlocks gathered = decoded_blocks(result, by_node, operation.group->internode->nodes);
    if (!gathered.is_whole) {
      throw std::runtime_error("a result that lacks blocks");
    }
    if (Status problem = make_output(operation, gathered.sizes); !problem.ok()) {
      return problem;
    }
    std::byte* to = s.output;
    for (const ConstBytes& block : gathered.blocks) {
      // In place, this rank's own is there.
      if (!block.empty()) {
        world_.copy(to, block.data(), block.size());
      }
      to += block.size();
    }
    return {};
  }
  if (!traits_of(s.collective).shares_results()) {
    lay_out(operation);
  }
  if (result.size() != operation.result_bytes()) {
    throw std::runtime_error("a result of the wrong size");
  }
  if (operation.crossing) {
    take(operation.crossing->takes, {0, result.size()}, result.data(), s.output, world_);
  } else {
    world_.copy(s.output, result.data(), result.size());
  }
  return {};
}

void Execution::take_own(const Operation& operation) {
  if (is_first() && operation.crossing && operation.array) {
    take(operation.crossing->takes, {0, operation.result_bytes()}, operation.result(), operation.submission.output,
         world_);
  }
}

// How it crosses, once all is known that decides that.
void Execution::lay_out(Operation& operation) const {
  const Group& group = *operation.group;
  const std::vector<std::uint32_t>& nodes = group.internode->nodes;
  if (is_gather(operation.submission.collective)) {
    if (operation.block_sizes.size() != nodes.size()) {
      throw std::runtime_error("an all-gather flows whose blocks nobody has told of");
    }
    operation.crossing = crossing_of_gather(operation.block_sizes, nodes, group.internode->count);
    return;
  }
  const auto own = std::find(group.here.begin(), group.here.end(), own_) - group.here.begin();
  const std::vector<std::int64_t>& shape = operation.opening.shape;
  operation.crossing =
      crossing_of_scatter(operation.opening.bytes, shape.empty() ? 0 : static_cast<std::uint64_t>(shape.front()), nodes,
                          group.internode->count, group.indices[static_cast<std::size_t>(own)]);
}

// Puts what all members have in the order of the program into the order in which it crosses.
void Execution::arrange(const Crossing& crossing, const std::byte* from, std::byte* to) {
  std::memset(to, 0, crossing.bytes);  // rows may have gaps
  for (const Piece& piece : crossing.members) {
    world_.copy(to + piece.crossing.begin, from + piece.own, piece.crossing.size());
  }
}

void Execution::admit(const Hash128& key) {
  admitted_.push_back({key, flow_.queued()});
  outbox_.say(RecordKind::admit, key, encoded(flow_.queued()));
}

void Execution::read_admission(const Hash128& key, ConstBytes body) {
  admitted_.push_back({key, decoded<std::uint64_t>(body)});
}

bool Execution::is_admitted(const Hash128& key) const {
  return std::any_of(admitted_.begin(), admitted_.end(), [&](const Admission& one) { return one.key == key; });
}

Status Execution::begin_next_admitted(Operation& operation) {
  const std::uint64_t queued = admitted_.front().queued;
  admitted_.pop_front();
  if (has_other_nodes_ && !traits_of(operation.submission.collective).shares_results()) {
    begin_crossing(operation, queued);
    return {};
  }
  operation.state = Operation::State::flowing;
  moving_[operation.submission.handle] = &operation;
  Transfer transfer = reduction_of(operation, memory_.ranks());
  transfer.queued = queued;
  if (!traits_of(operation.submission.collective).shares_results()) {
    transfer.blocks = blocks_of(operation, own_);
    if (Status problem = make_output(operation, *transfer.blocks); !problem.ok()) {
      return problem;
    }
    transfer.output = operation.submission.output;
  } else if (memory_.ranks() == 1) {
    transfer.arrays = {{operation.submission.input}, {operation.submission.output}};
  } else if (all_have_places(operation)) {
    transfer.arrays = arrays_of(operation);
    operation.internode_state.lend(transfer.up ? transfer.arrays.outputs.front() : nullptr);
  }
  const Chunks chunks = flow_.admit(std::move(transfer));
  if (has_other_nodes_ && is_first()) {
    Submission up = submission_up(operation.submission, operation.opening.occurrence, *operation.group->internode);
    up.streamed = true;  // what is sent follows, chunk by chunk
    operation.internode_state.begin_at_network();
    world_.send_up(std::move(up), chunks);
  }
  return {};
}

// A reduce-scatter or an all-gather that goes up. Its own node's part moves through the slots as among the ranks of one
// machine; what the leader has of it goes on from the crossing array, and the other nodes' part comes there.
void Execution::begin_crossing(Operation& operation, std::uint64_t queued) {
  const Submission& s = operation.submission;
  const Internode& internode = *operation.group->internode;
  operation.state = Operation::State::flowing;
  moving_[s.handle] = &operation;
  lay_out(operation);
  const Crossing& crossing = *operation.crossing;
  const bool gathers = is_gather(s.collective);
  if (gathers && crossing.bytes > 0 && s.output == nullptr) {
    throw std::runtime_error("the node's shared memory is damaged: an all-gather flows that was not asked for");
  }
  Transfer transfer = reduction_of(operation, memory_.ranks());
  transfer.queued = queued;
  transfer.output = is_first() ? operation.crossing_array() : s.output;
  if (gathers) {
    transfer.weights = {};
    transfer.blocks = crossing_blocks(operation, own_, is_first());
  } else {
    transfer.bytes = crossing.bytes;
    transfer.weights = {};
    if (crossing.bytes >= internode.shared_from) {
      transfer.weights = internode.weights;
    }
    if (!crossing.is_plain) {
      if (!operation.arranged) {
        operation.arranged = arrays_.take(crossing.bytes);
      }
      arrange(crossing, s.input, operation.arranged.data());
      transfer.input = operation.arranged.data();
    }
    if (memory_.ranks() == 1) {
      transfer.arrays = {{transfer.input}, {transfer.output}};
    }
  }
  flow_.admit(std::move(transfer));
  if (is_first()) {
    send_up_crossing(operation);
  }
}

void Execution::send_up_crossing(Operation& operation) {
  const Submission& s = operation.submission;
  const Internode& internode = *operation.group->internode;
  const Crossing& crossing = *operation.crossing;
  const std::uint32_t own_node = operation.group->own_node();
  const std::uint32_t occurrence = operation.opening.occurrence;
  const bool gathers = is_gather(s.collective);
  Submission up = gathers ? gather_up(s, occurrence, internode, crossing, own_node, operation.crossing_array())
                          : scatter_up(s, occurrence, internode, crossing, operation.crossing_array());
  up.streamed = true;
  operation.internode_state.begin_at_network();
  const std::vector<Range> comes =
      gathers ? crossing.others(own_node) : std::vector<Range>{{0, crossing.result.size()}};
  world_.send_up(std::move(up), Chunks(comes, memory_.shape().slot));
}

// The memory of a gather. Not ok: there is none.
Status Execution::make_output(Operation& operation, const Blocks& blocks) {
  return is_gather(operation.submission.collective) ? make_output(operation, incoming_sizes(operation, blocks))
                                                    : Status();
}

Status Execution::make_output(Operation& operation, const std::vector<std::uint64_t>& sizes) {
  Submission& s = operation.submission;
  s.output = world_.allocate_output(s.handle, sizes);
  s.output_bytes = 0;
  for (const std::uint64_t size : sizes) {
    s.output_bytes += size;
  }
  if (s.output != nullptr || s.output_bytes == 0) {
    return {};
  }
  const auto largest = std::max_element(sizes.begin(), sizes.end());
  return Status::error(Code::failed_on_rank,
                       "'" + operation.opening.name + "' brings " + members_.name_of(own_) + " " +
                           std::to_string(s.output_bytes) +
                           " bytes, for which there is no memory; the largest block, " + std::to_string(*largest) +
                           " bytes, is that of member " + std::to_string(largest - sizes.begin()) + " of the group",
                       static_cast<std::int32_t>(members_.rank_of(own_)));
}

// Every rank reads the same places, so all build the same lists. With other nodes, sums go into the leader's
// output.
Arrays Execution::arrays_of(const Operation& operation) {
  Arrays arrays;
  for (const std::uint32_t place : operation.group->here) {
    const Offsets& offsets = *operation.calls.offsets_of(place);
    const std::uint64_t bytes = operation.opening.bytes;
    const std::uint64_t most = memory_.shape().region;
    if (bytes > most || offsets.input > most - bytes || offsets.output > most - bytes) {
      throw std::runtime_error("the node's shared memory is damaged");
    }
    world_.reach(place, std::max(offsets.input, offsets.output) + bytes);
    std::byte* const region = memory_.region(place);
    arrays.inputs.push_back(region + offsets.input);
    if (!has_other_nodes_ || place == 0) {
      arrays.outputs.push_back(region + offsets.output);
    }
  }
  return arrays;
}

// --- What comes back ---

// Other nodes' blocks may come before all ranks here have begun with the operation. They know it by their own blocks.
void Execution::chunk_averaged(Operation& operation, Range chunk) {
  if (memory_.ranks() == 1) {
    return;
  }
  if (is_gather(operation.submission.collective) && !operation.internode_state.flowed()) {
    operation.early_parts.push_back(chunk);
  } else {
    add_part(operation, chunk);
  }
}

void Execution::read_part(Operation& operation, ConstBytes body) {
  const auto part = decoded<Range>(body);
  if (operation.state != Operation::State::flowing) {
    throw std::runtime_error("a part of a result that was not asked for");
  }
  const bool fits = operation.internode_state.lent() != nullptr || part.size() <= memory_.shape().slot;
  if (part.begin > part.end || part.end > operation.result_bytes() || !fits) {
    throw std::runtime_error("a part of a result that does not fit");
  }
  add_part(operation, part);
}

void Execution::add_part(Operation& operation, Range part) {
  operation.internode_state.add_part();
  delivery_.add({operation.submission.handle, is_first() ? operation.result() : operation.submission.output, part,
                 operation.internode_state.lent(),
                 is_first() || !operation.crossing ? nullptr : &operation.crossing->takes});
}

void Execution::drop_parts(Operation& operation) {
  operation.early_parts.clear();
  operation.internode_state.drop_parts(delivery_.drop(operation.submission.handle));
}

Operation* Execution::take_advanced() {
  while (const std::optional<Flow::Collected> collected = flow_.take_collected()) {
    Range range = collected->range;
    if (const Operation* const operation = moving(collected->handle);
        operation != nullptr && is_gather(operation->submission.collective)) {
      const std::uint64_t begin = operation->crossing->nodes[operation->group->own_node()].begin;
      range = {range.begin - begin, range.end - begin};  // of what this node sends
    }
    world_.contributed(collected->handle, range);
  }
  while (const std::optional<std::uint64_t> handle = flow_.take_finished()) {
    if (Operation* const operation = moving(*handle)) {
      operation->internode_state.note_flowed();
      for (const Range& part : std::exchange(operation->early_parts, {})) {
        add_part(*operation, part);
      }
      return operation;
    }
  }
  while (const std::optional<Delivery::ResultPart> part = delivery_.take_done()) {
    if (Operation* const operation = moving(part->handle)) {
      operation->internode_state.take_part(is_first());
      if (is_first()) {
        outbox_.say(RecordKind::part, operation->key, encoded(part->range));
      }
      return operation;
    }
  }
  while (const std::optional<Delivery::ResultPart> part = delivery_.take_returned()) {
    if (Operation* const operation = moving(part->handle)) {
      operation->internode_state.note_returned();
      return operation;
    }
  }
  return nullptr;
}

Operation* Execution::moving(std::uint64_t handle) const {
  const auto found = moving_.find(handle);
  return found == moving_.end() ? nullptr : found->second;
}

void Execution::check_invariants() const {
  flow_.check_invariants();
  delivery_.check_invariants();
  for (const auto& [handle, operation] : moving_) {
    SHOAL_INVARIANT(operation->submission.handle == handle);
  }
}

}  // namespace shoal::local
