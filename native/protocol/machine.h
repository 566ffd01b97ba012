// The seam between the protocol and the world.
//
// Server, worker and coordinator are machines: events come in, actions go out. A machine opens no socket, reads no
// clock, starts no thread and takes no lock. A driver (TCP, simulation) owns it, calls it from one thread at a time,
// and carries out its actions. So the same machine runs on a real network and on a simulated one.
//
// The order of events on one link:
//   attach → (on_header → payload is written to the place returned → on_payload)* → on_lost
// on_payload is called for empty payloads too. Nothing is called for a link after on_lost or after the
// machine closed it.
//
// Actions may be carried out at once or later, but never by calling the machine back from within the call: events that
// they cause (on_sent, on_summed, frames over a link in memory) come after the current event has returned.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/range.h"
#include "base/status.h"
#include "base/types.h"
#include "wire/frame.h"
#include "wire/opening.h"
#include "wire/waits.h"

namespace shoal {

// A link is known by a number that the driver chooses, unique within one driver.
using LinkId = std::uint32_t;

// Nanoseconds on the driver's clock, which only goes forward.
using Time = std::int64_t;
inline constexpr Time never = std::numeric_limits<Time>::max();
inline constexpr Time second = 1'000'000'000;

// Names an action, so that the machine hears when it has ended. 0: the machine does not want to hear.
using Token = std::uint64_t;

using wire::Bytes;

// Where the payload of a header goes. With a status that is not ok the frame is refused: the driver closes the link
// and calls on_lost with that status.
struct Placement {
  Status status;
  std::byte* memory = nullptr;
  // If not null: the owner of that memory, which the driver may exchange for a spare buffer of the same size until
  // on_payload.
  Buffer* buffer = nullptr;
};

// One sum (native/reduce/reduce.h) to be carried out.
struct Sum {
  std::byte* destination = nullptr;
  std::vector<const std::byte*> sources;
  std::size_t count = 0;
  DType dtype = DType::none;
  Operator op = Operator::none;
  double divisor = 1;
  Token token = 0;  // on_summed(token) follows, always
};

// Actions of every machine.
class Wire {
 public:
  virtual ~Wire() = default;

  // Sends header, `owned`, then `borrowed`, after everything sent on this link before. header.length must be the sum of
  // both sizes; the driver fills in the check. `borrowed` stays valid until on_sent(token) or until the link
  // is gone. on_sent is called when the last byte has been handed to the network, and also, for frames never sent,
  // when the link is lost (after on_lost) or closed.
  virtual void send(LinkId link, const wire::Header& header, Bytes owned, std::span<const std::byte> borrowed,
                    Token token) = 0;

  // The memory borrowed by frames with this token, on any link, is about to go: before it returns, the driver copies
  // what it still needs. The frames are sent as before, and on_sent still comes. (For operations that fail.)
  virtual void detach(Token token) = 0;

  // Ends a link at once; on_lost is not called for it. Frames still queued are thrown away.
  virtual void close(LinkId link) = 0;

  // From now on the link uses the host's own congestion control, or again the gentle default. For drivers that have a
  // choice.
  virtual void compete(LinkId /*link*/, bool /*on*/) {}
};

// Actions of the coordinator.
class CoordinatorWorld : public Wire {
 public:
  // Something that a person should read, once for the whole job.
  virtual void warn(std::string text) = 0;
};

// Actions of a server.
class ServerWorld : public Wire {
 public:
  virtual void sum(Sum sum) = 0;
};

// Actions of a worker.
class WorkerWorld : public Wire {
 public:
  // For the ring.
  virtual void sum(Sum sum) = 0;

  // The operation's call has this number (wire::Opening::occurrence). For timelines.
  virtual void numbered(std::uint64_t /*handle*/, std::uint32_t /*occurrence*/) {}
  // The first bytes of the operation's contribution have been handed to the driver. For timelines.
  virtual void sending(std::uint64_t handle) = 0;
  // For timelines too, once each: this rank hears that all members have called the operation; the first part of its
  // result is here.
  enum class Milestone { all_called, first_result };
  virtual void reached(std::uint64_t /*handle*/, Milestone /*milestone*/) {}

