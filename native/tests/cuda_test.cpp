// The CUDA driver on a stand-in for CUDA's library (cuda_stand_in.cpp): what holds when, in which stream.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "drivers/cuda/device.h"
#include "drivers/cuda/passage.h"
#include "engine/gate_watch.h"
#include "tests/check.h"
#include "tests/cuda_stand_in.h"
#include "tests/engine_job.h"

namespace {

using namespace shoal;
using namespace shoal::tests;
using cuda::Device;
using cuda::DevicePointer;
using cuda::Library;
using cuda::Passage;
using cuda::Stream;
using cuda::Ways;

constexpr unsigned pause = 2000;  // microseconds

std::shared_ptr<const Library> library() { return Library::load(SHOAL_CUDA_STAND_IN); }

std::shared_ptr<Device> device(int ordinal = 0) { return Device::open(SHOAL_CUDA_STAND_IN, ordinal); }

std::shared_ptr<Ways> ways() { return std::make_shared<Ways>(device()); }

// The program: it has the device's context, and streams.
struct Program {
  explicit Program(std::shared_ptr<const Library> used) : calls(std::move(used)) {
    CHECK_EQ(calls->primary_context_retain(&context, 0), cuda::success);
    CHECK_EQ(calls->context_push(context), cuda::success);
  }
  ~Program() { calls->context_pop(&context); }

  Stream stream() const {
    Stream made = nullptr;
    CHECK_EQ(calls->stream_create(&made, 0, 0), cuda::success);
    return made;
  }
  void launch(Stream stream, std::function<void()> kernel) const {
    auto* const kept = new std::function<void()>(std::move(kernel));
    const auto run = [](void* argument) {
      const std::unique_ptr<std::function<void()>> taken(static_cast<std::function<void()>*>(argument));
      (*taken)();
    };
    CHECK_EQ(calls->launch_host_function(stream, run, kept), cuda::success);
  }

