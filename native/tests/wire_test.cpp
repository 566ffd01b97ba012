// Frame headers and payloads against docs/protocol/format.md.
#include <array>
#include <cstring>
#include <random>
#include <vector>

#include "base/limits.h"
#include "check.h"
#include "wire/crc32c.h"
#include "wire/epoch.h"
#include "wire/frame.h"
#include "wire/late.h"
#include "wire/opening.h"

using namespace shoal;

TEST(crc_of_the_standard_check_string) {
  const char* text = "123456789";
  CHECK_EQ(wire::crc32c(std::as_bytes(std::span(text, 9))), 0xE3069283U);
}

TEST(crc_of_any_length_is_that_of_its_polynomial) {
  std::vector<std::byte> bytes;
  std::uint32_t state = 0xFFFFFFFFU;
  for (std::uint32_t i = 0; i < 100; ++i) {
    CHECK_EQ(wire::crc32c(bytes), ~state);
    bytes.push_back(static_cast<std::byte>(i * 37 + 11));
    state ^= static_cast<std::uint32_t>(bytes.back());
    for (int bit = 0; bit < 8; ++bit) {
      state = (state & 1) != 0 ? (state >> 1) ^ 0x82F63B78U : state >> 1;
    }
  }
}

TEST(a_header_survives_the_wire) {
  wire::Header header{.type = wire::Type::data,
                      .dtype = DType::float32,
                      .epoch = 3,
                      .operation = 7,
                      .offset = 65536,
                      .length = 16384,
                      .acknowledged = 5};
  std::array<std::byte, wire::header_bytes> bytes{};
  wire::encode(header, bytes);
  wire::Header read;
  CHECK(wire::decode(bytes, read).ok());
  CHECK(read == header);
}

TEST(any_flipped_bit_is_found) {
  wire::Header header{.type = wire::Type::result, .dtype = DType::bfloat16, .operation = 1, .length = 4};
  std::array<std::byte, wire::header_bytes> bytes{};
  wire::encode(header, bytes);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    auto damaged = bytes;
    damaged[bit / 8] ^= std::byte(1U << (bit % 8));
    wire::Header read;
    CHECK_EQ(static_cast<int>(wire::decode(damaged, read).code), static_cast<int>(Code::protocol));
  }
}

TEST(unknown_values_are_refused_by_name) {
  std::array<std::byte, wire::header_bytes> bytes{};
  wire::Header read;
  wire::encode({.type = static_cast<wire::Type>(99)}, bytes);
  CHECK(wire::decode(bytes, read).message.find("type 99") != std::string::npos);
  wire::encode({.type = wire::Type::data, .dtype = DType::float32, .codec = 4}, bytes);
  CHECK(wire::decode(bytes, read).message.find("codec 4") != std::string::npos);
  wire::encode({.type = wire::Type::data, .dtype = static_cast<DType>(77)}, bytes);
  CHECK(wire::decode(bytes, read).message.find("dtype 77") != std::string::npos);
  wire::encode({.type = wire::Type::admit, .flags = 4}, bytes);
  CHECK(wire::decode(bytes, read).message.find("flags 4") != std::string::npos);
}

namespace {

wire::Opening an_opening() {
  wire::Opening opening;
  opening.collective = Collective::all_to_all;
  opening.dtype = DType::int64;
  opening.root = 2;
  opening.occurrence = 9;
  opening.key.bytes[3] = std::byte{7};
  opening.bytes = 48;
  opening.shape = {3, 2};
  opening.splits = {16, 0, 32};
  opening.name = "gradient/ü";
  opening.inline_bytes = 48;
  return opening;
}

wire::Bytes payload_of(const wire::Opening& opening) {
  wire::Bytes bytes = wire::encode(opening);
  bytes.resize(bytes.size() + opening.inline_bytes, std::byte{1});
  return bytes;
}

}  // namespace

