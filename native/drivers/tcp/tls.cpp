#include "drivers/tcp/tls.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace shoal::tcp {

namespace {

// What a record holds at most.
constexpr std::size_t record_bytes = 16384;

// Encrypted and handed to the kernel at a time: enough that system calls do not count, and still in the cache.
constexpr std::size_t batch_bytes = 8 * record_bytes;

// Room for what a batch becomes: each record has 22 bytes around it.
constexpr std::size_t sealed_room = batch_bytes + 9 * 64;

constexpr std::size_t read_ahead_bytes = 8 * (record_bytes + 64);

// RFC 8446, section 5.5: AES-GCM is good for 2^24.5 records under one key.
constexpr std::uint64_t most_records_per_key = std::uint64_t{1} << 22;

constexpr std::size_t greeting_bytes = 5;

// The first byte of a record of a handshake, and of an alert.
constexpr char handshake_record = 0x16;
constexpr char alert_record = 0x15;

// OpenSSL's numbers (ssl.h, bio.h, sslerr.h).
constexpr int control_mode = 33;               // SSL_CTRL_MODE
constexpr int control_session_cache = 44;      // SSL_CTRL_SET_SESS_CACHE_MODE
constexpr int control_groups = 92;             // SSL_CTRL_SET_GROUPS_LIST
constexpr int control_lowest_version = 123;    // SSL_CTRL_SET_MIN_PROTO_VERSION
constexpr int control_highest_version = 124;   // SSL_CTRL_SET_MAX_PROTO_VERSION
constexpr long version_1_3 = 0x0304;           // TLS1_3_VERSION
constexpr int control_clear_mode = 78;         // SSL_CTRL_CLEAR_MODE
constexpr long mode_moving_write_buffer = 2;   // SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER
constexpr long mode_release_buffers = 16;      // SSL_MODE_RELEASE_BUFFERS
constexpr int verify_peer = 1;                 // SSL_VERIFY_PEER
constexpr int error_wants_read = 2;            // SSL_ERROR_WANT_READ
constexpr int error_wants_write = 3;           // SSL_ERROR_WANT_WRITE
constexpr int error_closed = 6;                // SSL_ERROR_ZERO_RETURN
constexpr int key_update_of_ours = 0;          // SSL_KEY_UPDATE_NOT_REQUESTED
constexpr int bio_source_sink = 0x0400 | 127;  // BIO_TYPE_SOURCE_SINK, and a number of our own
constexpr int bio_flush = 11;                  // BIO_CTRL_FLUSH
constexpr int bio_retry_read = 0x01 | 0x08;    // BIO_FLAGS_READ | BIO_FLAGS_SHOULD_RETRY
constexpr int bio_retry_any = 0x0f;            // BIO_FLAGS_RWS | BIO_FLAGS_SHOULD_RETRY
constexpr int library_version = 0;             // OPENSSL_VERSION

// Alerts by which the other side says that it has no such key: handshake_failure, illegal_parameter, decrypt_error,
// unknown_psk_identity; 1000 is OpenSSL's.
constexpr std::array<unsigned long, 4> wrong_key_alerts{1040, 1047, 1051, 1115};

unsigned long reason_of(unsigned long error) { return error & 0xfff; }

}  // namespace

std::shared_ptr<Tls> Tls::client(std::string identity, std::string key) {
  return std::shared_ptr<Tls>(new Tls(true, std::move(identity), std::move(key), nullptr));
}

std::shared_ptr<Tls> Tls::server(FindKey find_key) {
  return std::shared_ptr<Tls>(new Tls(false, "", "", std::move(find_key)));
}

std::string Tls::version() { return OpenSsl::get().OpenSSL_version(library_version); }

