// Encrypted connections with somebody in between, who holds bytes back, changes, repeats and makes up some, and hangs
// up, before, during and after the handshake. Both ends are the product's, or one of them is a stranger who only makes
// up. OpenSSL is not built with the fuzzer's eyes: what is looked at is what tls.cpp makes of its states.
//
// What must hold: whatever receive() gives, the other side has sent, in order, none missing and none twice; nothing is
// given before the handshake is done, and it is never done on both sides with different keys; what is refused says why;
// without somebody in between all of it arrives.
#include <fcntl.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "drivers/tcp/tls.h"
#include "fuzz/input.h"
#include "os/descriptor.h"

using namespace shoal;
using fuzz::Input;
using fuzz::require;
using os::Descriptor;
using tcp::Tls;
using Step = Tls::Step;

namespace {

constexpr std::size_t commands_per_input = 300;
constexpr std::size_t most_at_once = 40'000;  // two whole records and a part
constexpr std::size_t most_on_way = 256 * 1024;

// The byte at a place of what one side says to the other.
std::byte said(std::size_t side, std::uint64_t at) { return static_cast<std::byte>(at * 31 + at / 251 + side * 7); }

std::pair<Descriptor, Descriptor> sockets() {
  int ends[2];
  require(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "there are sockets");
  for (const int end : ends) {
    require(::fcntl(end, F_SETFL, O_NONBLOCK) == 0, "sockets need not block");
    // Little room, so that the kernel is full now and then.
    const int room = 4096;
    require(::setsockopt(end, SOL_SOCKET, SO_SNDBUF, &room, sizeof room) == 0, "sockets can be small");
  }
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

struct Side {
  Descriptor own;    // what the Tls uses
  Descriptor relay;  // its other end, in the hands of whoever is in between
  std::shared_ptr<Tls> tls;
  Step step = Step::wants_input;
  std::uint64_t sent = 0;        // bytes that send() has taken
  std::size_t offered = 0;       // to send() in vain, to be offered again: some of it may be on its way
  std::uint64_t received = 0;    // bytes that receive() has given
  bool over = false;             // receive() has told of the end
  std::vector<std::byte> taken;  // from this side, on their way to the other

  bool shakes_hands() const { return tls != nullptr && (step == Step::wants_input || step == Step::wants_room); }
  bool talks() const { return tls != nullptr && step == Step::done; }
};

class Connection {
 public:
  explicit Connection(Input& input) : input_(input) {
    const std::size_t who = input_.below(4);
    const std::string key(32, 'k');
    const bool same_key = !input_.once_in(4);
    const bool known = !input_.once_in(8);
    const bool throws = input_.once_in(16);
    honest_ = who < 2;
    opens_ = honest_ && same_key && known && !throws;
    for (Side& side : sides_) {
      std::tie(side.own, side.relay) = sockets();
    }
    if (who != 2) {
      sides_[0].tls = Tls::client("me", same_key ? key : std::string(32, 'o'));
    }
    if (who != 3) {
      sides_[1].tls = Tls::server([=](const std::string& identity) {
        if (throws) {
          throw std::runtime_error("no keys today");
        }
        return known && identity == "me" ? key : std::string();
      });
    }
  }

  void run() {
    for (std::size_t i = 0; i < commands_per_input && !input_.empty(); ++i) {
      command();
    }
    settle();
    for (const Side& side : sides_) {
      require(!side.talks() || opens_, "nobody's handshake is done with a stranger, or with another key");
      const Side& other = &side == &sides_[0] ? sides_[1] : sides_[0];
      require(!honest_ || !opens_ || (side.talks() && side.received == other.sent), "what was sent has arrived");
    }
  }

 private:
  void command() {
    const std::size_t which = input_.below(2);
    Side& side = sides_[which];
    switch (input_.below(16)) {
      case 0:
        shake_hands(side);
        break;
      case 1:
      case 2:
        send(which, std::min<std::uint64_t>(input_.size(), most_at_once));
        break;
      case 3:
      case 4:
        receive(which, std::min<std::uint64_t>(input_.size(), most_at_once), !input_.once_in(4));
        break;
      case 5:
      case 6:
        carry(which, input_.once_in(2) ? input_.number(2) : most_on_way);
        break;
      case 7:
        change(side);
        break;
      case 8:
        make_up(side);
        break;
      case 9:
        lose_or_repeat(side);
        break;
      case 10:
        hang_up(side);
        break;
      case 11:
        if (side.talks()) {
          side.tls->read_ahead();
        }
        break;
      case 12:
        if (side.talks()) {
          side.tls->set_records_per_key(1 + input_.below(4));
        }
        break;
      default:
        round();
        break;
    }
  }

  // --- The two sides ---

  void shake_hands(Side& side) {
    if (!side.shakes_hands()) {
      return;
    }
    side.step = side.tls->handshake(side.own.number());
    require(side.step != Step::failed || !side.tls->why().empty(), "a handshake that fails says why");
    require(side.step != Step::unencrypted || !side.tls->greeting().empty(), "who does not encrypt has said something");
    require(!honest_ || side.step != Step::ended, "no connection ends by itself");
  }

  void send(std::size_t which, std::size_t count) {
    Side& side = sides_[which];
    if (!side.talks() || side.sent > 2 * most_on_way) {
      return;
    }
    count = std::max(count, side.offered);
    std::vector<std::byte> bytes(count);
    for (std::size_t i = 0; i < count; ++i) {
      bytes[i] = said(which, side.sent + i);
    }
    // In pieces, as headers and payloads are.
    const std::size_t cut = std::min<std::size_t>(count, 40);
    const std::array<iovec, 2> vectors{iovec{bytes.data(), cut}, iovec{bytes.data() + cut, count - cut}};
    const ssize_t sent = side.tls->send(side.own.number(), vectors);
    if (sent < 0) {
      side.offered = count;
      require(errno == EAGAIN || !honest_, "nothing but a full kernel keeps bytes back");
      require(errno != EBADMSG || !side.tls->why().empty(), "a refusal says why");
      return;
    }
    require(static_cast<std::size_t>(sent) <= count && (sent > 0 || count == 0), "bytes are sent, and no others");
    side.sent += static_cast<std::size_t>(sent);
    side.offered = 0;
  }

  void receive(std::size_t which, std::size_t room, bool from_kernel) {
    Side& side = sides_[which];
    if (!side.talks() || room == 0) {
      return;
    }
    // Exactly as large, so that writing behind it is found.
    std::vector<std::byte> header(std::min<std::size_t>(room, 40));
    std::vector<std::byte> rest(room - header.size());
    const std::array<iovec, 2> vectors{iovec{header.data(), header.size()}, iovec{rest.data(), rest.size()}};
    const ssize_t read = side.tls->receive(side.own.number(), vectors, from_kernel);
    if (read <= 0) {
      require(read == 0 || errno != EBADMSG || !side.tls->why().empty(), "a refusal says why");
      require(read < 0 || side.tls->has_ended(), "an end is an end");
      require(!honest_ || (read < 0 && errno == EAGAIN), "no connection ends by itself");
      side.over = side.over || read == 0 || errno != EAGAIN;
      return;
    }
    const auto count = static_cast<std::size_t>(read);
    require(count <= room && !side.over, "what is given has room, and comes before the end");
    const Side& other = sides_[1 - which];
    require(side.received + count <= other.sent + other.offered, "nothing is given that was not sent");
    for (std::size_t i = 0; i < count; ++i) {
      const std::byte byte = i < header.size() ? header[i] : rest[i - header.size()];
      require(byte == said(1 - which, side.received + i), "what is given is what was sent");
    }
    side.received += count;
    if (count < room && !side.tls->has_ended()) {
      std::byte more{};
      const iovec vector{&more, 1};
      require(side.tls->receive(side.own.number(), {&vector, 1}, false) < 0, "all that is held is given");
    }
  }

  // --- In between ---

  void take(Side& side) {
    std::array<std::byte, 65536> buffer;
    while (side.taken.size() < most_on_way && side.relay) {
      const ssize_t count = ::recv(side.relay.number(), buffer.data(), buffer.size(), 0);
      if (count <= 0) {
        return;
      }
      side.taken.insert(side.taken.end(), buffer.begin(), buffer.begin() + count);
    }
  }

  void carry(std::size_t from, std::size_t most) {
    Side& side = sides_[from];
    take(side);
    const Descriptor& to = sides_[1 - from].relay;
    while (most > 0 && !side.taken.empty() && to) {
      const ssize_t count =
          ::send(to.number(), side.taken.data(), std::min({most, side.taken.size(), std::size_t{2048}}), MSG_NOSIGNAL);
      if (count <= 0) {
        return;
      }
      side.taken.erase(side.taken.begin(), side.taken.begin() + count);
      most -= static_cast<std::size_t>(count);
    }
  }

  void change(Side& side) {
    take(side);
    const std::size_t at = input_.number(2);
    const std::uint8_t by = input_.byte();
    if (at < side.taken.size() && by != 0) {
      honest_ = false;
      side.taken[at] ^= static_cast<std::byte>(by);
    }
  }

  // A record, as one that tampers or has no key can make it; or any bytes, before what is on its way or behind it.
  void make_up(Side& side) {
    take(side);
    std::vector<std::byte> bytes;
    const bool record = !input_.once_in(4);
    const auto type = static_cast<std::byte>(input_.once_in(4) ? input_.byte() : 20 + input_.below(5));
    const std::uint64_t length = input_.size();
    const std::vector<std::byte> content = input_.bytes(input_.byte());
    if (record) {
      const std::size_t claimed = length % 4 == 0 ? length : content.size();
      bytes = {type, std::byte{3}, std::byte{3}, static_cast<std::byte>(claimed >> 8), static_cast<std::byte>(claimed)};
    }
    bytes.insert(bytes.end(), content.begin(), content.end());
    honest_ = honest_ && bytes.empty();
    const bool before = input_.once_in(2);
    side.taken.insert(before ? side.taken.begin() : side.taken.end(), bytes.begin(), bytes.end());
  }

  void lose_or_repeat(Side& side) {
    take(side);
    const std::size_t begin = std::min<std::size_t>(input_.number(2), side.taken.size());
    const std::size_t count = std::min<std::size_t>(input_.number(2), side.taken.size() - begin);
    if (count == 0) {
      return;
    }
    honest_ = false;
    const auto first = side.taken.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = first + static_cast<std::ptrdiff_t>(count);
    if (input_.once_in(2)) {
      const std::vector<std::byte> again(first, last);
      side.taken.insert(last, again.begin(), again.end());
    } else {
      side.taken.erase(first, last);
    }
  }

  void hang_up(Side& side) {
    if (!input_.once_in(4) || !side.relay) {
      return;
    }
    honest_ = false;
    if (input_.once_in(2)) {
      ::shutdown(side.relay.number(), SHUT_WR);
    } else {
      side.relay.reset();
    }
  }

  // What honest programs and an honest network do.
  void round() {
    for (const std::size_t which : {0, 1}) {
      shake_hands(sides_[which]);
      if (sides_[which].offered > 0) {
        send(which, 0);
      }
      carry(which, most_on_way);
      receive(1 - which, most_at_once, true);
    }
  }

  void settle() {
    std::array<std::uint64_t, 4> before{};
    for (int still = 0; still < 4;) {
      round();
      const std::array<std::uint64_t, 4> now{sides_[0].received, sides_[1].received, sides_[0].taken.size(),
                                             sides_[1].taken.size()};
      still = now == before ? still + 1 : 0;
      before = now;
    }
  }

  Input& input_;
  bool honest_ = true;  // nobody has been in between yet
  bool opens_ = true;   // both are there and hold the same key
  std::array<Side, 2> sides_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  Connection(input).run();
  return 0;
}
