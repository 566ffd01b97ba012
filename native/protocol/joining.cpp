#include "protocol/joining.h"

#include <utility>

#include "protocol/agreement.h"
#include "protocol/collectives.h"
#include "protocol/keys.h"

namespace shoal {

bool is_told(const wire::Opening& opening) {
  return !is_of_join(opening.name) && (opening.occurrence & second_of_leaders) == 0;
}

wire::Opening told_of(wire::Opening opening, std::uint32_t caller, const JobConfig& config) {
  if (opening.failed) {
    const Status why = failed_before(opening, caller, config);
    opening.code = why.code;
    opening.rank = why.rank;
    opening.text = why.message;
  }
  return opening;
}

Submission call_of_joined(const wire::Opening& opening, std::uint32_t group, Time timeout, std::uint64_t& zero_bytes) {
  Submission call;
  call.told = true;
  call.group = group;
  call.name = opening.name == unnamed ? std::string() : opening.name;
  call.occurrence = opening.occurrence;
  call.timeout = timeout;
  zero_bytes = 0;
  if (opening.failed) {
    call.failure = opening.text.empty() ? "failed on another rank" : opening.text;
    call.failure_code = opening.code;
    call.failure_rank = opening.rank;
  } else if (opening.collective == Collective::all_reduce || opening.collective == Collective::barrier) {
    call.collective = opening.collective;
    call.op = opening.op;
    call.dtype = opening.dtype;
    call.shape = opening.shape;
    call.divisor = opening.divisor;
    zero_bytes = opening.bytes;
  } else {
    fail_call_of_joined(call, std::string("it has joined (shoal.join), and has nothing for ") +
                                  name_of(opening.collective) +
                                  "; until all ranks have joined, call only all-reduces and barriers in this group");
  }
  return call;
}

void fail_call_of_joined(Submission& call, std::string why) {
  call.collective = Collective::none;
  call.failure = std::move(why);
}

}  // namespace shoal
