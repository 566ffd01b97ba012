// Machines on hosts of the packet_level network, each with a core of its own, and the links between them.
//
// Promises what native/protocol/machine.h promises for every driver. A process does one thing after another: it takes
// in a frame, writes a frame to its socket, or carries out a sum; each takes its time, and takes effect at its end. A
// link is a flow in each direction; between two processes of one host, frames arrive as soon as they are written.
//
// Payloads are left out: owned bytes (openings and the like) travel, of borrowed ones only their number, and sums are
// not computed. Memory that machines ask for exists, and nothing is read from it or written to it here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "drivers/sim/packet_level/fabric.h"
#include "drivers/sim/packet_level/flow.h"
#include "drivers/sim/packet_level/timeline.h"
#include "drivers/sim/random.h"
#include "protocol/machine.h"

namespace shoal::sim::packet_level {

struct Costs {
  Time frame = 5'000;  // nanoseconds for a frame, at the process that writes it and at the one that takes it in
  double bytes_per_second = 4e9;  // of those frames, and of the sources of sums
  Time jitter = 5'000;            // nanoseconds: everything takes up to so much longer
};

class End;

class Process final : public Target {
 public:
  Process(Timeline& timeline, const Costs& costs, HostId host, std::string name, Random& random, std::string& failure)
      : timeline_(timeline), costs_(costs), host_(host), name_(std::move(name)), random_(random), failure_(failure) {}

  void set_machine(Machine* machine) { machine_ = machine; }
  HostId host() const { return host_; }
  const std::string& name() const { return name_; }

  // Lets `body` call the machine as a driver does, after the work that is there, or from that time on. Times must not
  // go back.
  void do_later(std::function<void()> body);
  void do_at(Time when, std::function<void()> body);

  // What the machine's world asks for.
  void send(LinkId link, const wire::Header& header, wire::Bytes owned, std::size_t borrowed, Token token);
  void sum(const Sum& sum);
  void close(LinkId link);
  std::uint64_t retransmissions(LinkId link) const;

  void happen(const Event& event) override;

 private:
  friend class End;
  friend class Processes;

  enum What : std::uint32_t { work_done, wake, start };

  struct Work {
    enum class Kind { take_in, write, sum, call };
    Kind kind = Kind::call;
    Time cost = 0;
    Token token = 0;
    End* end = nullptr;
    wire::Header header;
    wire::Bytes owned;
    std::function<void()> body;
  };

  void add(Work work);
  void start_next();
  void carry_out(Work& work);
  void take_in(Work& work);
  // Tells the machine the time, lets `body` call it, looks at its deadline.
  template <class Body>
  void turn(const Body& body);
  Time cost_of(const wire::Header& header) const;
  Time cost_of_bytes(double bytes) const { return static_cast<Time>(bytes / costs_.bytes_per_second * 1e9); }
  // The run is over: something happened that does not happen in a job where nothing goes wrong.
  void fail(const std::string& what);
  End& end_of(LinkId link);

  Timeline& timeline_;
  const Costs costs_;
  const HostId host_;
  const std::string name_;
  Random& random_;
  std::string& failure_;
  Machine* machine_ = nullptr;
  std::vector<std::unique_ptr<End>> ends_;    // by link
  std::deque<Work> work_;                     // the first is in progress
  std::deque<std::function<void()>> starts_;  // in the order of their times
  bool busy_ = false;                         // carrying one out at this moment
  Time wake_ = never;
};

// A process's end of a link.
class End final : public Sink {
 public:
  // All bytes that the other end wrote before `end` are there: takes in the frames that are whole.
  void arrived(std::uint64_t end) override;

 private:
  friend class Process;
  friend class Processes;

  struct Frame {
    std::uint64_t end = 0;  // in the stream
    wire::Header header;
    wire::Bytes owned;
  };

  void write(const wire::Header& header, wire::Bytes owned);

  LinkId id_ = 0;
  Process* process_ = nullptr;
  End* other_ = nullptr;
  Flow* flow_ = nullptr;  // null: the other end is on the same host
  std::uint64_t written_ = 0;
  std::deque<Frame> coming_;
};

class Processes {
 public:
  Processes(Fabric& fabric, const Costs& costs, Random& random) : fabric_(fabric), costs_(costs), random_(random) {}
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  Process& add(HostId host, std::string name);
  // The numbers of the link's two ends, each for its own process.
  std::pair<LinkId, LinkId> join(Process& a, Process& b);

  // What went wrong first; empty: nothing.
  const std::string& failure() const { return failure_; }
  void fail(const std::string& what);

 private:
  Fabric& fabric_;
  const Costs costs_;
  Random& random_;
  std::string failure_;
  std::deque<Process> processes_;
};

}  // namespace shoal::sim::packet_level
