// A network of machines under a virtual clock and a seed.
//
// It keeps the contract of native/protocol/machine.h, and promises as little more as possible:
//   * a link is a stream of bytes in both directions, read by the product's own reader (protocol/frame_reader.h): it is
//     handed over in pieces that are cut anywhere, with anything in between, and ends in the middle of a frame when it
//     breaks; streams of different links overtake each other at will;
//   * borrowed bytes are read piece by piece until the very moment before on_sent is due, and on_sent comes after any
//     delay; sums are carried out after any delay, in any order;
//   * a machine is never called from within its own call; it may hear of much at once, or late.
//
// Beyond that it has faults: links that break or fall silent, for a while or for ever, and bytes that are damaged.
// Links to oneself are links like any other, but never break. Rates, queues that drop and TCP are those of another
// network, packet_level/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include "drivers/sim/random.h"
#include "drivers/sim/scheduler.h"
#include "protocol/frame_reader.h"
#include "protocol/machine.h"
#include "wire/frame.h"

namespace shoal::sim {

using wire::Bytes;

// How long things take: uniform between shortest and longest, sometimes up to `tail`.
struct Timing {
  Time shortest = 1'000;
  Time longest = 100'000;
  Time tail = 0;
  double tail_chance = 0;
  double split_chance = 0.3;  // that a frame is handed over in pieces, and a piece arrives in two
};

// Where a machine sits: its process and its name for people.
struct Seat {
  ActorId actor = outside;
  std::string name;
  Machine* machine = nullptr;   // null: not there yet, or gone
  std::function<void()> after;  // after each of the machine's events: checks, steps of the driver
  Time wake = never;            // when the next call for the sake of the deadline is due
  Time last_wake = never;
  int wakes = 0;  // in a row at the same time
};

enum class LinkKind { control, server, peer };

// One end of a link, as the machine at it sees it.
struct End {
  explicit End(LinkId number) : id(number), reader(number) {}

  LinkId id;
  LinkKind kind = LinkKind::control;
  Seat* seat = nullptr;
  End* other = nullptr;
  bool is_client = false;     // the end of the worker (of control and server links) or of the lower rank
  std::uint32_t client = 0;   // the rank at the client's end
  std::uint32_t service = 0;  // the server's index or the higher rank
  bool open = true;           // the machine may use it and is told what arrives
  bool cut = false;           // what is sent gets nowhere

  struct Outgoing {
    wire::Header header;
    Bytes owned;
    std::span<const std::byte> borrowed;
    Token token = 0;
    std::size_t handed_over = 0;  // bytes of `borrowed`
    Bytes detached;               // the copy that `borrowed` points into once the machine has detached it
    bool begun = false;
  };
  std::deque<Outgoing> outgoing;
  bool transmitting = false;
  std::deque<Token> sent;

  // A piece of the stream, or what comes instead of one.
  struct Chunk {
    Time due = 0;
    Bytes bytes;
    std::function<void()> attach;
    Status lost;  // not ok: the link is lost
  };
  std::deque<Chunk> incoming;
  Time last_arrival = 0;
  Time silent_until = 0;  // nothing arrives before
  FrameReader reader;
  wire::Header receiving;  // of the frame that is being read
  bool damaged = false;    // the next frame that is refused has a damaged header: nothing else may be wrong with it
};

// Who watches: the checks of a simulation.
class Observer {
 public:
  virtual ~Observer() = default;
  virtual void on_send(const End& from, const wire::Header& header, const Bytes& owned,
                       std::span<const std::byte> borrowed) = 0;
  virtual void on_arrival(const End& to, const wire::Header& header) = 0;
  // The whole frame is there.
  virtual void on_received(const End& to, const wire::Header& header) = 0;
  virtual void on_read(const End& from, std::span<const std::byte> borrowed) = 0;
  virtual void on_write(const End& to, std::span<const std::byte> memory) = 0;
  virtual void on_refused(const End& at, const Status& why) = 0;
  // The machine has been told that the link is gone.
  virtual void on_lost(const End& at) = 0;
  // Something happened that must not; the first one counts.
  virtual void violated(const std::string& what) = 0;
};

class Network final : private Receiver {
 public:
  Network(std::uint64_t seed, const Timing& timing, Observer& observer, std::ostream* trace)
      : random_(seed), timing_(timing), observer_(observer), trace_(trace) {}
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  Scheduler& scheduler() { return scheduler_; }
  Random& random() { return random_; }
  Time now() const { return scheduler_.now(); }
  // A random span of time, as long as a frame on its way may take.
  Time delay();

