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

// What tables may take. Tables grow on demand, and bytes are limited, not entries. Exceeding a limit is an error, never
// a wait: ranks that submit in different orders could then wait for each other for ever.
//
// Of a rank: what it knows of its open operations. Operations that failed before they began may take as much again.
inline constexpr std::size_t open_bytes = std::size_t{256} * 1024 * 1024;
// Of a rank: how often each name was used. No name is ever forgotten.
inline constexpr std::size_t names_bytes = std::size_t{256} * 1024 * 1024;
// Of a rank: the members of its groups. No group is ever forgotten.
inline constexpr std::size_t groups_bytes = std::size_t{256} * 1024 * 1024;
// Of a machine whose ranks share memory: what its subgroups take, but at most a quarter of the machine's memory. Groups
// for which nothing is left use the network.
inline constexpr std::size_t areas_bytes = std::size_t{8} * 1024 * 1024 * 1024;
// Of a rank that is its node's leader: the arrays of reduce-scatters and all-gathers that are open between nodes. One
// alone may be larger.
inline constexpr std::size_t crossing_bytes = std::size_t{8} * 1024 * 1024 * 1024;
// Of a server, for one job: its groups and operations, with the failed operations that some members have not called
// yet. Beyond this, new operations fail; beyond twice as much, links end.
inline constexpr std::size_t tables_bytes = std::size_t{1024} * 1024 * 1024;
// Of rank 0: what all ranks say that they wait for, so that circles are found. A rank whose WAITS do not fit is not
// suspected.
inline constexpr std::size_t waits_bytes = std::size_t{256} * 1024 * 1024;

// The most ranges in which a worker may have the results of an operation when a server is lost.
inline constexpr std::size_t ranges = 16 * 1024;

// The most ranges in which a server asks for what is missing then: the ranges of each member cut those of all.
inline constexpr std::size_t missing_ranges = 1024 * 1024;

// The most segments of one operation, at one server, that can go on after a server is lost.
inline constexpr std::size_t resumed_segments = 1024 * 1024;

// How far windows may grow: bytes of all workers together that one server has not answered.
inline constexpr std::size_t port_bytes = 64 * 1024 * 1024;

// The longest peer timeout of a job, in seconds. The kernel is told a third of it, which may be at most 32767.
inline constexpr std::uint32_t peer_timeout_seconds = 24 * 60 * 60;

// The largest segment, and the largest contribution that may travel inside an opening.
inline constexpr std::size_t segment_bytes = 16 * 1024 * 1024;
inline constexpr std::size_t inline_bytes = 1024 * 1024;

}  // namespace shoal::limits
