// The worker machine's parts: worker.cpp turns events into calls of these, losses.cpp says what follows from
// losses and goodbyes, operations.cpp submits and ends operations, sender.cpp sends them to servers,
// block_transfer.cpp moves blocks between workers, ring.cpp sends all-reduces round the ring, waits.cpp says
// what this rank waits for, epoch.cpp goes on after the loss of a server with what retained_results.cpp keeps for that,
// reconnection.cpp takes a server back.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "protocol/worker/state.h"
#include "protocol/worker/worker.h"

namespace shoal {

namespace worker {

// For a frame that nobody sends who keeps to the protocol.
inline Status refused(std::string what) { return Status::error(Code::protocol, std::move(what)); }

// How long the coordinator's word about a rank is waited for whose link broke before all of an exchange had come.
inline constexpr Time peer_loss_wait = 5 * second;

// on_sent of LEAVE; operations have their numbers as tokens, which never get there.
inline constexpr Token goodbye = ~Token{0};

}  // namespace worker

class Worker::Impl {
 public:
  Impl(const JobConfig& config, std::uint32_t rank, WorkerWorld& world, BufferPool& pool);

  // Events (worker.cpp).
  void attach_server(LinkId link, std::uint32_t index);
  void attach_coordinator(LinkId link);
  void attach_peer(LinkId link, std::uint32_t rank);
  void report_rank(std::uint32_t rank, const std::string& why);
  void attach_returned(LinkId link, std::uint32_t index, std::uint32_t attempt, const wire::ServerId& process);
  void server_unreachable(std::uint32_t server, std::uint32_t attempt);
  Placement on_header(LinkId link, const wire::Header& header);
  Buffer spare(std::size_t bytes) { return pool_.take(bytes); }
  Status on_payload(LinkId link);
  void on_sent(Token token);
  void on_summed(Token token);
  void on_lost(LinkId link, const Status& why);
  void on_time(Time now);
  Time deadline() const {
    return std::min({look_at_, checks_.empty() ? never : checks_.begin()->first, inquiry_.until, acknowledge_at_,
                     give_up_at_, peer_losses_.empty() ? never : peer_losses_.begin()->first});
  }
  void leave();
  bool left() const { return goodbye_said_ && goodbyes_unsent_ == 0; }
  bool serves() const;
  void abort(const std::string& reason);
  void watch_waits() { look_at_ = now_; }
  Status loss_of(std::uint32_t group) const;
  const std::vector<std::pair<std::uint32_t, Status>>& lost() const { return lost_; }
  const Status& end_of_job() const { return broken_; }

  // Operations (operations.cpp).
  std::uint32_t make_group(std::vector<std::uint32_t> ranks, std::vector<std::uint32_t> needed,
                           const std::string& name);
  const Hash128& id_of(std::uint32_t group) const { return groups_.at(group)->id; }
  // Beside that of all ranks.
  bool has_made_groups() const { return groups_.size() > 1; }
  void submit(Submission submission);
  void contributed(std::uint64_t handle, Range range);
  void set_window(const CongestionController::Setting& window);
  std::size_t open_operations() const { return operations_.size(); }

 private:
  using Operation = worker::Operation;
  using Group = worker::Group;
  using Part = worker::Part;
  using Cursor = worker::Cursor;
  using Block = worker::Block;
  using LinkState = worker::LinkState;

  // Frames (worker.cpp).
  Status check_server_header(const LinkState& link, const wire::Header& header);
  Status check_coordinator_header(const wire::Header& header) const;
  bool awaits_admission(Operation& operation, std::uint32_t server, const wire::Header& header) const;
  Status check_result(Operation& operation, std::uint32_t server, const wire::Header& header) const;
  Status check_peer_header(const LinkState& link, const wire::Header& header);
  Status receive_from_server(LinkState& link);
  Status receive_from_coordinator(LinkState& link);
  Status receive_from_peer(LinkState& link);
  void receive_result(Operation& operation, LinkState& link);
  Status receive_failure(Operation& operation, const LinkState& link);
  void lost_rank(std::uint32_t rank, Status why);
  void break_job(Status why);
  void report(wire::Loss::Kind kind, std::uint32_t index, const std::string& why);
  void say_goodbye_if_done();

