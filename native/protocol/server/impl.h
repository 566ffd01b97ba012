// The server machine's parts; server.cpp turns events into calls of these, openings.cpp says which openings can
// be, operations.cpp lets operations live, epoch.cpp knows who has which results and goes on where
// another server was lost.
#pragma once

#include <algorithm>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "protocol/server/server.h"
#include "protocol/server/state.h"
#include "wire/late.h"

namespace shoal {

class Server::Impl {
 public:
  Impl(const JobConfig& config, std::uint32_t index, ServerWorld& world, BufferPool& pool);

  // Events (server.cpp).
  void attach_worker(LinkId link, std::uint32_t rank);
  Placement on_header(LinkId link, const wire::Header& header);
  Buffer spare(std::size_t bytes) { return pool_.take(bytes); }
  Status on_payload(LinkId link);
  void on_sent(Token token);
  void on_summed(Token token);
  void on_lost(LinkId link);
  void on_time(Time now);
  Time deadline() const {
    return std::min({alarms_.empty() ? never : alarms_.begin()->first, losses_.empty() ? never : losses_.begin()->first,
                     tell_settled_at_});
  }
  void limit(std::size_t table_bytes, std::uint32_t most_credit);
  std::size_t operations() const { return operations_.size(); }
  std::size_t table_bytes() const { return table_bytes_; }

 private:
  using Member = server::Member;
  using Operation = server::Operation;
  using Segment = server::Segment;
  using WorkerState = server::WorkerState;

  struct Place {
    Operation* operation = nullptr;
    std::size_t member = 0;
  };

  // A sum that is being carried out.
  struct Summing {
    std::uint32_t epoch = 0;
    std::uint64_t serial = 0;
    const server::Group* group = nullptr;
    std::uint64_t number = 0;
    Segment segment;
  };

  // Frames (server.cpp).
  Status check_header(const WorkerState& worker, const wire::Header& header) const;
  Status check_data(const WorkerState& worker, const wire::Header& header) const;
  Status check_epoch(const WorkerState& worker, const wire::Header& header) const;
  // Of an epoch before: it was on its way when this one began.
  bool is_stale(const wire::Header& header) const;
  // The longest opening of an operation of an epoch before.
  std::size_t carried_limit() const;
  Status check_window(const WorkerState& worker, const wire::Header& header) const;
  Range shard_for(const wire::Opening& opening) const;
  // What may come with this opening.
  std::uint32_t inline_of(const wire::Opening& opening) const;
  Status receive_open(std::uint32_t rank);
  Status check_carried(const WorkerState& from, const wire::Opening& opening) const;
  // Whether tables may take this one more. What they may: beyond it links end.
  bool has_room(const WorkerState& from, const wire::Opening& opening) const;
  std::size_t most_table_bytes() const;
  // Tables take more than they may.
  Status too_much() const;
  void refuse(Operation& operation, std::size_t member);
  Status receive_data(std::uint32_t rank);
  Status receive_fail(std::uint32_t rank);
  Status receive_group(std::uint32_t rank);
  void receive_drop(std::uint32_t rank);
  void receive_leave(std::uint32_t rank);
  void receive_window(const wire::Header& header);
  void set_credit(std::uint32_t wanted);
  void compete(bool on);
  void tell_to_compete(std::uint32_t rank);
  // Fails what it is a member of and has not opened; what others open from now on fails too.
  void be_absent(std::uint32_t rank, Code absence);
  Status absence_status(const Operation& operation, std::uint32_t rank) const;

  // Stalls (progress.cpp).
  void receive_ask(std::uint32_t rank);
  void add_late(const Operation& operation, wire::Late& late) const;
  void add_late(std::uint32_t rank, wire::Late::Why why, wire::Late& late) const;

  // Operations (operations.cpp).
  Operation& find_or_make(const wire::Opening& opening, const server::Group& group);
  void opened(Operation& operation, std::size_t member);
  void admit(Operation& operation);
  bool first_result_admits(const Operation& operation) const;
  void tell_admitted(const Operation& operation);
  void tell_untold();
  void exchange(Operation& operation);
  bool takes_ring(const wire::Opening& opening) const;
  void add_contribution(Operation& operation, std::uint64_t number, std::size_t member,
                        server::Contribution contribution);
  void start_sum(Operation& operation, std::uint64_t number);
  void finish_segment(Operation& operation, std::uint64_t number, Segment segment);
  void send_results(Operation& operation, std::uint64_t number, Segment segment);
  // No more segments here: the operation goes, or closes.
  void end_flow(Operation& operation);
  void end_outgoing(Token token);
  // The member has its answer to what it sent: counts its credit and inline data as answered.
  void answer(Operation& operation, std::size_t member, std::uint32_t credit);
  void fail(Operation& operation, Status why);
  void tell_failure(Operation& operation, std::size_t member);
  void release_finished(Operation& operation);
  // Stops the flow, gives contributions and their credit back.
  void release(Operation& operation);
  void refund(const server::Group& group, Segment& segment);
  // Forgets one member's number. The operation may be gone afterwards.
  void drop(Operation& operation, std::size_t member);
  void remove_if_done(Operation& operation);
  void remove(Operation& operation);
  void set_alarm(Operation& operation, Time when);
  void alarm(Operation& operation);

