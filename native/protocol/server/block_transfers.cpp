#include "protocol/server/block_transfers.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/invariant.h"
#include "protocol/collectives.h"

namespace shoal::server {

using wire::Header;
using wire::Type;

namespace {

// The counts that an epoch has for itself.
constexpr std::uint64_t counts_an_epoch = std::uint64_t{1} << 28;
constexpr std::uint32_t most_epochs = 1 << 12;

std::uint64_t first_count(std::uint32_t epoch) { return (epoch % most_epochs) * counts_an_epoch + 1; }

// The member that has heard the number in an epoch before; the end: none.
std::vector<Member>::const_iterator find_numbered(const Operation& operation) {
  return std::find_if(operation.members().begin(), operation.members().end(),
                      [](const Member& member) { return member.opening.exchange != 0; });
}

}  // namespace

BlockTransfers::BlockTransfers(const Terms& terms, Links& links, Credit& credit, Receipts& receipts, Results& results,
                               BufferPool& pool)
    : terms_(terms), links_(links), credit_(credit), receipts_(receipts), results_(results), pool_(pool) {}

// Where some have heard a number in an epoch before, the others hear the same.
std::uint64_t BlockTransfers::number_for(const Operation& operation) {
  const auto known = find_numbered(operation);
  // Numbers of different servers never meet.
  return known != operation.members().end() ? known->opening.exchange
                                            : (static_cast<std::uint64_t>(terms_.index()) + 1) << 40 | next_count_++;
}

bool BlockTransfers::is_put_together_here(const Operation& operation) const {
  std::uint64_t total = 0;
  bool inlined = true;
  for (const Member& member : operation.members()) {
    total += member.opening.bytes;
    inlined = inlined && member.inlined;
  }
  return inlined && total <= terms_.config().small && find_numbered(operation) == operation.members().end();
}

// On the ring, sizes follow from the operation's size.
std::vector<std::uint64_t> BlockTransfers::blocks_for(const Operation& operation, std::size_t member) const {
  std::vector<std::uint64_t> blocks;
  if (terms_.takes_ring(operation.attributes())) {
    return blocks;
  }
  const bool same = traits_of(operation.attributes().collective).same_blocks;
  for (const Member& from : operation.members()) {
    blocks.push_back(same ? from.opening.bytes : static_cast<std::uint64_t>(from.opening.splits[member]));
  }
  return blocks;
}

// `taken`: bytes of each input that went to the members before.
Buffer BlockTransfers::put_together(const Operation& operation, const std::vector<std::uint64_t>& blocks,
                                    std::vector<std::uint64_t>& taken) {
  const bool same = traits_of(operation.attributes().collective).same_blocks;
  const auto bytes = std::accumulate(blocks.begin(), blocks.end(), std::size_t{0});
  Buffer buffer = bytes > 0 ? pool_.take(bytes) : Buffer();
  std::byte* at = buffer.data();
  for (std::size_t from = 0; from < blocks.size(); ++from) {
    if (blocks[from] > 0) {
      std::memcpy(at, operation.member(from).inline_data.data + taken[from], blocks[from]);
      at += blocks[from];
    }
    taken[from] += same ? 0 : blocks[from];
  }
  return buffer;
}

bool BlockTransfers::start(Operation& operation) {
  const bool here = is_put_together_here(operation);
  const std::uint64_t serial = operation.serial();
  wire::Sizes sizes;
  sizes.exchange = number_for(operation);
  std::vector<std::uint64_t> taken(operation.size(), 0);
  for (std::size_t to = 0; to < operation.size(); ++to) {
    const std::uint32_t rank = operation.rank(to);
    const Member& member = operation.member(to);
    const bool lacks = !terms_.is_complete(member.opening);
    sizes.blocks = blocks_for(operation, to);
    credit_.answer(rank, 0, operation.take_eager(to));
    if (lacks) {
      receipts_.expect(serial, 0);
      const Header header{
          .type = Type::sizes, .flags = here ? wire::flag_inline : std::uint8_t{0}, .operation = member.number};
      if (links_.send(rank, header, wire::encode(sizes))) {
        receipts_.sent(rank, serial, 0);
      }
    }
    if (!here) {
      continue;
    }
    Buffer output = put_together(operation, sizes.blocks, taken);
    if (lacks) {
      const auto bytes = std::accumulate(sizes.blocks.begin(), sizes.blocks.end(), std::size_t{0});
      receipts_.expect(serial, 0);
      if (results_.send_block(rank, member.number, operation.attributes().wire_dtype(), std::move(output), bytes)) {
        receipts_.sent(rank, serial, 0);
      }
    }
  }
  operation.discard_inline_data();
  return here;
}

void BlockTransfers::begin_epoch(std::uint32_t number) { next_count_ = std::max(next_count_, first_count(number)); }

void BlockTransfers::check_invariants(std::uint32_t epoch) const { SHOAL_INVARIANT(next_count_ >= first_count(epoch)); }

}  // namespace shoal::server