Tls::Tls(bool is_client, std::string identity, std::string key, FindKey find_key)
    : openssl_(OpenSsl::get()),
      is_client_(is_client),
      identity_(std::move(identity)),
      key_(std::move(key)),
      find_key_(std::move(find_key)),
      records_per_key_(most_records_per_key) {
  static const OpenSsl::BioMethod* const method = [] {
    const OpenSsl& openssl = OpenSsl::get();
    OpenSsl::BioMethod* const made = openssl.BIO_meth_new(bio_source_sink, "shoal");
    if (made != nullptr) {
      openssl.BIO_meth_set_write(made, write_out);
      openssl.BIO_meth_set_read(made, read_in);
      openssl.BIO_meth_set_ctrl(made, control);
    }
    return made;
  }();
  OpenSsl::Context* const settings = context(is_client);
  session_ = settings == nullptr ? nullptr : openssl_.SSL_new(settings);
  OpenSsl::Bio* const bio = method == nullptr || session_ == nullptr ? nullptr : openssl_.BIO_new(method);
  if (bio == nullptr) {
    openssl_.SSL_free(session_);
    throw std::runtime_error("this machine's OpenSSL (" + version() +
                             ") cannot do TLS 1.3 with AES-128-GCM and X25519: see its configuration");
  }
  openssl_.BIO_set_data(bio, this);
  openssl_.BIO_set_init(bio, 1);
  openssl_.SSL_set_bio(session_, bio, bio);
  openssl_.SSL_set_ex_data(session_, 0, this);
  if (is_client) {
    openssl_.SSL_set_connect_state(session_);
  } else {
    openssl_.SSL_set_accept_state(session_);
  }
}

Tls::~Tls() { openssl_.SSL_free(session_); }

// One for all clients and one for all servers of this process; null if OpenSSL is configured to refuse what we need.
OpenSsl::Context* Tls::context(bool is_client) {
  const auto make = [](bool client) -> OpenSsl::Context* {
    const OpenSsl& openssl = OpenSsl::get();
    OpenSsl::Context* const made = openssl.SSL_CTX_new(openssl.TLS_method());
    if (made == nullptr) {
      return nullptr;
    }
    std::string groups = "X25519";
    const bool usable = openssl.SSL_CTX_ctrl(made, control_lowest_version, version_1_3, nullptr) == 1 &&
                        openssl.SSL_CTX_ctrl(made, control_highest_version, version_1_3, nullptr) == 1 &&
                        openssl.SSL_CTX_ctrl(made, control_groups, 0, groups.data()) == 1 &&
                        openssl.SSL_CTX_set_ciphersuites(made, "TLS_AES_128_GCM_SHA256") == 1;
    openssl.SSL_CTX_ctrl(made, control_session_cache, 0, nullptr);
    openssl.SSL_CTX_ctrl(made, control_mode, mode_moving_write_buffer | mode_release_buffers, nullptr);
    openssl.SSL_CTX_set_num_tickets(made, 0);
    if (client) {
      // There are no certificates: one that a server shows instead of the key cannot be verified.
      openssl.SSL_CTX_set_verify(made, verify_peer, nullptr);
      openssl.SSL_CTX_set_psk_client_callback(made, give_key);
    } else {
      openssl.SSL_CTX_set_psk_server_callback(made, look_up_key);
    }
    return usable ? made : nullptr;
  };
  static OpenSsl::Context* const for_clients = make(true);
  static OpenSsl::Context* const for_servers = make(false);
  return is_client ? for_clients : for_servers;
}

// --- What OpenSSL asks for ---

Tls& Tls::of(OpenSsl::Session* session) { return *static_cast<Tls*>(OpenSsl::get().SSL_get_ex_data(session, 0)); }

unsigned Tls::give_key(OpenSsl::Session* session, const char* /*hint*/, char* identity, unsigned identity_room,
                       unsigned char* key, unsigned key_room) {
  const Tls& tls = of(session);
  if (tls.identity_.size() >= identity_room || tls.key_.size() > key_room) {
    return 0;
  }
  std::memcpy(identity, tls.identity_.c_str(), tls.identity_.size() + 1);
  std::ranges::copy(tls.key_, key);
  return static_cast<unsigned>(tls.key_.size());
}

unsigned Tls::look_up_key(OpenSsl::Session* session, const char* identity, unsigned char* key, unsigned key_room) {
  Tls& tls = of(session);
  std::string found;
  try {
    found = tls.find_key_ ? tls.find_key_(identity) : std::string();
  } catch (...) {  // nothing may be thrown through OpenSSL; what is asked for is unknown then
  }
  tls.key_unknown_ = found.empty() || found.size() > key_room;
  if (tls.key_unknown_) {
    return 0;
  }
  std::ranges::copy(found, key);
  return static_cast<unsigned>(found.size());
}

int Tls::write_out(OpenSsl::Bio* bio, const char* bytes, int count) {
  Tls& tls = *static_cast<Tls*>(OpenSsl::get().BIO_get_data(bio));
  const auto* const first = reinterpret_cast<const std::byte*>(bytes);
  tls.sealed_.insert(tls.sealed_.end(), first, first + count);
  return count;
}