TEST(an_opening_survives_the_wire) {
  const wire::Opening opening = an_opening();
  const wire::Bytes bytes = payload_of(opening);
  wire::Opening read;
  std::size_t inline_offset = 0;
  CHECK(wire::decode(bytes, read, inline_offset).ok());
  CHECK_EQ(inline_offset % 64, 0U);
  CHECK_EQ(inline_offset + 48, bytes.size());
  CHECK(read.collective == opening.collective && read.dtype == opening.dtype && read.op == opening.op);
  CHECK(read.key == opening.key && read.group == opening.group);
  CHECK(read.shape == opening.shape && read.splits == opening.splits);
  CHECK_EQ(read.name, opening.name);
  CHECK_EQ(read.root, opening.root);
  CHECK_EQ(read.occurrence, opening.occurrence);
  CHECK_EQ(read.bytes, opening.bytes);
}

TEST(what_a_joined_rank_is_told_is_an_opening_without_what_is_its_callers_alone) {
  wire::Opening read;
  CHECK(wire::decode_called(wire::encode_called(an_opening()), read).ok());
  CHECK_EQ(read.name, an_opening().name);
  CHECK(read.key == an_opening().key && read.shape == an_opening().shape && read.splits.empty());
  CHECK(!wire::decode_called(payload_of(an_opening()), read).ok());
  CHECK(wire::encode_called(an_opening()).size() <= wire::called_limit());

  Hash128 group;
  CHECK(wire::decode_join(wire::encode_join(an_opening().key), group).ok());
  CHECK(group == an_opening().key);
  CHECK(!wire::decode_join(wire::Bytes(wire::join_bytes + 1), group).ok());
}

TEST(an_opening_with_reserved_bytes_is_refused) {
  wire::Bytes bytes = payload_of(an_opening());
  bytes[108] = std::byte{1};
  wire::Opening read;
  std::size_t inline_offset = 0;
  CHECK(!wire::decode(bytes, read, inline_offset).ok());
}

TEST(elements_travel_as_they_are_in_arrays) {
  wire::Bytes payload = payload_of(an_opening());
  std::size_t offset = 0;
  wire::Opening read;
  CHECK(wire::decode(payload, read, offset).ok());
  CHECK_EQ(static_cast<int>(read.wire_dtype()), static_cast<int>(read.dtype));
  for (int dtype = 0; dtype < 256; ++dtype) {
    payload[3] = static_cast<std::byte>(dtype);
    const Status status = wire::decode(payload, read, offset);
    CHECK_EQ(status.ok(), dtype == static_cast<int>(read.dtype));
    CHECK(status.ok() || status.message.find("wire dtype") != std::string::npos);
  }
}

TEST(a_long_text_is_cut_between_characters) {
  const std::string umlaut = "\xC3\xA4";
  std::string text = "x";
  while (text.size() <= limits::text_bytes) {
    text += umlaut;
  }
  CHECK_EQ(wire::cut(text).size(), limits::text_bytes - 1);
  CHECK_EQ(wire::cut(umlaut), umlaut);
  CHECK(text.starts_with(wire::cut(text)));
}

TEST(an_opening_of_any_other_length_is_refused) {
  const wire::Bytes bytes = payload_of(an_opening());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    wire::Opening read;
    std::size_t inline_offset = 0;
    CHECK(!wire::decode(wire::ConstBytes(bytes).first(length), read, inline_offset).ok());
  }
}

TEST(damaged_payloads_never_read_past_their_end) {
  // Under a sanitizer this finds reads past the end; without one, that lengths are believed.
  std::mt19937 random(1);
  const wire::Bytes good = payload_of(an_opening());
  for (int round = 0; round < 20000; ++round) {
    wire::Bytes bytes = good;
    for (int flips = 0; flips < 3; ++flips) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    wire::Opening opening;
    std::size_t inline_offset = 0;
    if (wire::decode(bytes, opening, inline_offset).ok()) {
      CHECK_EQ(inline_offset + opening.inline_bytes, bytes.size());
    }
    wire::Failure failure;
    (void)wire::decode(bytes, failure);
    wire::Loss loss;
    (void)wire::decode(bytes, loss);
    wire::Sizes sizes;
    (void)wire::decode(bytes, sizes);
    wire::GroupMembers group;
    (void)wire::decode(bytes, group);
    wire::Late late;
    (void)wire::decode(wire::ConstBytes(bytes).first(std::min(bytes.size(), wire::late_limit())), late);
  }
}