  const std::shared_ptr<const Library> calls;
  cuda::Context context = nullptr;
};

DevicePointer address_of(std::vector<float>& memory) { return reinterpret_cast<DevicePointer>(memory.data()); }
std::byte* bytes_of(std::vector<float>& memory) { return reinterpret_cast<std::byte*>(memory.data()); }
std::size_t size_of(const std::vector<float>& memory) { return memory.size() * sizeof(float); }

template <class Condition>
bool comes_true(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return condition();
}

std::string error_of(const std::function<void()>& attempt) {
  try {
    attempt();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(what_leaves_is_what_the_stream_has_made_before_and_the_gate_opens_when_it_is_there) {
  shoal_stand_in_configure(1, 0, pause, 0);
  const Program program(library());
  const Stream stream = program.stream();
  std::vector<float> there(1000);
  std::vector<float> here(1000);
  Passage passage(ways());
  program.launch(stream, [&] { there.assign(1000, 7); });
  passage.follow(stream);
  passage.bring(bytes_of(here), address_of(there), size_of(here) / 2);
  passage.bring(bytes_of(here) + size_of(here) / 2, address_of(there) + size_of(here) / 2, size_of(here) / 2);
  const Gate gate = passage.depart();
  CHECK(comes_true([&] { return gate.is_open(); }));
  CHECK(here == std::vector<float>(1000, 7));
  CHECK_EQ(gate.done->load() == gate.done_value, false);
  shoal_stand_in_synchronize();
}

TEST(what_one_group_waits_for_holds_up_no_other) {
  shoal_stand_in_configure(2, 0, 50, 0);
  const Program program(library());
  const Stream stuck = program.stream();
  std::atomic<bool> goes_on{false};
  program.launch(stuck, [&] { CHECK(comes_true([&] { return goes_on.load(); })); });
  Passage waits(ways());
  waits.follow(stuck);
  const Gate closed = waits.depart();
  Passage passes(ways());
  passes.follow(program.stream());
  const Gate open = passes.depart();
  CHECK(comes_true([&] { return open.is_open(); }));
  CHECK(!closed.is_open());
  goes_on = true;
  CHECK(comes_true([&] { return closed.is_open(); }));
}

TEST(streams_are_used_again_and_what_is_left_in_them_opens_no_later_gate) {
  shoal_stand_in_configure(2, 0, 0, 0);
  const Program program(library());
  const Stream stuck = program.stream();
  std::atomic<bool> goes_on{false};
  program.launch(stuck, [&] { CHECK(comes_true([&] { return goes_on.load(); })); });
  std::vector<std::shared_ptr<Ways>> all;
  Stream used = nullptr;
  {
    const std::shared_ptr<Ways> first = ways();
    used = first->out();
    Passage passage(first);
    passage.follow(stuck);
    passage.depart();
  }
  while (all.empty() || all.back()->out() != used) {
    all.push_back(ways());
    CHECK(all.size() < 100);
  }
  Passage later(all.back());
  const Gate gate = later.depart();
  CHECK(!gate.is_open());
  goes_on = true;
  CHECK(comes_true([&] { return gate.is_open(); }));
}

TEST(a_gate_of_new_streams_is_closed_whatever_their_word_was_used_for) {
  shoal_stand_in_configure(2, 0, 0, 0);
  const Program program(library());
  const Stream stuck = program.stream();
  std::atomic<bool> goes_on{false};
  std::vector<std::shared_ptr<Ways>> all;
  for (int operation = 0; operation < 20; ++operation) {
    all.push_back(ways());
    Passage passage(all.back());
    const Gate gate = passage.depart();  // with a word that the next streams get
    CHECK(comes_true([&] { return gate.is_open(); }));
    gate.pass();
  }
  program.launch(stuck, [&] { CHECK(comes_true([&] { return goes_on.load(); })); });
  const std::shared_ptr<Ways> made = ways();
  Passage later(made);
  later.follow(stuck);
  const Gate gate = later.depart();
  CHECK(!gate.is_open());
  goes_on = true;
  CHECK(comes_true([&] { return gate.is_open(); }));
}

void what_comes_back_is_there_for_who_follows(bool waits) {
  const Program program(library());
  const Stream stream = program.stream();
  std::vector<float> there(1000, 1);
  std::vector<float> here(1000);
  std::vector<float> seen;
  Passage passage(ways());
  passage.bring(bytes_of(here), address_of(there), size_of(here));
  const Gate gate = passage.depart();
  const auto carry_out = [&] {
    CHECK(comes_true([&] { return gate.is_open(); }));
    here.assign(1000, 5);
    gate.pass();
  };
  std::thread network;
  if (waits) {
    network = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      carry_out();
    });
  } else {
    carry_out();
  }
  passage.begin_return(waits);
  passage.take_back(address_of(there), bytes_of(here), size_of(here));
  passage.end_return();
  passage.follow_back(stream);
  program.launch(stream, [&] { seen = there; });
  passage.wait_until_over();
  CHECK(passage.is_over());
  shoal_stand_in_synchronize();
  CHECK(seen == std::vector<float>(1000, 5));
  if (network.joinable()) {
    network.join();
  }
}

TEST(what_comes_back_is_there_for_a_stream_that_follows_also_if_that_waits_for_the_network) {
  for (const int one_queue : {0, 1}) {
    shoal_stand_in_configure(3, 0, pause, one_queue);
    what_comes_back_is_there_for_who_follows(false);
    what_comes_back_is_there_for_who_follows(true);
  }
}

TEST(where_streams_cannot_write_words_gates_open_all_the_same) {
  shoal_stand_in_configure(4, 0, 100, 0);
  int ordinal = 1;  // each time a device that was not opened before
  for (const char* function : {"find cuStreamWriteValue32", "cuStreamWriteValue32", "cuStreamWaitValue32"}) {
    shoal_stand_in_fail(function, cuda::not_supported);
    const std::shared_ptr<Device> one = device(ordinal++);
    CHECK(!one->streams_can_wait());
    std::vector<float> there(10, 3);
    std::vector<float> here(10);
    Passage passage(std::make_shared<Ways>(one));
    passage.bring(bytes_of(here), address_of(there), size_of(here));
    const Gate gate = passage.depart();
    CHECK(comes_true([&] { return gate.is_open(); }));
    CHECK(here == there);
    shoal_stand_in_fail(function, 0);
  }
  CHECK(device()->streams_can_wait());
}

TEST(a_stream_that_is_captured_is_refused) {
  const Program program(library());
  const Stream stream = program.stream();
  Passage passage(ways());
  shoal_stand_in_capture(stream, 1);
  CHECK(error_of([&] { passage.follow(stream); }).find("captured in a CUDA graph") != std::string::npos);
  shoal_stand_in_capture(stream, 0);
  passage.follow(stream);
}

TEST(an_error_says_which_call_has_failed_on_which_device_and_nothing_is_left_over) {
  const std::uint64_t registered = shoal_stand_in_registered_bytes();
  for (const char* call :
       {"cuStreamCreateWithPriority", "cuMemHostRegister", "cuMemHostGetDevicePointer", "cuDevicePrimaryCtxRetain"}) {
    shoal_stand_in_fail(call, 2);
    CHECK(error_of([] { device(7); }).find(std::string(call) + " on CUDA device 7 has failed") == 0);
    shoal_stand_in_fail(call, 0);
  }
  CHECK_EQ(shoal_stand_in_registered_bytes(), registered);
  device(7);
  CHECK(error_of([] { Library::load("libnot-there.so.1"); }).find("cannot be loaded") != std::string::npos);
}

TEST(a_gate_that_will_never_open_is_told_of) {
  shoal_stand_in_configure(5, 0, 0, 0);
  const std::shared_ptr<Ways> broken = std::make_shared<Ways>(device(8));
  shoal_stand_in_lose(broken->out());
  Passage passage(broken);
  engine::GateWatch watch;
  watch.start();
  std::atomic<bool> told{false};
  std::string problem;
  watch.add(passage.depart(), [&](const std::string& why) {
    problem = why;
    told = true;
  });
  CHECK(comes_true([&] { return told.load(); }));
  CHECK(problem.find("cuStreamQuery on CUDA device 8 has failed") == 0);
}

TEST(a_device_says_when_too_much_is_on_its_way) {
  shoal_stand_in_configure(5, 0, 0, 0);
  const std::shared_ptr<Ways> one = ways();
  std::vector<std::shared_ptr<Passage>> passages;
  std::string error;
  while (error.empty()) {
    passages.push_back(std::make_shared<Passage>(one));
    error = error_of([&] { passages.back()->depart(); });
    CHECK(passages.size() <= cuda::Words::count);
  }
  CHECK(error.find("16384 operations are on their way through one CUDA device") == 0);
  passages.clear();
  Passage(one).depart();
}

TEST(memory_is_pinned_until_what_was_asked_for_is_done) {
  shoal_stand_in_configure(6, 0, pause, 0);
  const std::shared_ptr<Device> one = device();
  const std::uint64_t registered = shoal_stand_in_registered_bytes();
  const std::uint64_t pageable = shoal_stand_in_pageable_copies();
  std::vector<float> there(1 << 16, 3);
  std::vector<float> here(1 << 16);
  one->pin(bytes_of(here), size_of(here));
  CHECK_EQ(shoal_stand_in_registered_bytes(), registered + size_of(here));
  CHECK(error_of([&] { one->pin(bytes_of(here), 64); }).find("cuMemHostRegister") == 0);
  Passage passage(ways());
  passage.bring(bytes_of(here), address_of(there), size_of(here));
  one->unpin(bytes_of(here), true);
  CHECK(here == there);
  CHECK_EQ(shoal_stand_in_pageable_copies(), pageable);
  CHECK_EQ(shoal_stand_in_registered_bytes(), registered);
}

// --- With engines ---

// What an array of a device on rank 0 holds for who follows, once it has been summed with rank 1's, or once that has
// turned out to be of another size.
std::vector<float> summed_on_a_device(Job& job, const std::string& name, std::size_t size_of_other) {
  const Program program(library());
  const Stream stream = program.stream();
  std::vector<float> there(100, 1);
  std::vector<float> here(100);
  std::vector<float> other(size_of_other, 2);
  std::vector<float> seen;
  Passage passage(ways());
  program.launch(stream, [&] { there.assign(100, 3); });
  passage.follow(stream);
  passage.bring(bytes_of(here), address_of(there), size_of(here));
  const Gate gate = passage.depart();
  const auto operation =
      job.engines[0]->submit(of(Collective::all_reduce, name, here, &here), std::optional<Gate>(gate));
  passage.begin_return(true);
  passage.take_back(address_of(there), bytes_of(here), size_of(here));
  passage.end_return();
  passage.follow_back(stream);
  program.launch(stream, [&] { seen = there; });
  // Afterwards, so that it is ended by a thread of the engine's.
  CHECK(comes_true([&] { return gate.is_open(); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  const auto with_it = job.engines[1]->submit(of(Collective::all_reduce, name, other, &other));
  CHECK(comes_true([&] { return passage.is_over(); }));
  CHECK(operation->done() && with_it->wait(longest_operation));
  shoal_stand_in_synchronize();
  return seen;
}

TEST(streams_wait_for_engines_which_ask_the_device_for_nothing) {
  shoal_stand_in_configure(7, 0, pause, 0);
  const std::uint64_t forbidden = shoal_stand_in_forbidden_calls();
  for (const bool inside : {false, true}) {
    Job job(2, 1, 0, 4096, inside ? std::vector<std::uint32_t>{0, 0} : std::vector<std::uint32_t>{});
    CHECK(summed_on_a_device(job, "well", 100) == std::vector<float>(100, 5));
    const std::vector<float> failed = summed_on_a_device(job, "not well", 200);
    CHECK(std::all_of(failed.begin(), failed.end(), [](float each) { return std::isnan(each); }));
  }
  CHECK_EQ(shoal_stand_in_forbidden_calls(), forbidden);
}

// --- Random schedules ---

// One operation: a program's stream makes the input, and another or the same one reads the result, which the network
// makes of it: each element twice, or NaN if it fails.
struct Round {
  std::vector<float> there = std::vector<float>(64);
  std::vector<float> here = std::vector<float>(64);
  std::unique_ptr<Passage> passage;
  Gate gate;
  float value = 0;
  bool fails = false;
  std::atomic<bool> done{false};
};

bool all_are(const std::vector<float>& memory, float value) {
  return std::all_of(memory.begin(), memory.end(),
                     [value](float each) { return value == value ? each == value : each != each; });
}

// The seed says which operations there are, in which streams, how long everything takes, what fails, and who waits how.
void run_schedule(std::uint64_t seed, const std::vector<std::shared_ptr<Ways>>& groups, const Program& program,
                  const std::vector<Stream>& streams, engine::GateWatch& watch) {
  std::mt19937_64 random(seed);
  const auto chance = [&random](int percent) { return static_cast<int>(random() % 100) < percent; };
  shoal_stand_in_configure(seed, 0, chance(50) ? 0 : static_cast<unsigned>(random() % 200), chance(25));
  std::vector<std::unique_ptr<Round>> rounds(1 + random() % 6);
  std::atomic<int> wrong{0};
  std::atomic<std::size_t> open{rounds.size()};
  const bool early = chance(50);  // each waits before the next is called
  const auto come_back = [&](Round& round, bool by_stream) {
    if (!by_stream) {
      CHECK(comes_true([&] { return round.done.load(); }));
    }
    const Stream reader = streams[random() % streams.size()];
    round.passage->begin_return(by_stream);
    round.passage->take_back(address_of(round.there), bytes_of(round.here), size_of(round.here));
    round.passage->end_return();
    round.passage->follow_back(reader);
    const float expected = round.fails ? std::nanf("") : 2 * round.value;
    program.launch(reader, [&round, &wrong, expected] { wrong += all_are(round.there, expected) ? 0 : 1; });
  };
  for (auto& made : rounds) {
    made = std::make_unique<Round>();
    Round& round = *made;
    round.value = static_cast<float>(random() % 1000);
    round.fails = chance(10);
    round.passage = std::make_unique<Passage>(groups[random() % groups.size()]);
    const Stream maker = streams[random() % streams.size()];
    program.launch(maker, [&round] { round.there.assign(round.there.size(), round.value); });
    round.passage->follow(maker);
    const std::size_t chunk = chance(50) ? size_of(round.here) : 64;
    for (std::size_t begin = 0; begin < size_of(round.here); begin += chunk) {
      round.passage->bring(bytes_of(round.here) + begin, address_of(round.there) + begin, chunk);
    }
    round.gate = round.passage->depart();
    watch.add(round.gate, [&round, &wrong, &open](const std::string& problem) {
      wrong += problem.empty() ? 0 : 1;
      wrong += all_are(round.here, round.value) ? 0 : 1;
      round.here.assign(round.here.size(), round.fails ? std::nanf("") : 2 * round.value);
      round.gate.pass();
      round.done = true;
      --open;
    });
    if (early) {
      come_back(round, chance(70));
    }
  }
  if (!early) {
    std::shuffle(rounds.begin(), rounds.end(), random);
    for (const auto& round : rounds) {
      come_back(*round, chance(70));
    }
  }
  for (const auto& round : rounds) {
    // Whose memory is free has another user at once.
    CHECK(comes_true([&] { return round->passage->is_over(); }));
    std::fill(round->here.begin(), round->here.end(), -1.0F);
  }
  shoal_stand_in_synchronize();
  CHECK(comes_true([&] { return open == 0; }));
  CHECK_EQ(std::to_string(seed) + ": " + std::to_string(wrong), std::to_string(seed) + ": 0");
}

TEST(random_schedules_give_the_right_numbers_in_every_stream) {
  const char* const asked = std::getenv("SHOAL_CUDA_SCHEDULES");
  const int schedules = asked == nullptr ? 500 : std::atoi(asked);
  const Program program(library());
  const std::vector<std::shared_ptr<Ways>> groups = {ways(), ways()};
  std::vector<Stream> streams;
  for (int i = 0; i < 3; ++i) {
    streams.push_back(program.stream());
  }
  engine::GateWatch watch;
  watch.start();
  for (int seed = 1; seed <= schedules; ++seed) {
    run_schedule(static_cast<std::uint64_t>(seed), groups, program, streams, watch);
  }
  CHECK_EQ(shoal_stand_in_forbidden_calls(), 0U);
}

}  // namespace

RUN_TESTS()
