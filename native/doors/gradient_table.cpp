#include "doors/gradient_table.h"

#include <memory>
#include <string>

#include "doors/averager.h"
#include "doors/pass.h"

namespace shoal::doors {

namespace {

// What a framework has of a pass.
using Held = std::shared_ptr<Pass>;

Pass& pass_of(void* held) { return **static_cast<Held*>(held); }

void begin_pass(std::int64_t number, Begun begun, void* context) {
  const std::shared_ptr<Averager> averager = find_averager(number);
  if (averager == nullptr) {
    begun(context, nullptr, averager_gone);
    return;
  }
  averager->begin([begun, context](std::shared_ptr<Pass> pass, const std::string& problem) {
    begun(context, pass == nullptr ? nullptr : new Held(std::move(pass)), problem.c_str());
  });
}

void* share_pass(void* held) { return new Held(*static_cast<Held*>(held)); }

void let_go_of_pass(void* held, bool abandons) {
  const std::unique_ptr<Held> gone(static_cast<Held*>(held));
  if (abandons) {
    (*gone)->abandon();
  }
}

bool gradient_ready(void* held, std::uint32_t gradient, const void* data, std::size_t bytes, Sink why) {
  const Status status = pass_of(held).ready(gradient, data, bytes);
  if (!status.ok()) {
    why.write(why.text, status.message.data(), status.message.size());
  }
  return status.ok();
}

void finish_pass(void* held, Ended ended, void* context) {
  pass_of(held).finish([ended, context](const Status& status) {
    End end;
    end.code = static_cast<int>(status.code);
    end.message = status.message.c_str();
    ended(context, &end);
  });
}

void* averaged(void* held, std::uint32_t gradient) { return pass_of(held).slot(gradient); }

}  // namespace

void add_gradient_functions(Table& table) {
  table.begin_pass = begin_pass;
  table.share_pass = share_pass;
  table.let_go_of_pass = let_go_of_pass;
  table.gradient_ready = gradient_ready;
  table.finish_pass = finish_pass;
  table.averaged = averaged;
}

}  // namespace shoal::doors