TEST(the_small_payloads_survive_the_wire) {
  wire::Failure failure{Status::error(Code::mismatch, "they differ", 3)};
  wire::Failure failure_read;
  CHECK(wire::decode(wire::encode(failure), failure_read).ok());
  CHECK(failure_read.status.code == Code::mismatch && failure_read.status.rank == 3);
  CHECK_EQ(failure_read.status.message, "they differ");

  wire::Loss loss{wire::Loss::Kind::rank, 4, Status::error(Code::peer_lost, "gone")};
  wire::Loss loss_read;
  CHECK(wire::decode(wire::encode(loss), loss_read).ok());
  CHECK(loss_read.index == 4 && loss_read.status.rank == 4);

  wire::Sizes sizes{5, {1, 2, 3}};
  wire::Sizes sizes_read;
  CHECK(wire::decode(wire::encode(sizes), sizes_read).ok());
  CHECK(sizes_read.exchange == 5 && sizes_read.blocks == sizes.blocks);

  wire::GroupMembers group{{}, {2, 0, 7}};
  wire::GroupMembers group_read;
  CHECK(wire::decode(wire::encode(group), group_read).ok());
  CHECK(group_read.ranks == group.ranks && !group_read.of_nodes);
  group.of_nodes = true;
  wire::Bytes of_nodes = wire::encode(group);
  CHECK(wire::decode(of_nodes, group_read).ok());
  CHECK(group_read.of_nodes);
  of_nodes[20] = std::byte{2};
  CHECK(!wire::decode(of_nodes, group_read).ok());
}

TEST(an_attempt_survives_the_wire_and_nothing_else_is_one) {
  const wire::Bytes bytes = wire::encode(wire::Attempt{7, 3});
  wire::Attempt read;
  CHECK(wire::decode(bytes, read).ok());
  CHECK_EQ(read.server, 7U);
  CHECK_EQ(read.number, 3U);
  CHECK(!wire::decode(wire::ConstBytes(bytes).first(7), read).ok());
  CHECK(!wire::decode(wire::encode(wire::Attempt{7, 0}), read).ok());
}

TEST(what_came_of_an_attempt_survives_the_wire_and_nothing_else_does) {
  wire::Reached reached{{7, 3}, {}};
  reached.process.front() = std::byte{1};
  reached.process.back() = std::byte{2};
  const wire::Bytes bytes = wire::encode(reached);
  CHECK_EQ(bytes.size(), 24U);
  wire::Reached read;
  CHECK(wire::decode(bytes, read).ok());
  CHECK(read.attempt == reached.attempt && read.process == reached.process);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    CHECK(!wire::decode(wire::ConstBytes(bytes).first(length), read).ok());
  }
  reached.attempt.number = 0;
  CHECK(!wire::decode(wire::encode(reached), read).ok());
}

TEST(an_answer_about_late_ranks_survives_the_wire_and_no_part_of_it_does) {
  wire::Late late{20, {}};
  late.members.push_back({3, wire::Late::Why::owes_data, Collective::broadcast, "model", 1500});
  late.members.push_back({7, wire::Late::Why::not_opened, Collective::none, "", 0});
  const wire::Bytes bytes = wire::encode(late);
  wire::Late read;
  CHECK(wire::decode(bytes, read).ok());
  CHECK(read.count == 20 && read.members.size() == 2);
  CHECK(read.members[0].rank == 3 && read.members[0].why == wire::Late::Why::owes_data);
  CHECK(read.members[0].last == Collective::broadcast && read.members[0].silent_ms == 1500);
  CHECK_EQ(read.members[0].last_name, "model");
  CHECK_EQ(read.members[1].rank, 7U);
  const std::size_t after_first = 4 + 12 + 5;
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    const bool whole = length == 4 || length == after_first;
    CHECK_EQ(wire::decode(wire::ConstBytes(bytes).first(length), read).ok(), whole);
  }
  late.count = 1;
  CHECK(!wire::decode(wire::encode(late), read).ok());
  late = {17, std::vector<wire::Late::Member>(17)};
  CHECK(!wire::decode(wire::encode(late), read).ok());
}

RUN_TESTS()
