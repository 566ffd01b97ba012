// What is behind room.h. Private to room*.cpp.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "drivers/shm/arena.h"
#include "drivers/shm/arrivals.h"
#include "drivers/shm/delivery.h"
#include "drivers/shm/flow.h"
#include "drivers/shm/mailbox.h"
#include "drivers/shm/room.h"
#include "wire/opening.h"

namespace shoal::shm {

// What one rank has said of an operation.
struct Call {
  bool opened = false;
  bool same = false;      // as this rank's own opening, to the byte
  bool has_data = false;  // its contribution came along
  wire::Bytes body;
  wire::Bytes data;
  std::optional<Place> place;  // of its arrays, if they lie in its region
};

struct Group {
  Hash128 id;
  std::vector<std::uint32_t> here;  // all members of the room by their places in it, in the group's order
  std::optional<Uplink> uplink;
};

// Lives until all ranks have opened it and it is over here.
struct Operation {
  enum class State {
    gathering,  // not all have called it, as far as is known here
    complete,   // all have; the first rank's word is waited for
    away,       // a small one, which the first rank has sent up
    flowing,
    over,  // finished here, handed over, or failed
  };

  Hash128 key;
  State state = State::gathering;
  std::vector<Call> calls;  // by rank
  std::size_t opened = 0;

  bool called = false;      // by this rank
  std::size_t record = 0;   // bytes that it counts for while it is open here
  std::uint64_t round = 0;  // in which this rank's call was written
  const Group* group = nullptr;
  Submission submission;
  wire::Opening opening;
  wire::Bytes body;  // the same, encoded
  bool inlined = false;
  // Of one that goes over the network: what the first rank has said of its end, whether the flow is through with its
  // arrays, and the parts of the result that are neither handed out nor taken.
  std::optional<Status> disputed;  // it cannot end well, as this rank sees it
  std::optional<Status> verdict;
  bool told = false;        // the network has heard that it has failed here
  bool at_network = false;  // on the first rank: until the network is done with the arrays
  bool flowed = false;
  std::size_t parts = 0;
  // Where the arrays of all ranks lie in the shared memory: the first rank's output, from which the others copy; on the
  // first rank, the parts of it that they have been told of and have not copied.
  const std::byte* lent = nullptr;
  std::size_t lent_parts = 0;
  bool told_done = false;  // the others, by the first rank
  Time moved = 0;
  Time late_after = 0;
  bool overdue = false;   // which the first rank has been told
  bool withheld = false;  // the first rank is about to say whether it fails
};

inline Time now() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

// The network waits so much longer than a room, so that whoever has not called is named by the room that knows it, and
// not the first rank of its node by the servers.
inline constexpr Time others_first = second;

// What a record says. Both throw std::runtime_error for what cannot be.
wire::Opening decoded(ConstBytes body);
Status decoded_status(ConstBytes body);

class Room::Impl {
 public:
  Impl(std::shared_ptr<const Memory> memory, const JobConfig& config, std::vector<std::uint32_t> members,
       std::uint32_t rank, bool has_uplink, RoomWorld& world);
  std::shared_ptr<std::byte> allocate(std::size_t bytes) { return arena_->allocate(bytes); }
  ~Impl() { close(); }

  void start();
  void add_group(std::uint32_t number, const Hash128& id, const std::vector<std::uint32_t>& ranks,
                 const std::optional<Uplink>& uplink);
  void received(std::uint64_t handle, Range range);
  void averaged(std::uint64_t handle, Status status);
  void submit(Submission submission);
  void wait(const std::function<bool()>& done, std::chrono::nanoseconds longest);
  void fail_all(const Status& why);
  std::map<std::uint64_t, wire::Wait> described(const std::vector<std::uint64_t>& handles);
  bool has_called(const wire::Call& call);
  Failed fail_call(const wire::Call& call, const Status& why);
  void leave();
  void close();

 private:
  // What has found no room in the mailbox yet.
  struct Saying {
    Kind kind;
    Hash128 key;
    wire::Bytes body;
    wire::Bytes data;
  };