// OpenSSL never learns that a connection has ended: to it, the bytes are late. So an end in one direction leaves the
// other usable, as a socket does, and errors of the socket keep their number.
int Tls::read_in(OpenSsl::Bio* bio, char* bytes, int count) {
  Tls& tls = *static_cast<Tls*>(OpenSsl::get().BIO_get_data(bio));
  tls.openssl_.BIO_clear_flags(bio, bio_retry_any);
  ssize_t read = -1;
  if (tls.from_kernel_ && !tls.ended_ && tls.error_ == 0) {
    do {
      read = ::recv(tls.socket_, bytes, static_cast<std::size_t>(count), 0);
    } while (read < 0 && errno == EINTR);
    tls.ended_ = read == 0;
    tls.error_ = read < 0 && errno != EAGAIN && errno != EWOULDBLOCK ? errno : 0;
  }
  if (read <= 0) {
    tls.openssl_.BIO_set_flags(bio, bio_retry_read);
    return -1;
  }
  if (tls.greeting_.size() < greeting_bytes) {
    tls.greeting_.append(bytes, std::min(static_cast<std::size_t>(read), greeting_bytes - tls.greeting_.size()));
  }
  return static_cast<int>(read);
}

long Tls::control(OpenSsl::Bio* /*bio*/, int command, long /*number*/, void* /*pointer*/) {
  return command == bio_flush ? 1 : 0;
}

// --- The handshake ---

Tls::Step Tls::handshake(int socket) {
  // OpenSSL allocates its buffers at the first call: a caller that sends nothing shall not have them.
  char first = 0;
  if (!is_client_ && greeting_.empty() && ::recv(socket, &first, 1, MSG_PEEK) < 0 &&
      (errno == EAGAIN || errno == EWOULDBLOCK)) {
    return Step::wants_input;
  }
  socket_ = socket;
  from_kernel_ = true;
  openssl_.ERR_clear_error();
  const int result = openssl_.SSL_do_handshake(session_);
  const bool speaks_tls = greeting_.empty() || greeting_[0] == handshake_record || greeting_[0] == alert_record;
  Step step = Step::done;
  if (!speaks_tls) {
    step = Step::unencrypted;
    sealed_.clear();
  } else if (result != 1) {
    step = how_handshake_failed(result);
  } else if (openssl_.SSL_session_reused(session_) != 1) {
    step = Step::wrong_key;
  }
  openssl_.ERR_clear_error();
  if (!push_out() && (step == Step::done || step == Step::wants_input)) {
    step = errno == EAGAIN || errno == EWOULDBLOCK ? Step::wants_room : Step::ended;
    error_ = step == Step::ended ? errno : 0;
  }
  if (step != Step::wants_input && step != Step::wants_room) {
    find_key_ = nullptr;
  }
  return step;
}

Tls::Step Tls::how_handshake_failed(int result) {
  const int error = openssl_.SSL_get_error(session_, result);
  if (ended_ || error_ != 0) {
    return Step::ended;
  }
  if (error == error_wants_read || error == error_wants_write) {
    return Step::wants_input;
  }
  const unsigned long first = openssl_.ERR_get_error();
  if (key_unknown_ || std::ranges::find(wrong_key_alerts, reason_of(first)) != wrong_key_alerts.end()) {
    return Step::wrong_key;
  }
  const char* const reason = openssl_.ERR_reason_error_string(first);
  why_ = std::string("TLS cannot begin: ") + (reason != nullptr ? reason : "OpenSSL does not say why");
  return Step::failed;
}

// --- Sending ---

ssize_t Tls::send(int socket, std::span<const iovec> vectors) {
  socket_ = socket;
  if (covered_ == 0) {
    // What OpenSSL has said of itself since, such as an alert, goes first; it covers nothing of the caller's.
    if (why_.empty() && !push_out()) {
      return -1;
    }
    openssl_.ERR_clear_error();
    covered_ = why_.empty() ? seal(vectors) : 0;
    if (!why_.empty()) {
      errno = EBADMSG;
      return -1;
    }
  }
  if (!push_out()) {
    return -1;
  }
  return static_cast<ssize_t>(std::exchange(covered_, 0));
}