  // Operations (operations.cpp).
  Status problem_with(const Submission& submission) const;
  Status too_much(const char* what, const char* limit, std::size_t allowed, const std::string& advice) const;
  void finish_alone(const Submission& submission);
  void measure(Operation& operation);
  void plan(Operation& operation);
  void follow_reference(Operation& operation);
  void open(Operation& operation);
  void announce(std::uint32_t server, std::uint32_t group);
  // The bytes that travel with the opening at this server, which count from now on.
  std::span<const std::byte> take_inline(Operation& operation, Part& part);
  void begin_window(std::uint32_t server);  // as the weights of the epoch have it
  static bool may_send(const worker::ServerLink& link, std::uint64_t length);
  bool has_enough_on_its_way(const Operation& operation, const Part& part, std::uint64_t length) const;
  bool has_smaller_segments(const Part& part) const;
  void pump(std::uint32_t server);
  void pump_others(const Operation& operation, std::uint32_t server);
  // The part is the next in its server's order; rank 0's worker measures the operation from now on, until it ends.
  void admitted(Operation& operation, Part& part);
  void note_sending(Operation& operation);
  void answered_eager(Part& part);
  void answered_part(Part& part);
  std::uint64_t retransmissions() const;
  // Ends the handle and forgets the operation.
  void end(Operation& operation, Status status);
  void end_if_done(Operation& operation);
  void check_again(Operation& operation, Time when);
  void detach(const Operation& operation);
  void send_to_server(std::uint32_t server, wire::Header header, wire::Bytes owned = {},
                      std::span<const std::byte> borrowed = {}, Token token = 0);
  std::string describe(const Operation& operation) const;

  // Stalls (progress.cpp).
  Time last_move(const Operation& operation) const;
  void check_progress(Operation& operation);
  void ask_about(Operation& operation);
  void ask_about_the_rest();
  Status receive_late(const LinkState& link);
  void end_inquiry();
  void time_out(Operation& operation);
  void ask_home_to_fail(Operation& operation, Status why);
  std::string stall_text(const std::vector<const Operation*>& operations) const;
  std::string why_still(const Operation& operation, const worker::Inquiry& inquiry) const;
  void add_blocks(const Operation& operation, std::vector<std::string>& reasons) const;

  // Waits (waits.cpp).
  void look_for_waits();
  // In no order. None if one of them is not open.
  std::optional<std::vector<wire::Wait>> described(std::vector<std::uint64_t> handles) const;
  bool has_called(const wire::Call& call) const;
  Status receive_probe(const LinkState& link);
  Status receive_circle(const LinkState& link);
  void tell_coordinator(wire::Type type, wire::Bytes bytes);

  // Blocks (block_transfer.cpp).
  Status receive_sizes(std::uint64_t number, const LinkState& link);
  Status start_exchange(Operation& operation, const wire::Sizes& sizes, bool through_home);
  void start_blocks(Operation& operation, std::size_t member);
  void pump_block(Operation& operation, std::size_t member);
  Status receive_grant(std::uint32_t rank, const wire::Header& header);
  void receive_block(std::uint32_t rank, LinkState& link);
  void end_exchange_if_done(Operation& operation);
  // Those that lack what this rank, whose link is gone, has sent or would have. Whether there are any.
  bool fail_exchanges_with(std::uint32_t rank);
  Operation* exchanging(std::uint64_t exchange);

  // The ring (ring.cpp).
  bool takes_ring(const Operation& operation) const;
  Status start_ring(Operation& operation, std::uint64_t exchange);
  void start_ring_link(Operation& operation, std::uint32_t rank);
  std::uint32_t ring_neighbour(const Operation& operation, std::size_t distance) const;
  void pump_ring(Operation& operation);
  Status check_ring_data(const Operation& operation, std::uint32_t rank, const wire::Header& header) const;
  Status receive_ring_grant(Operation& operation, std::uint32_t rank, std::uint32_t credit);
  void receive_ring_data(Operation& operation, LinkState& link);
  void ring_processed(Operation& operation);
  void end_ring_if_done(Operation& operation);
  bool heard(std::uint64_t exchange) const;
  void forget_grants(std::uint64_t exchange);
  void send_to_peer(std::uint32_t rank, wire::Header header, std::span<const std::byte> borrowed = {}, Token token = 0);

  // A new epoch (epoch.cpp).
  Status receive_epoch(const LinkState& link);
  std::vector<std::uint64_t> suspend_operations();
  void note_progress(Operation& operation);
  void tell_servers(std::uint8_t flags, const wire::Bytes& epoch);
  void reset_servers(const std::vector<std::uint32_t>& weights);
  void close_server(std::uint32_t server);
  void reopen(Operation& operation);
  // A reopened exchange whose number is not known here.
  bool unsized(const Operation& operation) const;
  void sized();
  Status receive_admit(Operation& operation, LinkState& link);