  // Threads (room.cpp).
  void attend();
  // Rounds, at least one, until there is nothing more to do, or `enough`. `may_work`: also steps of operations that
  // flow. `waiters_here`: whether the caller is one of the desk's waiting threads, 1 or 0.
  template <class Works, class Enough>
  void run(Works may_work, Enough enough, std::uint32_t waiters_here = 0);
  bool round(bool works);
  void look_who_has_left();
  void ring_others();
  bool others_are_blocked() const;
  // What the network is to be asked is asked when the room's locks have been given back: it may answer from this
  // thread.
  void ask(std::function<void()> question);
  void ask_network();

  // This rank's calls (room_calls.cpp).
  void take_submissions();
  void call(Submission submission);
  void end_unopened(const Submission& submission, Status why);
  Status problem_with(const Submission& submission) const;
  Status too_much(const char* what, const char* limit, std::size_t allowed, const std::string& advice) const;
  std::size_t record_bytes(const Submission& submission) const;
  bool write_sayings();
  void write_calls();
  bool write_call(Operation& operation);

  // Operations (room_operations.cpp).
  void read_all();
  void read_mailbox(std::uint32_t rank);
  void read(std::uint32_t rank, const Record& record);
  void read_opening(std::uint32_t rank, const Record& record);
  void judge(Operation& operation, std::uint32_t rank);
  void judge_all(Operation& operation);
  void proceed(Operation& operation);
  void begin_complete();
  void begin(Operation& operation);
  bool all_inlined(const Operation& operation) const;
  // Whether operations of this kind are carried out here, or left to the network.
  bool stays(Collective collective) const { return !has_uplink_ || collective == Collective::all_reduce; }
  bool contributes(const Operation& operation) const;
  void reduce_small(Operation& operation, double divisor, Operator op);
  void flow(Operation& operation);
  void flow_admitted();
  void flow_on();

  // Operations that have different bytes for each rank (room_blocks.cpp).
  bool prepare_blocks(Operation& operation, Blocks& blocks);
  void finish_small(Operation& operation);

  // Arrays in the shared memory (room_arena.cpp).
  std::optional<Place> place_of(const Submission& submission) const;
  Arrays arrays_of(const Operation& operation) const;
  // Nobody else writes into this rank's arrays any more, however late, and what is copied from them counts no more: its
  // operations that are open are about to fail.
  void detach_arrays();

  // Of an operation that this rank has called.
  void fail(Operation& operation, const Status& why);
  void end(Operation& operation, const Status& status);
  void forget_if_done(const Hash128& key);
  void fail_those_who_need(std::uint32_t rank);
  Status left_status(const std::string& name, std::uint32_t rank) const;
  void say(Kind kind, const Hash128& key, wire::Bytes body = {}, ConstBytes data = {});
  // `network_is_done`: it uses no array any more.
  void end_all(const Status& why, bool network_is_done);
  void give_up(const Status& why);
  Status failed_here(const std::exception& error) const;
  void say_goodbye_if_done();
  Operation& operation_of(const Hash128& key);
  Operation* find(const Hash128& key);

  // Operations that go over the network (room_uplink.cpp).
  void send_up(Operation& operation, const Chunks& chunks);
  Submission for_network(const Operation& operation) const;
  void average_small(Operation& operation);
  void settle_dispute(Operation& operation);
  void fail_everywhere(Operation& operation, Collective collective, const Status& why);
  void tell_network(Operation& operation, Collective collective, const Status& why);
  std::optional<Collective> collective_of(const Operation& operation) const;
  std::optional<wire::Opening> opening_of(const Operation& operation) const;
  void take_arrivals();
  void hear(const Record& record);
  void hear_part(Operation& operation, ConstBytes body);
  void hear_verdict(Operation& operation, const Status& status, ConstBytes result);
  void hear_overdue(Operation& operation, const Status& why);
  void deliver_on();
  bool is_admitted(const Operation& operation) const;
  void end_if_through(Operation& operation);