bool Tls::push_out() {
  while (sealed_sent_ < sealed_.size()) {
    const ssize_t written = ::send(socket_, sealed_.data() + sealed_sent_, sealed_.size() - sealed_sent_, MSG_NOSIGNAL);
    if (written >= 0) {
      sealed_sent_ += static_cast<std::size_t>(written);
    } else if (errno != EINTR) {
      return false;
    }
  }
  sealed_.clear();
  sealed_sent_ = 0;
  return true;
}

// Encrypts at most a batch of these bytes, in whole records as far as there are enough; returns how many.
std::size_t Tls::seal(std::span<const iovec> vectors) {
  sealed_.reserve(sealed_room);
  staged_.clear();
  std::size_t total = 0;
  for (const iovec& vector : vectors) {
    std::span<const std::byte> piece(static_cast<const std::byte*>(vector.iov_base), vector.iov_len);
    while (!piece.empty() && total < batch_bytes) {
      const std::size_t count = std::min(piece.size(), record_bytes - staged_.size());
      // Whole records are encrypted from where they lie; a frame's header travels with the payload that follows it.
      const bool whole = count == record_bytes;
      if (!whole) {
        staged_.insert(staged_.end(), piece.begin(), piece.begin() + static_cast<std::ptrdiff_t>(count));
      }
      if (whole || staged_.size() == record_bytes) {
        if (!seal_record(whole ? piece.first(count) : std::span<const std::byte>(staged_))) {
          return 0;
        }
        staged_.clear();
      }
      piece = piece.subspan(count);
      total += count;
    }
  }
  return staged_.empty() || seal_record(staged_) ? total : 0;
}

bool Tls::seal_record(std::span<const std::byte> bytes) {
  if (++records_sealed_ > records_per_key_) {
    records_sealed_ = 1;
    if (openssl_.SSL_key_update(session_, key_update_of_ours) != 1) {
      fail("the key could not be replaced");
      return false;
    }
  }
  std::size_t written = 0;
  if (openssl_.SSL_write_ex(session_, bytes.data(), bytes.size(), &written) != 1 || written != bytes.size()) {
    fail("it cannot be encrypted");
    return false;
  }
  return true;
}

// --- Receiving ---

ssize_t Tls::receive(int socket, std::span<const iovec> vectors, bool from_kernel) {
  socket_ = socket;
  from_kernel_ = from_kernel;
  openssl_.ERR_clear_error();
  std::size_t total = 0;
  for (const iovec& vector : vectors) {
    std::size_t filled = 0;
    while (filled < vector.iov_len) {
      std::size_t count = 0;
      auto* const place = static_cast<std::byte*>(vector.iov_base) + filled;
      const int result = why_.empty() ? openssl_.SSL_read_ex(session_, place, vector.iov_len - filled, &count) : 0;
      if (result == 1) {
        filled += count;
        total += count;
        continue;
      }
      const int error = why_.empty() ? openssl_.SSL_get_error(session_, result) : 0;
      if (error == error_closed) {
        ended_ = true;
      } else if (error != error_wants_read && why_.empty()) {
        fail("what came was changed on its way, or is not for this connection");
        static_cast<void>(push_out());  // the alert, so that the other side hears of it
      }
      if (total > 0) {
        return static_cast<ssize_t>(total);
      }
      if (why_.empty() && error_ == 0 && ended_) {
        return 0;
      }
      errno = !why_.empty() ? EBADMSG : error_ != 0 ? error_ : EAGAIN;
      return -1;
    }
  }
  return static_cast<ssize_t>(total);
}

bool Tls::holds_bytes() const { return !why_.empty() || openssl_.SSL_has_pending(session_) == 1; }

// Until now buffers are small, and let go whenever they are empty: strangers get no more.
void Tls::read_ahead() {
  openssl_.SSL_set_default_read_buffer_len(session_, read_ahead_bytes);
  openssl_.SSL_ctrl(session_, control_clear_mode, mode_release_buffers, nullptr);
  openssl_.SSL_set_read_ahead(session_, 1);
}

void Tls::fail(const char* what) {
  const char* const reason = openssl_.ERR_reason_error_string(openssl_.ERR_get_error());
  why_ = std::string("encrypted connection: ") + what + " (" + (reason != nullptr ? reason : "no reason given") + ")";
  openssl_.ERR_clear_error();
}

}  // namespace shoal::tcp
