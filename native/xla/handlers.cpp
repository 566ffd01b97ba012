#include "xla/handlers.h"

#include <cstring>

namespace shoal::xla {

namespace {

struct Named {
  const char* name;
  Handler* handler;
};

constexpr Named handlers[] = {
    {"shoal.allreduce", all_reduce}, {"shoal.reducescatter", reduce_scatter}, {"shoal.broadcast", broadcast},
    {"shoal.allgather", all_gather}, {"shoal.alltoall", all_to_all},          {"shoal.average", average},
    {"shoal.place", place},
};

}  // namespace

std::string register_handlers(const Api& api) {
  if (api.version.major != major_version) {
    return "XLA's interface is of version " + std::to_string(api.version.major) + ", and Shoal knows " +
           std::to_string(major_version);
  }
  for (const Named& each : handlers) {
    RegisterArguments arguments{sizeof arguments, nullptr,      {each.name, std::strlen(each.name)},
                                {"Host", 4},      nullptr,      nullptr,
                                nullptr,          each.handler, 0};
    if (api.register_handler(&arguments) != nullptr) {
      return std::string("XLA ") + std::to_string(api.version.major) + "." + std::to_string(api.version.minor) +
             " refuses " + each.name;
    }
  }
  return "";
}

}  // namespace shoal::xla
