// The door for frameworks that call from C++, and steps of gradients through it: rank 0 of a job of two calls through
// the door, rank 1's engine is called as it is.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "doors/averager.h"
#include "doors/door.h"
#include "doors/pass.h"
#include "doors/short_waits.h"
#include "tests/engine_job.h"

namespace shoal::tests {
namespace {

using doors::Averager;
using doors::GradientPlan;
using doors::Pass;

// Two gradients of float32, 48 and 100 elements, and buffers of 128 bytes: the first gradient touches buffers 0 and 1.
constexpr std::size_t first_elements = 48;
constexpr std::size_t second_elements = 100;
constexpr std::size_t second_begin = 192;
constexpr std::size_t arena_bytes = 640;

GradientPlan plan_of(std::uint8_t digest = 7) {
  GradientPlan plan;
  plan.arenas = {{DType::float32, arena_bytes}};
  plan.buffers = {{"buffer0", 0, 0, 128}, {"buffer1", 0, 128, arena_bytes}};
  plan.places = {{0, 0, first_elements * 4, 0, 2}, {0, second_begin, second_elements * 4, 1, 2}};
  plan.votes = {digest, static_cast<std::uint8_t>(255 - digest)};
  return plan;
}

// A job whose rank 0 has the door.
struct Doors {
  Doors() {
    doors::open({job.engines[0].get(), "rank 0 (a)", 30 * second, {2, 0}});
    completions = std::make_shared<engine::Completions>();
    averager = std::make_shared<Averager>(Pass::Terms{"model0", 0, Operator::mean}, plan_of(), completions, 42);
  }
  ~Doors() { doors::forget(job.engines[0].get()); }

  std::shared_ptr<Pass> begin() {
    auto begun = std::make_shared<std::promise<std::shared_ptr<Pass>>>();
    averager->begin([begun](std::shared_ptr<Pass> pass, const std::string&) { begun->set_value(std::move(pass)); });
    return begun->get_future().get();
  }

  std::shared_ptr<Operation> other(const std::string& label, std::size_t elements, float value) {
    arrays.push_back(std::make_unique<std::vector<float>>(elements, value));
    Submission submission = of(Collective::all_reduce, "model0." + label, *arrays.back(), arrays.back().get());
    submission.op = Operator::mean;
    return job.engines[1]->submit(std::move(submission));
  }

  std::shared_ptr<Operation> others_layout(std::uint8_t digest = 7) {
    votes = {digest, static_cast<std::uint8_t>(255 - digest)};
    Submission submission;
    submission.collective = Collective::all_reduce;
    submission.name = "model0.layout";
    submission.op = Operator::max;
    submission.dtype = DType::uint8;
    submission.shape = {2};
    submission.input = submission.output = reinterpret_cast<std::byte*>(votes.data());
    submission.input_bytes = submission.output_bytes = 2;
    submission.timeout = 30 * second;
    return job.engines[1]->submit(std::move(submission));
  }

