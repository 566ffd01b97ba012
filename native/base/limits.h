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

// The most groups of a job, the one of all ranks among them. Nobody forgets a group.
inline constexpr std::size_t groups = 16 * 1024;

// The most names that a node's operations may have over the life of a job, over all groups.
inline constexpr std::size_t names = 1024 * 1024;

// The most failed operations that a server remembers for members that have not called them yet.
inline constexpr std::size_t tombstones = 64 * 1024;

// The most ranges in which a node may have the results of an operation when a server is lost.
inline constexpr std::size_t ranges = 16 * 1024;

// The most parts in which a server asks for what is missing then. (Every member's ranges cut everybody's.)
inline constexpr std::size_t runs = 1024 * 1024;

// What all nodes together may be allowed to have unanswered toward one server where windows grow.
inline constexpr std::size_t port_bytes = 64 * 1024 * 1024;

// The longest peer timeout of a job, in seconds. The kernel is told a third of it, and counts to 32767.
inline constexpr std::uint32_t peer_timeout_seconds = 24 * 60 * 60;

// The largest segment, and the largest contribution that may travel inside an opening.
inline constexpr std::size_t segment_bytes = 16 * 1024 * 1024;
inline constexpr std::size_t inline_bytes = 1024 * 1024;

}  // namespace shoal::limits
