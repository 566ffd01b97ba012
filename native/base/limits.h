// Everything that has a limit, and its name.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::limits {

// Shards begin at multiples of this many bytes of an operation's buffer: a cache line, and a whole number of elements
// of every dtype.
inline constexpr std::size_t shard_alignment = 64;

// The longest name of an operation, in bytes of UTF-8.
inline constexpr std::size_t name_bytes = 1024;

// The most dimensions of an array.
inline constexpr std::size_t dimensions = 32;

// The longest text of a failure or an abort; longer ones are cut.
inline constexpr std::size_t text_bytes = 16 * 1024;

// The most ranks of a job.
inline constexpr std::size_t world_size = 16 * 1024;

// What tables may take. They grow as they are filled; nothing in them is counted, only what it takes of memory. What
// goes beyond is an error, never a wait, which could keep ranks apart that submit in different orders.
//
// Of a rank: what it knows of the operations that it has open. Those that have failed before they began may take as
// much again.
inline constexpr std::size_t open_bytes = std::size_t{256} * 1024 * 1024;
// Of a rank: how often each name was used. Nobody forgets a name.
inline constexpr std::size_t names_bytes = std::size_t{256} * 1024 * 1024;
// Of a rank: the members of its groups. Nobody forgets a group.
inline constexpr std::size_t groups_bytes = std::size_t{256} * 1024 * 1024;
// Of a worker whose ranks share memory: what groups of some of them take of it, but at most a quarter of what the
// machine has. Groups for which nothing is left go through the network.
inline constexpr std::size_t areas_bytes = std::size_t{8} * 1024 * 1024 * 1024;
// Of a server, for one job: what it knows of its groups and of its operations, also of those that have failed and that
// some members have not called yet. Beyond it new operations fail; beyond twice as much, links end.
inline constexpr std::size_t tables_bytes = std::size_t{1024} * 1024 * 1024;
// Of rank 0: what all ranks say that they wait for, so that circles are found. Who says more than there is room for is
// in none, as far as is known.
inline constexpr std::size_t waits_bytes = std::size_t{256} * 1024 * 1024;

// The most ranges in which a worker may have the results of an operation when a server is lost.
inline constexpr std::size_t ranges = 16 * 1024;

// The most ranges in which a server asks for what is missing then: the ranges of each member cut those of all.
inline constexpr std::size_t missing_ranges = 1024 * 1024;

// What all workers together may be allowed to have unanswered toward one server where windows grow.
inline constexpr std::size_t port_bytes = 64 * 1024 * 1024;

// The longest peer timeout of a job, in seconds. The kernel is told a third of it, and counts to 32767.
inline constexpr std::uint32_t peer_timeout_seconds = 24 * 60 * 60;

// The largest segment, and the largest contribution that may travel inside an opening.
inline constexpr std::size_t segment_bytes = 16 * 1024 * 1024;
inline constexpr std::size_t inline_bytes = 1024 * 1024;

}  // namespace shoal::limits