  Job job{2, 0, 1};
  std::shared_ptr<engine::Completions> completions;
  std::shared_ptr<Averager> averager;
  std::vector<std::unique_ptr<std::vector<float>>> arrays;
  std::vector<std::uint8_t> votes;
};

Status finished(const std::shared_ptr<Pass>& pass) {
  auto ended = std::make_shared<std::promise<Status>>();
  pass->finish([ended](const Status& status) { ended->set_value(status); });
  return ended->get_future().get();
}

void bring(const std::shared_ptr<Pass>& pass, std::uint32_t gradient, std::size_t elements, float value) {
  const std::vector<float> array(elements, value);
  CHECK_EQ(pass->ready(gradient, array.data(), elements * 4).message, "");
}

bool holds(const Pass& pass, std::uint32_t gradient, std::size_t elements, float value) {
  const auto* const begin = reinterpret_cast<const float*>(pass.slot(gradient));
  return std::all_of(begin, begin + elements, [value](float element) { return element == value; });
}

TEST(a_step_averages_gradients_that_come_in_any_order_and_tells_how_they_came) {
  Doors doors;
  const std::shared_ptr<Pass> pass = doors.begin();
  bring(pass, 1, second_elements, 4.0F);
  bring(pass, 0, first_elements, 2.0F);
  const auto layout = doors.others_layout();
  const auto buffer0 = doors.other("buffer0", 32, 4.0F);
  const auto buffer1 = doors.other("buffer1", 128, 6.0F);
  CHECK_EQ(finished(pass).message, "");
  CHECK(holds(*pass, 1, second_elements, 5.0F));
  CHECK(!holds(*pass, 0, first_elements, 3.0F));  // its last elements are in buffer 1
  CHECK(holds(*pass, 0, 32, 3.0F));
  for (const auto& operation : {layout, buffer0, buffer1}) {
    expect_well(operation);
  }
  CHECK(doors.completions->next(std::chrono::seconds(10)) == 42U);
  const std::optional<Averager::Event> event = doors.averager->next_event();
  CHECK(event.has_value() && event->kind == Averager::Event::Kind::order && event->well);
  CHECK(event->arrivals == (std::vector<std::int64_t>{1, 0}));
}

TEST(the_next_step_begins_when_the_order_is_known_and_has_the_memory_of_one_that_has_gone) {
  Doors doors;
  const auto call_others = [&doors] {
    for (const auto& operation :
         {doors.others_layout(), doors.other("buffer0", 32, 0), doors.other("buffer1", 128, 0)}) {
      outcome(operation);
    }
  };
  doors.begin()->abandon();
  call_others();
  CHECK(doors.completions->next(std::chrono::seconds(10)) == 42U);
  CHECK(!doors.averager->next_event()->well);
  auto begun = std::make_shared<std::promise<std::shared_ptr<Pass>>>();
  doors.averager->begin([begun](std::shared_ptr<Pass> pass, const std::string&) { begun->set_value(std::move(pass)); });
  std::future<std::shared_ptr<Pass>> next = begun->get_future();
  CHECK(next.wait_for(std::chrono::milliseconds(20)) == std::future_status::timeout);
  doors.averager->arrange(plan_of());
  std::shared_ptr<Pass> pass = next.get();
  const std::byte* const place = pass->slot(0);
  pass->abandon();
  call_others();
  const std::weak_ptr<Pass> gone = pass;
  pass.reset();
  while (!gone.expired()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(doors.begin()->slot(0) == place);
}

TEST(a_step_that_breaks_off_is_heard_by_the_other_rank) {
  Doors doors;
  const std::shared_ptr<Pass> pass = doors.begin();
  bring(pass, 0, first_elements, 2.0F);
  const auto layout = doors.others_layout();
  const auto buffer0 = doors.other("buffer0", 32, 4.0F);
  const auto buffer1 = doors.other("buffer1", 128, 6.0F);
  pass->abandon();
  expect_well(layout);
  expect_well(buffer0);
  CHECK(outcome(buffer1).message.find("broke off before all gradients were there") != std::string::npos);
  CHECK(!pass->ready(1, nullptr, second_elements * 4).ok());
}

TEST(ranks_with_other_plans_hear_it_when_somebody_has_said_how_they_differ) {
  Doors doors;
  const std::shared_ptr<Pass> pass = doors.begin();
  bring(pass, 0, first_elements, 2.0F);
  bring(pass, 1, second_elements, 2.0F);
  expect_well(doors.others_layout(9));
  const auto buffer0 = doors.other("buffer0", 32, 4.0F);
  const auto buffer1 = doors.other("buffer1", 128, 6.0F);
  auto ended = std::async(std::launch::async, [&] { return finished(pass); });
  CHECK(doors.completions->next(std::chrono::seconds(10)) == 42U);
  const std::optional<Averager::Event> event = doors.averager->next_event();
  CHECK(event.has_value() && event->kind == Averager::Event::Kind::disagreed);
  CHECK(ended.wait_for(std::chrono::milliseconds(20)) == std::future_status::timeout);
  event->pass->explain("rank 0 has a, rank 1 has b");
  const Status status = ended.get();
  CHECK(status.code == Code::mismatch);
  CHECK_EQ(status.message, "rank 0 has a, rank 1 has b");
}

TEST(what_cannot_be_of_the_step_is_refused) {
  Doors doors;
  const std::shared_ptr<Pass> pass = doors.begin();
  const std::vector<float> array(first_elements);
  CHECK(pass->ready(2, array.data(), 4).message.find("not of this step") != std::string::npos);
  CHECK(pass->ready(0, array.data(), 4).message.find("has 4 bytes, and had 192") != std::string::npos);
  CHECK(pass->ready(0, array.data(), first_elements * 4).ok());
  CHECK(pass->ready(0, array.data(), first_elements * 4).message.find("twice") != std::string::npos);
  const auto buffer0 = doors.other("buffer0", 32, 0);
  const auto buffer1 = doors.other("buffer1", 128, 0);
  expect_well(doors.others_layout());
  CHECK(finished(pass).message.find("a gradient has not come") != std::string::npos);
}

TEST(a_call_ends_once_with_a_reason_where_there_is_no_job_or_no_such_group) {
  std::vector<float> array(4, 1.0F);
  const auto reason = [&array](std::int64_t group) {
    std::promise<std::string> ended;
    doors::call(group, of(Collective::all_reduce, "x", array, &array),
                [&ended](const doors::Outcome& outcome) { ended.set_value(outcome.status.message); });
    return ended.get_future().get();
  };
  CHECK_EQ(reason(0), "allreduce of 'x': this process has not joined a job: call shoal.init() first");
  std::int64_t old_group = 0;
  {
    Doors doors;
    old_group = doors::add_group(0, {2, 0}, second);
    CHECK_EQ(doors::place(old_group).members, 2U);
    CHECK(reason(999).find("it was made for another job") != std::string::npos);
  }
  Doors another;
  CHECK(reason(old_group).find("it was made for another job") != std::string::npos);
}

TEST(a_place_that_is_not_the_expected_one_is_told_whole) {
  const auto why = [](doors::ExpectedPlace expected) {
    doors::Place found;
    std::string text;
    const bool well = doors::table().place(0, expected, &found, doors::sink_of(text));
    CHECK_EQ(well, text.empty());
    return text;
  };
  const std::string name(1000, 'x');
  const auto what = [&name] {
    std::string text;
    doors::table().describe("gradients", name.data(), name.size(), doors::sink_of(text));
    return text;
  };
  CHECK_EQ(why({}), "this process has not joined a job: call shoal.init() first");
  CHECK_EQ(what(), "gradients of '" + name + "'");
  Doors doors;
  CHECK_EQ(why({}), "");
  CHECK_EQ(why({2, 0}), "");
  CHECK(why({3, -1}).find("for 3 ranks, and this is 2 ranks: trace the function again") != std::string::npos);
  CHECK(why({2, 1}).find("for number 1 of 2 ranks, and this is number 0 of 2 ranks") != std::string::npos);
  CHECK(why({1, -1}).find("for 1 rank, and this is 2 ranks") != std::string::npos);
  CHECK_EQ(what(), "gradients of '" + name + "' on " + doors::here());
}

// On one machine an operation is carried on by whoever waits in its group.
TEST(an_operation_ends_while_another_one_of_another_group_is_open) {
  constexpr int chain = 20;  // of which none may take the second after which a thread looks up from its group
  Job job{3, 0, 1, 4096, {0, 0, 0}};
  doors::open({job.engines[0].get(), "rank 0 (a)", 30 * second, {3, 0}});
  const std::uint32_t open_group = job.engines[0]->make_group({0, 1}, "open");
  const std::uint32_t chain_group = job.engines[0]->make_group({0, 2}, "chain");
  const auto call = [](std::int64_t number, const std::string& name, std::vector<float>& array) {
    auto ended = std::make_shared<std::promise<Status>>();
    Submission submission = of(Collective::all_reduce, name, array, &array);
    submission.op = Operator::sum;
    doors::call(number, std::move(submission),
                [ended](const doors::Outcome& outcome) { ended->set_value(outcome.status); });
    return ended->get_future();
  };
  const auto other = [&job](std::size_t rank, std::uint32_t group, const std::string& name, std::vector<float>& array) {
    Submission submission = of(Collective::all_reduce, name, array, &array);
    submission.op = Operator::sum;
    submission.group = group;
    return job.engines[rank]->submit(std::move(submission));
  };
  const std::int64_t open_number = doors::add_group(open_group, {2, 0}, 30 * second);
  const std::int64_t chain_number = doors::add_group(chain_group, {2, 0}, 30 * second);
  std::vector<float> mine(4, 1.0F);
  std::vector<float> others(4, 1.0F);
  std::future<Status> open = call(open_number, "open", mine);
  const auto began = std::chrono::steady_clock::now();
  const std::uint32_t seen_by_other = job.engines[2]->make_group({0, 2}, "chain");
  for (int number = 0; number < chain; ++number) {
    std::vector<float> here(4, 1.0F);
    std::vector<float> there(4, 2.0F);
    std::future<Status> ended = call(chain_number, "chain" + std::to_string(number), here);
    expect_well(other(2, seen_by_other, "chain" + std::to_string(number), there));
    CHECK_EQ(ended.get().message, "");
    CHECK(here == std::vector<float>(4, 3.0F));
  }
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(chain / 2));
  CHECK(open.wait_for(std::chrono::seconds(0)) == std::future_status::timeout);
  expect_well(other(1, job.engines[1]->make_group({0, 1}, "open"), "open", others));
  CHECK_EQ(open.get().message, "");
  doors::forget(job.engines[0].get());
}

// What follows an operation may wait for what follows another one that has ended at the same time.
TEST(what_follows_an_operation_does_not_keep_back_what_follows_others) {
  constexpr int rounds = 200;  // in some of which both have ended when a thread looks
  Job job{2, 0, 1, 4096, {0, 0}};
  doors::open({job.engines[0].get(), "rank 0 (a)", 30 * second, {2, 0}});
  for (int round = 0; round < rounds; ++round) {
    const auto in_round = [round](const char* which) { return which + std::to_string(round); };
    const auto sum = [](const std::string& name, std::vector<float>& array) {
      Submission submission = of(Collective::all_reduce, name, array, &array);
      submission.op = Operator::sum;
      return submission;
    };
    std::vector<std::vector<float>> mine(2, std::vector<float>(4, 1.0F));
    std::vector<std::vector<float>> others(2, std::vector<float>(4, 2.0F));
    std::promise<void> second_has_followed;
    std::future<void> followed = second_has_followed.get_future();
    std::promise<bool> first_has_followed;
    std::future<bool> well = first_has_followed.get_future();
    doors::call(0, sum(in_round("first"), mine[0]), [&](const doors::Outcome& outcome) {
      first_has_followed.set_value(outcome.status.ok() &&
                                   followed.wait_for(std::chrono::seconds(10)) == std::future_status::ready);
    });
    doors::call(0, sum(in_round("second"), mine[1]), [&](const doors::Outcome&) { second_has_followed.set_value(); });
    const std::shared_ptr<Operation> other_first = job.engines[1]->submit(sum(in_round("first"), others[0]));
    const std::shared_ptr<Operation> other_second = job.engines[1]->submit(sum(in_round("second"), others[1]));
    expect_well(other_first);
    expect_well(other_second);
    CHECK(well.get());
  }
  doors::forget(job.engines[0].get());
}

// How many threads have waited of those that called so many operations, each when the one before had ended.
int waits_in_a_row(doors::ShortWaits& waits, int calls) {
  int waited = 0;
  for (int call = 0; call < calls; ++call) {
    waited += waits.begin(1024) ? 1 : 0;
    waits.end();
  }
  return waited;
}

TEST(threads_wait_for_short_operations_that_are_called_one_after_another) {
  doors::ShortWaits waits;
  CHECK_EQ(waits_in_a_row(waits, 7), 0);
  CHECK_EQ(waits_in_a_row(waits, 1100), 1099);  // but for the 1,024th
  CHECK(!waits.begin(doors::ShortWaits::many_bytes));
  waits.end();
}

TEST(no_thread_waits_where_operations_are_called_together_or_have_taken_long) {
  doors::ShortWaits waits;
  waits_in_a_row(waits, 20);
  CHECK(waits.begin(1024));
  CHECK(!waits.begin(1024));  // while the other is open
  waits.end();
  waits.end();
  CHECK_EQ(waits_in_a_row(waits, 7), 0);
  CHECK(waits.begin(1024));
  waits.waited(false);
  waits.end();
  CHECK_EQ(waits_in_a_row(waits, 4), 0);
  CHECK(!waits.begin(1024));
  CHECK(!waits.begin(1024));  // together, which ends no pause
  waits.end();
  waits.end();
  CHECK_EQ(waits_in_a_row(waits, 9), 0);
  CHECK(waits_in_a_row(waits, 10) > 0);
  for (int in_vain = 0; in_vain < 10; ++in_vain) {
    waits.waited(false);
  }
  CHECK_EQ(waits_in_a_row(waits, 1024), 0);
  waits.waited(true);
  waits.waited(false);
  CHECK_EQ(waits_in_a_row(waits, 15), 0);
  CHECK(waits_in_a_row(waits, 10) > 0);
}

TEST(a_plan_that_does_not_fit_is_refused) {
  const auto problem = [](auto change) {
    GradientPlan plan = plan_of();
    change(plan);
    return doors::problem_with(plan);
  };
  CHECK_EQ(problem([](GradientPlan&) {}), "");
  CHECK(!problem([](GradientPlan& plan) { plan.votes = {1}; }).empty());
  CHECK(!problem([](GradientPlan& plan) { plan.arenas[0].bytes = 639; }).empty());
  CHECK(!problem([](GradientPlan& plan) { plan.buffers[1].end = 641; }).empty());
  CHECK(!problem([](GradientPlan& plan) { plan.places[1].begin = 500; }).empty());
  CHECK(!problem([](GradientPlan& plan) { plan.places[0].end_buffer = 3; }).empty());
}

}  // namespace
}  // namespace shoal::tests

RUN_TESTS()