  // Time (room_stalls.cpp).
  void look_at_the_time();
  bool check(Operation& operation, Time time);
  void warn_of(const std::vector<const Operation*>& late, Time time);
  void time_out(Operation& operation, Time time);
  void fail_gathering(Operation& operation, const Status& why);
  void withhold(Operation& operation, const Status& why);
  bool settle_doubts();
  std::string stall_text(const Operation& operation, Time time) const;
  Time moved(const Operation& operation) const;
  Time longest_wait(const Operation& operation) const;
  void check_by(Time when) { next_check_ = std::min(next_check_, when); }

  bool is_first() const { return rank_ == 0; }
  // Whether this rank sees for itself how operations end. With an uplink the first rank says it to all.
  bool decides() const { return !has_uplink_ || is_first(); }
  std::string name_of(std::uint32_t rank) const { return rank_text(members_[rank], config_); }
  std::string names_of(const std::vector<std::uint32_t>& ranks) const;
  std::int32_t in_job(std::uint32_t rank) const { return static_cast<std::int32_t>(members_[rank]); }

  const std::shared_ptr<const Memory> memory_;
  const JobConfig config_;
  const std::vector<std::uint32_t> members_;  // by their places, which are what ranks are called in here
  const bool has_uplink_;                     // to other nodes
  const std::uint32_t ranks_;
  const std::uint32_t rank_;  // this rank's place
  const std::shared_ptr<Arena> arena_;
  const std::size_t inline_bytes_;
  RoomWorld& world_;
  Desk& desk_;

  std::mutex submitting_;
  std::deque<Submission> submitted_;           // guarded by submitting_
  std::atomic<std::uint32_t> submissions_{0};  // how many those are

  mutable std::shared_mutex naming_;                        // guards groups_
  std::map<std::uint32_t, std::unique_ptr<Group>> groups_;  // nobody forgets one

  std::mutex asking_;
  std::deque<std::function<void()>> questions_;  // guarded by asking_
  std::atomic<std::uint32_t> unasked_{0};        // how many those are
  std::atomic<bool> asks_{false};                // a thread is at it

  std::mutex mutex_;  // held throughout a round; guards all that follows
  MailboxWriter writer_;
  std::vector<MailboxReader> readers_;  // by rank; this rank's own is not used
  Flow flow_;
  Delivery delivery_;
  std::unordered_map<Hash128, std::unique_ptr<Operation>> operations_;
  std::unordered_map<std::uint64_t, Hash128> moving_;  // by handle: those that flow or are away
  std::unordered_map<Hash128, std::uint32_t> occurrences_;
  std::deque<Hash128> unwritten_;                   // calls, in order
  std::deque<Hash128> complete_;                    // all have called them, and nobody here has begun with them
  std::deque<std::pair<Hash128, Status>> doubted_;  // withheld by this rank, the first, with what they would fail with
  std::deque<Hash128> admitted_;                    // by the first rank, in order, and not flowing yet
  std::deque<Saying> unsaid_;
  std::vector<bool> left_;        // by rank
  std::size_t eager_ = 0;         // bytes beside openings of operations that are open
  std::size_t open_bytes_ = 0;    // of the records of this rank's operations that are open
  std::size_t failed_bytes_ = 0;  // of those that it has called and that had failed before they began
  std::uint64_t rounds_ = 0;
  std::size_t ended_ = 0;  // operations that were finished or handed over in this round
  bool leaving_ = false;
  bool said_goodbye_ = false;
  bool is_empty_ = false;  // which the engine has been told
  bool closed_ = false;    // nobody is there who could be told anything
  Status broken_;
  Time flowed_ = 0;  // when a step was last done
  Time next_check_ = never;

  std::atomic<Time> wake_at_{never};   // for the attendant: next_check_
  std::atomic<bool> can_work_{false};  // there were steps to do at the end of the last round
  Arrivals arrivals_;
  std::atomic<bool> closing_{false};
  std::thread attendant_;
};

}  // namespace shoal::shm