  // Epochs (epoch.cpp).
  Status receive_epoch(std::uint32_t rank);
  void begin_epoch(std::uint32_t epoch, const std::vector<std::uint32_t>& weights);
  bool is_complete(const Member& member) const;
  bool all_complete(const Operation& operation) const;
  bool has_results(const Operation& operation) const;
  void settle_what_all_have();
  void settle(Operation& operation);
  static std::vector<std::uint64_t> cuts_of(const Operation& operation, const std::vector<RangeSet>& have);
  static std::vector<server::Piece> missing_pieces(const Operation& operation);
  void ask_for(Operation& operation, const std::vector<server::Piece>& pieces);
  void resume(Operation& operation);

  // Receipts (epoch.cpp).
  void begin_receipt(const Operation& operation);
  void expect_receipt(std::uint64_t serial, std::uint64_t segment);
  void note_sent(std::uint32_t rank, std::uint64_t serial, std::uint64_t segment);
  void end_receipt(std::uint64_t serial);
  void acknowledge(std::uint32_t rank, std::uint32_t count);
  void settle_segments(std::uint64_t serial, server::Receipt& receipt);
  void settle_if_all_have(std::uint64_t serial);
  std::uint32_t settled_segments(const Operation& operation, std::size_t member) const;
  void tell_settled(std::uint32_t rank, std::uint64_t number, bool now);
  void send_settled(std::uint32_t rank);
  void send_settled_along(std::uint32_t rank);

  // Sending. False: the worker's link is gone, and no on_sent will come.
  bool send(std::uint32_t rank, wire::Header header, wire::Bytes owned = {}, std::span<const std::byte> borrowed = {},
            Token token = 0);
  bool send_block(std::uint32_t rank, std::uint64_t number, DType dtype, Buffer buffer, std::size_t bytes);
  void grant(std::uint32_t rank, std::uint32_t credit);
  // Of what the member spent, what it gets back: less while its credit is above the window.
  std::uint32_t give_back(std::uint32_t rank, std::uint32_t spent);

  WorkerState& worker(std::uint32_t rank) { return workers_[rank]; }
  std::uint32_t rank_of(LinkId link) const { return ranks_.at(link); }
  std::optional<Place> place(std::uint32_t rank, std::uint64_t number);

  JobConfig config_;  // its weights are those of the epoch
  std::uint32_t epoch_ = 0;
  const std::uint32_t index_;
  JobConfig::Window window_;  // at first
  std::uint32_t credit_;      // of every worker, from now on
  std::uint32_t wanted_credit_;
  std::uint32_t most_credit_ = ~std::uint32_t{0};
  bool competing_ = false;  // and its links
  bool shared_ = false;     // its limits are those of a process that other jobs share
  ServerWorld& world_;
  BufferPool& pool_;
  Time now_ = 0;

  std::vector<WorkerState> workers_;  // by rank
  std::unordered_map<LinkId, std::uint32_t> ranks_;
  std::unordered_map<Hash128, std::unique_ptr<server::Group>> groups_;
  Hash128 world_group_;

  std::unordered_map<std::uint64_t, std::unique_ptr<Operation>> operations_;  // by serial
  std::unordered_map<Hash128, std::uint64_t> serials_;                        // by key
  std::uint64_t next_serial_ = 1;
  std::uint64_t next_exchange_ = 1;
  std::vector<std::uint64_t> untold_;  // serials, as admitted, of those whose members hear of it with the first result
  std::size_t table_bytes_ = 0;        // of groups and operations
  std::size_t groups_bytes_ = 0;       // of groups alone
  std::size_t kept_bytes_ = 0;         // what tables had when their limit was lowered, as far as they still have it
  std::set<std::pair<Time, std::uint64_t>> alarms_;
  std::set<std::pair<Time, std::uint32_t>> losses_;              // when ranks whose links broke count as absent
  std::unordered_map<std::uint64_t, server::Receipt> receipts_;  // by serial
  Time tell_settled_at_ = never;

  Token next_token_ = 1;
  std::unordered_map<Token, server::Outgoing> outgoing_;
  std::unordered_map<Token, Summing> summing_;
};

}  // namespace shoal
