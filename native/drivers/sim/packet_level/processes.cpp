#include "drivers/sim/packet_level/processes.h"

#include <algorithm>

namespace shoal::sim::packet_level {

void Process::do_later(std::function<void()> body) {
  Work work;
  work.body = std::move(body);
  add(std::move(work));
}

void Process::do_at(Time when, std::function<void()> body) {
  starts_.push_back(std::move(body));
  timeline_.at(when, *this, start);
}

void Process::send(LinkId link, const wire::Header& header, wire::Bytes owned, std::size_t borrowed, Token token) {
  if (header.length != owned.size() + borrowed) {
    fail("sends a " + std::string(wire::name_of(header.type)) + " whose length is not that of its payload");
    return;
  }
  Work work;
  work.kind = Work::Kind::write;
  work.cost = cost_of(header);
  work.token = token;
  work.end = &end_of(link);
  work.header = header;
  work.owned = std::move(owned);
  add(std::move(work));
}

void Process::sum(const Sum& sum) {
  Work work;
  work.kind = Work::Kind::sum;
  work.cost = cost_of_bytes(static_cast<double>(sum.count * size_of(sum.dtype) * sum.sources.size()));
  work.token = sum.token;
  add(std::move(work));
}

void Process::close(LinkId link) { fail("closes its link to " + end_of(link).other_->process_->name()); }

std::uint64_t Process::retransmissions(LinkId link) const {
  const Flow* flow = ends_[link]->flow_;
  return flow == nullptr ? 0 : flow->retransmitted();
}

void Process::happen(const Event& event) {
  switch (event.what) {
    case work_done: {
      Work work = std::move(work_.front());
      work_.pop_front();
      carry_out(work);
      start_next();
      break;
    }
    case wake:
      if (event.when == wake_) {
        wake_ = never;
        turn([] {});
      }
      break;
    case start: {
      const auto body = std::move(starts_.front());
      starts_.pop_front();
      do_later(body);
      break;
    }
  }
}

void Process::add(Work work) {
  work_.push_back(std::move(work));
  if (!busy_ && work_.size() == 1) {
    start_next();
  }
}

void Process::start_next() {
  busy_ = false;
  if (!work_.empty()) {
    timeline_.at(timeline_.now() + work_.front().cost + random_.between(0, costs_.jitter), *this, work_done);
  }
}

void Process::carry_out(Work& work) {
  busy_ = true;
  switch (work.kind) {
    case Work::Kind::take_in:
      take_in(work);
      break;
    case Work::Kind::write:
      work.end->write(work.header, std::move(work.owned));
      if (work.token != 0) {
        turn([&] { machine_->on_sent(work.token); });
      }
      break;
    case Work::Kind::sum:
      turn([&] { machine_->on_summed(work.token); });
      break;
    case Work::Kind::call:
      turn(work.body);
      break;
  }
}

void Process::take_in(Work& work) {
  turn([&] {
    const Placement placement = machine_->on_header(work.end->id_, work.header);
    Status status = placement.status;
    if (status.ok()) {
      std::copy(work.owned.begin(), work.owned.end(), placement.memory);
      status = machine_->on_payload(work.end->id_);
    }
    if (!status.ok()) {
      fail("refuses a " + std::string(wire::name_of(work.header.type)) + ": " + status.message);
    }
  });
}

template <class Body>
void Process::turn(const Body& body) {
  machine_->on_time(timeline_.now());
  body();
  const Time deadline = machine_->deadline();
  if (deadline < wake_) {
    wake_ = std::max(deadline, timeline_.now());
    timeline_.at(wake_, *this, wake);
  }
}

Time Process::cost_of(const wire::Header& header) const {
  return costs_.frame + cost_of_bytes(static_cast<double>(wire::header_bytes + header.length));
}

void Process::fail(const std::string& what) {
  if (failure_.empty()) {
    failure_ = name_ + " " + what;
  }
}

End& Process::end_of(LinkId link) { return *ends_[link]; }

void End::write(const wire::Header& header, wire::Bytes owned) {
  written_ += wire::header_bytes + header.length;
  other_->coming_.push_back({written_, header, std::move(owned)});
  if (flow_ != nullptr) {
    flow_->write(wire::header_bytes + header.length);
  } else {
    other_->arrived(written_);
  }
}

void End::arrived(std::uint64_t end) {
  while (!coming_.empty() && coming_.front().end <= end) {
    Frame& frame = coming_.front();
    Process::Work work;
    work.kind = Process::Work::Kind::take_in;
    work.cost = process_->cost_of(frame.header);
    work.end = this;
    work.header = frame.header;
    work.owned = std::move(frame.owned);
    coming_.pop_front();
    process_->add(std::move(work));
  }
}

Process& Processes::add(HostId host, std::string name) {
  return processes_.emplace_back(fabric_.timeline(), costs_, host, std::move(name), random_, failure_);
}

std::pair<LinkId, LinkId> Processes::join(Process& a, Process& b) {
  for (Process* process : {&a, &b}) {
    End& end = *process->ends_.emplace_back(std::make_unique<End>());
    end.id_ = static_cast<LinkId>(process->ends_.size() - 1);
    end.process_ = process;
  }
  End& near = *a.ends_.back();
  End& far = *b.ends_.back();
  near.other_ = &far;
  far.other_ = &near;
  if (a.host() != b.host()) {
    near.flow_ = &fabric_.add_flow(a.host(), b.host(), far);
    far.flow_ = &fabric_.add_flow(b.host(), a.host(), near);
  }
  return {near.id_, far.id_};
}

void Processes::fail(const std::string& what) {
  if (failure_.empty()) {
    failure_ = what;
  }
}

}  // namespace shoal::sim::packet_level