  Seat& add_seat(ActorId actor, std::string name);

  // A link between a client's machine and a service's. Attach the ends at once, or use attach_later.
  End& add_link(LinkKind kind, Seat& client, std::uint32_t client_rank, Seat& service, std::uint32_t service_index);
  // Calls `attach` as one of the machine's events, before anything else of this link.
  void attach_later(End& end, Time when, std::function<void()> attach);
  const std::vector<std::unique_ptr<End>>& ends() const { return ends_; }

  // Calls a machine as a driver does: tells the time, lets `body` call it, looks at the deadline. Nothing if it is
  // gone.
  void turn(Seat& seat, const std::function<void(Machine&)>& body);

  // Actions of machines.
  void send(Seat& seat, LinkId link, const wire::Header& header, Bytes owned, std::span<const std::byte> borrowed,
            Token token);
  void detach(Seat& seat, Token token);
  void close(Seat& seat, LinkId link);
  void sum(Seat& seat, Sum sum);

  // Faults. A link that breaks loses some of what is on its way; both ends hear of it, each in its own time.
  void break_link(End& end, const std::string& why);
  // The process ends: its machines are never called again and may be destroyed. A gentle one has its frames sent
  // before.
  void end_process(ActorId actor, bool gently);
  // When the other side's kernels have all that this process has sent on links that stand.
  Time acknowledged_at(ActorId actor) const;
  // Nothing arrives at this end for so long; what is on its way then does, if the link does not break before.
  void silence(End& end, Time duration);
  // Both kernels have waited long enough, each as long as it likes: nothing that is on its way arrives any more.
  void give_up_link(End& end, Time longest_difference, const std::string& why);
  // Damages the header of the frame that is the `frames`-th from now: at most 32 bits, one after the other.
  void corrupt_after(std::uint64_t frames) { corrupt_in_ = frames; }
  // Damages elements in the payload of the next DATA or RESULT after so many frames.
  void corrupt_elements_after(std::uint64_t frames) { corrupt_elements_in_ = frames; }
  // From now on, changes a field of a header or a byte of a payload now and then, and gives it a good check.
  void forge(double chance) { forge_chance_ = chance; }

  // Whether somebody reads what trace() is given.
  bool traced() const { return trace_ != nullptr; }
  void trace(const std::string& what);

 private:
  End* usable(Seat& seat, LinkId link, const char* action);
  void start_transmitting(End& end);
  void transmit(End& end);
  void hand_over(End& end, End::Outgoing& frame, std::size_t bytes);
  void forge(const End& end, wire::Header& header, std::span<std::byte> payload);
  void damage(End& end, std::span<std::byte> header);
  void arrive(End& end, Bytes bytes);
  void arrive(End& end, End::Chunk chunk);
  void receive(End& end);
  void receive(End& end, Machine& machine, End::Chunk& chunk);
  Placement frame_begins(LinkId link, const wire::Header& header) override;
  Status frame_ends(LinkId link) override;
  void refuse(End& end, Machine& machine, const Status& why);
  void finish_sending(End& end, Token token);
  void release(End& end);
  void drop_some(End& end);
  void tell_lost(End& end, const std::string& why);
  void schedule_deadline(Seat& seat);

  Scheduler scheduler_;
  Random random_;
  Timing timing_;
  Observer& observer_;
  std::ostream* trace_;
  std::deque<Seat> seats_;
  std::vector<std::unique_ptr<End>> ends_;
  std::uint64_t corrupt_in_ = 0;
  std::uint64_t corrupt_elements_in_ = 0;
  double forge_chance_ = 0;
};

// "DATA operation 7, offset 64, length 128" and so on.
std::string describe(const wire::Header& header);
// "worker 2 → server 1": from whom to whom the frames sent at this end go.
std::string describe(const End& from);

}  // namespace shoal::sim