  // These bytes of a streamed operation's result are in its output.
  virtual void received(std::uint64_t /*handle*/, Range /*range*/) {}

  // The handle is done. Called once for each submitted operation.
  virtual void finish(std::uint64_t handle, Status status) = 0;

  // Memory for the output of an operation whose size is only now known (`block_bytes` from each member, in
  // the group's order, one after the other). Belongs to the handle. Null: there is no memory for it.
  virtual std::byte* allocate_output(std::uint64_t handle, const std::vector<std::uint64_t>& block_bytes) = 0;

  // Asks for a connection to this rank's worker; attach_peer or peer_unreachable follows.
  virtual void connect(std::uint32_t rank) = 0;

  // Asks for connections to all lanes of this lost server, of which the first has this index. attach_returned for each
  // of them, or server_unreachable, follows.
  virtual void connect_server(std::uint32_t server, std::uint32_t attempt) = 0;

  // Something that a person should read: who is late.
  virtual void warn(std::string text) = 0;

  // Every rank has left or is lost: no link is needed any more.
  virtual void ended() = 0;

  // A rank of this machine that had left has ended, and reads nothing any more, which it may not have said.
  virtual void gone(std::uint32_t /*rank*/) {}

  // What this rank's program waits for. `changes`: rises whenever a thread begins or ends to wait, or calls something;
  // never 0. `blocked`: nothing here can call anything before one of these operations is done. `patience`: how long
  // that must hold before it is believed.
  struct Waiting {
    std::uint64_t changes = 1;
    bool blocked = false;
    Time patience = 0;
    std::vector<std::uint64_t> handles;
  };
  virtual Waiting waiting() { return {}; }

  // About operations in local groups. What these handles stand for, by handle, without members; handles of other
  // operations are left out. And whether this rank has called an operation.
  virtual std::map<std::uint64_t, wire::Wait> described_inside(const std::vector<std::uint64_t>& /*handles*/) {
    return {};
  }
  virtual bool has_called_inside(const wire::Call& /*call*/) { return false; }
  // Fails the operation of this call, which can never be complete. `found`: a local group has it open. `handle`: of an
  // operation of the worker's that must fail with it.
  struct Failed {
    bool found = false;
    std::optional<std::uint64_t> handle;
  };
  virtual Failed fail_inside(const wire::Call& /*call*/, const Status& /*why*/) { return {}; }

  // In this group this rank has joined, and another one has called what it has not (joining.h).
  virtual void called(std::uint32_t /*group*/, const wire::Opening& /*opening*/) {}

  // TCP retransmissions on this link so far; 0 where nobody counts them.
  virtual std::uint64_t retransmissions(LinkId link) const = 0;
};

// Events of every machine.
class Machine {
 public:
  virtual ~Machine() = default;

  // A header has arrived, and its check was right. The memory returned holds header.length bytes and stays valid
  // until on_payload or on_lost.
  virtual Placement on_header(LinkId link, const wire::Header& header) = 0;

  // A buffer like those of Placement, for a driver that reads payloads before their headers. None: the machine has no
  // such buffers.
  virtual Buffer spare(std::size_t /*bytes*/) { return {}; }

  // The payload of the last header is in its place. An error: as in Placement.
  virtual Status on_payload(LinkId link) = 0;

  virtual void on_sent(Token token) = 0;
  virtual void on_summed(Token /*token*/) {}
  virtual void on_lost(LinkId link, const Status& why) = 0;

  // The time is `now`. Called before the other events of a round, and when deadline() has come.
  virtual void on_time(Time now) = 0;
  virtual Time deadline() const = 0;

  // Between two events. Throws InvariantViolated (base/invariant.h) if an invariant of its classes does not hold.
  virtual void check_invariants() const {}
};

}  // namespace shoal
