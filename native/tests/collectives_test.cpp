// What follows for servers and workers from who contributes and who receives (protocol/collectives.h).
#include "protocol/collectives.h"

#include <string>
#include <vector>

#include "check.h"
#include "protocol/agreement.h"

using namespace shoal;

namespace {

constexpr std::size_t root = 1;

std::vector<Collective> all_collectives() {
  std::vector<Collective> all;
  for (int number = 0; number <= static_cast<int>(Collective::last); ++number) {
    all.push_back(static_cast<Collective>(number));
  }
  return all;
}

}  // namespace

TEST(a_number_beyond_the_last_is_no_collective) {
  const auto beyond = static_cast<Collective>(static_cast<int>(Collective::last) + 1);
  CHECK_EQ(std::string(name_of(beyond)), std::string("an unknown collective"));
  for (const Collective collective : all_collectives()) {
    CHECK(std::string(name_of(collective)) != name_of(beyond));
  }
}

TEST(contributors_wait_where_others_get_what_only_contributors_have) {
  for (const Collective collective : all_collectives()) {
    const bool scatters = collective == Collective::reduce_scatter;
    const bool broadcasts = collective == Collective::broadcast;
    CHECK_EQ(traits_of(collective).needs_contributors(), scatters || broadcasts);
    CHECK_EQ(waits_for_others(collective, root, root), scatters || broadcasts);
    CHECK_EQ(waits_for_others(collective, root + 1, root), scatters);
  }
}

TEST(members_help_each_other_out_or_need_contributors_or_gather) {
  for (const Collective collective : all_collectives()) {
    const CollectiveTraits& traits = traits_of(collective);
    const bool is_nothing = contributors(collective, 2) == 0;
    CHECK_EQ(traits.shares_results() + traits.needs_contributors() + traits.gathers() + is_nothing, 1);
  }
}

TEST(ranks_that_send_elements_as_another_dtype_disagree) {
  wire::Opening one;
  one.collective = Collective::all_reduce;
  one.dtype = DType::float32;
  wire::Opening other = one;
  other.travel_as(DType::bfloat16);
  std::string what;
  CHECK(!agree(one, other, what));
  CHECK_EQ(what, std::string("wire dtype"));
  CHECK_EQ(describe(other), describe(one) + " as bfloat16");
  other.travel_as(DType::float32);
  CHECK(agree(one, other, what));
}

RUN_TESTS()
