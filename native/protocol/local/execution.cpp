#include "protocol/local/execution.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/invariant.h"
#include "protocol/local/local_mean.h"
#include "protocol/local/plans.h"
#include "protocol/local/small_operations.h"

namespace shoal::local {

namespace {

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
                     Outbox& outbox, World& world)
    : memory_(memory),
      members_(members),
      own_(own),
      has_other_nodes_(has_other_nodes),
      outbox_(outbox),
      world_(world),
      flow_(memory, own, world, world),
      delivery_(memory, own, world, world) {}

// --- Beginning ---

Status Execution::finish_small(Operation& operation) {
  const Submission& s = operation.submission;
  const CollectiveTraits& traits = traits_of(s.collective);
  if (traits.shares_results()) {
    small::reduce(operation, own_, s.op, static_cast<double>(memory_.ranks()), world_);
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
  small::reduce(operation, own_, mean.op, mean.divisor, world_);
  operation.state = Operation::State::at_network;
  operation.internode_state.begin_at_network();
  moving_[s.handle] = &operation;
  world_.send_up(submission_up(s, operation.opening.occurrence, internode), std::nullopt);
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

// The memory of a gather. Not ok: there is none.
Status Execution::make_output(Operation& operation, const Blocks& blocks) {
  Submission& s = operation.submission;
  if (!is_gather(s.collective)) {
    return {};
  }
  const std::vector<std::uint64_t> sizes = incoming_sizes(operation, blocks);
  s.output = world_.allocate_output(s.handle, sizes);
  s.output_bytes = 0;
  for (const std::uint64_t size : sizes) {
    s.output_bytes += size;
  }
  if (s.output != nullptr || s.output_bytes == 0) {
    return {};
  }
  return Status::error(Code::failed_on_rank,
                       "'" + operation.opening.name + "' brings " + members_.name_of(own_) + " " +
                           std::to_string(s.output_bytes) + " bytes, for which there is no memory",
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

void Execution::chunk_averaged(Operation& operation, Range chunk) {
  if (memory_.ranks() > 1) {
    add_part(operation, chunk);
  }
}

void Execution::read_part(Operation& operation, ConstBytes body) {
  const auto part = decoded<Range>(body);
  if (operation.state != Operation::State::flowing) {
    throw std::runtime_error("a part of a result that was not asked for");
  }
  const bool fits = operation.internode_state.lent() != nullptr || part.size() <= memory_.shape().slot;
  if (part.begin > part.end || part.end > operation.submission.output_bytes || !fits) {
    throw std::runtime_error("a part of a result that does not fit");
  }
  add_part(operation, part);
}

void Execution::add_part(Operation& operation, Range part) {
  operation.internode_state.add_part();
  delivery_.add({operation.submission.handle, operation.submission.output, part, operation.internode_state.lent()});
}

void Execution::drop_parts(Operation& operation) {
  operation.internode_state.drop_parts(delivery_.drop(operation.submission.handle));
}

Operation* Execution::take_advanced() {
  while (const std::optional<Flow::Collected> collected = flow_.take_collected()) {
    world_.contributed(collected->handle, collected->range);
  }
  while (const std::optional<std::uint64_t> handle = flow_.take_finished()) {
    if (Operation* const operation = moving(*handle)) {
      operation->internode_state.note_flowed();
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