  // A server that comes back (reconnection.cpp).
  Status receive_reconnect(const LinkState& link);
  void tell_reached(const wire::Reached& reached, std::uint8_t flags);

  // What others may need (retained_results.cpp).
  void keep_input(Operation& operation);
  void keep_result(Part& part, LinkState& link, Range segment);
  // After its handle is done: for those who may lack its result.
  void keep_finished(std::unique_ptr<Operation> operation);
  std::span<const std::byte> contribution(Operation& operation, Range segment, wire::Bytes& copied) const;
  Status receive_have(const LinkState& link);
  bool has_result_of(const Operation& operation, const Part& part) const;
  void settle(Operation& operation, std::uint32_t server);
  void forget_kept(Operation& operation);
  void forget(std::uint64_t number);
  void forget_finished(const std::function<bool(const Operation&)>& which);
  void drop_soon(std::uint32_t home, std::uint64_t number);
  void tell_ended(std::uint32_t server);
  void acknowledge(Time came_by);
  void acknowledge_soon(worker::ServerLink& server);

  // Among the open ones; also among the finished ones; among those that have not failed.
  Operation* find(std::uint64_t number);
  Operation* find_any(std::uint64_t number);
  Operation* find_going_on(std::uint64_t number);

  JobConfig config_;  // its weights are those of the epoch
  std::uint32_t epoch_ = 0;
  bool reopening_ = false;  // what comes from an epoch before is being opened again
  const std::uint32_t rank_;
  WorkerWorld& world_;
  BufferPool& pool_;
  Time now_ = 0;

  std::vector<worker::ServerLink> servers_;  // by index
  std::vector<worker::PeerLink> peers_;      // by rank
  std::optional<LinkId> coordinator_;
  std::unordered_map<LinkId, LinkState> links_;

  std::vector<std::unique_ptr<Group>> groups_;              // by number; 0: all ranks
  std::unordered_map<Hash128, std::uint64_t> made_;         // how often (ranks, name) was made
  std::unordered_map<Hash128, std::uint32_t> occurrences_;  // by key of occurrence 0

  std::unordered_map<std::uint64_t, std::unique_ptr<Operation>> operations_;  // by number
  std::unordered_map<std::uint64_t, std::unique_ptr<Operation>> finished_;    // those that others may need, by number
  std::unordered_map<std::uint64_t, std::uint64_t> streamed_;                 // of open operations: handle → number
  std::uint64_t next_number_ = 1;
  std::size_t open_bytes_ = 0;    // of the records of the operations
  std::size_t failed_bytes_ = 0;  // of those that were opened as failed: their handles are done
  std::size_t groups_bytes_ = 0;
  std::set<std::pair<Time, std::uint64_t>> checks_;
  worker::Inquiry inquiry_;
  Time look_at_ = never;            // when it is looked next what those who use this worker wait for
  std::uint64_t seen_changes_ = 0;  // WorkerWorld::Waiting, when that was last done, and since when they are the same
  Time unchanged_since_ = 0;
  std::uint64_t told_changes_ = 0;  // the coordinator
  // How long a server may not know that a result is here, unless something else is sent to it.
  static constexpr Time acknowledge_after = second / 200;
  Time acknowledge_at_ = never;
  Time give_up_at_ = never;  // the end of the wait for those who may need a finished operation
  std::set<std::pair<Time, std::uint32_t>> peer_losses_;  // when exchanges that lack something of these ranks fail

  std::unordered_map<std::uint64_t, std::uint64_t> exchanges_;  // exchange → number
  // Grants that came before SIZES: (exchange, rank) → bytes.
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::uint64_t> early_grants_;
  std::size_t unsized_ = 0;  // reopened exchanges whose number may be one of those that others have heard before

  CongestionController congestion_;  // rank 0's alone is used
  std::size_t controlled_ = 0;       // operations that it follows

  std::optional<CongestionController::Setting> window_;  // as rank 0's worker has last set it; nothing: never

  Token next_sum_ = 1;
  std::unordered_map<Token, std::uint64_t> summing_;  // token → number

  std::vector<std::pair<std::uint32_t, Status>> lost_;  // ranks, in the order of their loss, up to the job's
  Status broken_;                                       // not ok: nothing works any more
  bool leaving_ = false;
  bool goodbye_said_ = false;
  std::size_t goodbyes_unsent_ = 0;
  bool ended_ = false;
};

}  // namespace shoal
