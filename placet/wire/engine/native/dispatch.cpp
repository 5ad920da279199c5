// What goes out: which move's slice is next, and how it gets into a ring or socket.
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>

#include "core.h"

namespace placet {
namespace {

constexpr uint64_t STAGED_BYTES = 1 << 16;  // small frames joined into one call
constexpr uint64_t COPIED_BYTES = 1 << 14;  // payloads up to this size are copied
// A reduction begins when its frame is whole, so long frames would leave slow links idle.
constexpr uint64_t SOCKET_SLICE = 1 << 15;
constexpr uint64_t RING_SLICE = 1 << 17;
constexpr uint64_t LEAST_PART = 1 << 13;    // no smaller piece of a slice into a ring
constexpr uint32_t OLDEST_EVERY = 16;
constexpr int SLICES_A_PASS = 64;           // to one peer, then the others have a turn

}  // namespace

bool Core::send_to(int p) {
    Peer& peer = *peers_[p];
    bool progressed = flush(p);
    peer.is_blocked = false;
    for (int k = 0; peer.alive && peer.outbox.empty(); k++) {
        Task* t = choose(p);
        if (!t) break;
        if (k == SLICES_A_PASS) {
            is_turn_over_ = true;
            break;
        }
        if (!send_slice(p, *t)) {
            peer.is_blocked = true;
            break;
        }
        progressed = true;
    }
    if (!peer.alive) return true;
    // Those that could send nothing yet must still say that they are there.
    std::vector<Task*> owed = std::move(peer.owed);
    peer.owed.clear();
    for (Task* t : owed) queue(p, READY, t->collective, t->fingerprint, {});
    progressed |= flush(p);
    if (!peer.alive) return true;
    if (!peer.outbox.empty()) peer.is_blocked = true;
    if (progressed && peer.has_rings()) ring_bell(peer, peer.out.shared->reader_sleeps);
    return progressed;
}

// The most urgent; of equals that which the peer is at, else the oldest. Every 16th
// slice goes to the oldest of all, so none waits for ever.
Task* Core::choose(int p) {
    Peer& peer = *peers_[p];
    bool oldest = peer.num_slices % OLDEST_EVERY == OLDEST_EVERY - 1;
    Task* best = nullptr;
    for (Task* t : peer.senders) {
        if (best && !oldest) break;
        if (best && best->order < t->order) continue;
        if (sendable(*t, *t->lane(t->sends, p))) best = t;
    }
    Task* sticky = peer.sticky;
    if (!best || oldest || !sticky || sticky == best) return best;
    if (sticky->priority != best->priority) return best;
    Lane* lane = sticky->lane(sticky->sends, p);
    return lane && !lane->ended() && sendable(*sticky, *lane) ? sticky : best;
}

uint64_t Core::sendable(Task& t, Lane& lane) const {
    const Instruction& i = t.instructions[lane.instructions[lane.at]];
    uint64_t n = t.allowed(i) - i.issued;
    if (!t.has_heard(lane.peer)) {
        uint64_t trust = lane.start < EAGER_BYTES ? EAGER_BYTES - lane.start : 0;
        n = std::min({n, trust, peers_[lane.peer]->trust_left});
    }
    return n - n % t.itemsize;
}

// Bytes of payload that a frame may hold now; 0 if none can be put.
uint64_t Core::room(int p, uint64_t wanted) const {
    const Peer& peer = *peers_[p];
    if (!peer.has_rings()) {
        const Stream& s = peer.streams[peer.next_out];
        bool full = s.big_left || s.staged.size() - s.staged_at >= STAGED_BYTES;
        return full ? 0 : std::min(wanted, SOCKET_SLICE);
    }
    uint64_t space = peer.out.space();
    wanted = std::min(wanted, RING_SLICE);
    if (space >= sizeof(Header) + padded(wanted)) return wanted;
    if (space < sizeof(Header) + LEAST_PART) return 0;
    return (space - sizeof(Header)) & ~uint64_t(15);
}

bool Core::send_slice(int p, Task& t) {
    Peer& peer = *peers_[p];
    Lane& lane = *t.lane(t.sends, p);
    uint32_t index = lane.instructions[lane.at];
    Instruction& i = t.instructions[index];
    uint64_t n = room(p, sendable(t, lane));
    n -= n % t.itemsize;
    if (!n) return false;
    Header h = make_header(DATA, epoch_);
    h.collective = t.collective;
    h.fingerprint = t.fingerprint;
    h.start = lane.start;
    h.lane_bytes = lane.total;
    h.num_bytes = uint32_t(n);
    const char* body = i.src + i.issued;
    i.issued += n;
    lane.start += n;
    peer.num_slices++;
    if (!t.has_heard(p)) {
        lane.unheard += n;
        peer.trust_left -= n;
    }
    if (peer.current && peer.current != &t) num_preemptions++;
    if (i.issued == i.num_bytes) lane.at++;
    peer.current = lane.ended() ? nullptr : &t;
    if (lane.ended())
        peer.senders.erase(std::find(peer.senders.begin(), peer.senders.end(), &t));
    peer.owed.erase(std::remove(peer.owed.begin(), peer.owed.end(), &t), peer.owed.end());
    if (put(p, h, body, &t, index)) {
        t.progress(i, n);
        run_locals(t, LOCAL_BYTES);
    }
    return true;
}

// Put a frame into the ring or a socket's queue. True if its payload was copied; else it
// is read from the task's memory until `flush_stream` is through with it.
bool Core::put(int p, const Header& h, const char* body, Task* t, uint32_t instruction) {
    Peer& peer = *peers_[p];
    control_bytes += h.kind == DATA ? sizeof h : sizeof h + h.num_bytes;
    if (peer.has_rings()) {
        peer.out.write(&h, sizeof h, body, h.num_bytes);
        return true;
    }
    Stream& s = peer.streams[peer.next_out];
    peer.next_out = (peer.next_out + 1) % peer.streams.size();
    auto head = reinterpret_cast<const char*>(&h);
    s.staged.insert(s.staged.end(), head, head + sizeof h);
    // With several sockets frames may end in any order, so none may be half done.
    if (h.num_bytes <= COPIED_BYTES || !t || peer.streams.size() > 1) {
        s.staged.insert(s.staged.end(), body, body + h.num_bytes);
        return true;
    }
    s.big = body;
    s.big_left = h.num_bytes;
    s.big_task = t;
    s.big_instruction = instruction;
    flush_stream(p, s);
    return false;
}

void Core::queue(int p, uint8_t kind, uint64_t collective, uint64_t fingerprint,
                 std::string body) {
    Header h = make_header(kind, epoch_);
    h.collective = collective;
    h.fingerprint = fingerprint;
    h.num_bytes = uint32_t(body.size());
    peers_[p]->outbox.push_back({h, std::move(body)});
}

// Control frames, then what sockets still hold.
bool Core::flush(int p) {
    Peer& peer = *peers_[p];
    bool progressed = false;
    while (peer.alive && !peer.outbox.empty()) {
        OutFrame& frame = peer.outbox.front();
        uint64_t size = sizeof(Header) + padded(frame.body.size());
        bool fits = peer.has_rings() ? peer.out.space() >= size : room(p, 1) > 0;
        if (!fits) break;
        put(p, frame.header, frame.body.data(), nullptr, 0);
        peer.outbox.pop_front();
        progressed = true;
    }
    if (peer.has_rings()) return progressed;
    for (Stream& s : peer.streams)
        if (peer.alive && !s.idle_out()) progressed |= flush_stream(p, s);
    return progressed;
}

bool Core::flush_stream(int p, Stream& s) {
    bool progressed = false;
    while (!s.idle_out()) {
        size_t small = s.staged.size() - s.staged_at;
        iovec parts[2] = {{s.staged.data() + s.staged_at, small},
                          {const_cast<char*>(s.big), s.big_left}};
        msghdr message{};
        message.msg_iov = small ? parts : parts + 1;
        message.msg_iovlen = (small ? 1 : 0) + (s.big_left ? 1 : 0);
        ssize_t n = sendmsg(s.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            watch_out(s, true);
            return progressed;
        }
        if (n < 0) {
            s.readable = true;  // what it sent before it ended still counts
            if (!receive_streams(p) && peers_[p]->alive) lost(p, strerror(errno));
            return true;
        }
        progressed = true;
        size_t from_small = std::min(size_t(n), small), from_big = n - from_small;
        s.staged_at += from_small;
        if (s.staged_at == s.staged.size()) {
            s.staged.clear();
            s.staged_at = 0;
        }
        if (!from_big) continue;
        s.big += from_big;
        s.big_left -= from_big;
        Task& t = *s.big_task;
        if (!s.big_left) s.big_task = nullptr;
        t.progress(t.instructions[s.big_instruction], from_big);
        run_locals(t, LOCAL_BYTES);
    }
    watch_out(s, false);
    return progressed;
}

void Core::watch_out(Stream& s, bool on) {
    if (s.wants_out == on || s.fd < 0) return;
    s.wants_out = on;
    epoll_event e{};
    e.events = SOCKET_EVENTS | (on ? uint32_t(EPOLLOUT) : 0u);
    e.data.u64 = s.id;
    epoll_ctl(epoll_, EPOLL_CTL_MOD, s.fd, &e);
}

// Wake a peer that said it sleeps, once.
void Core::ring_bell(Peer& peer, std::atomic<uint32_t>& sleeps) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!sleeps.load(std::memory_order_relaxed)) return;
    if (!sleeps.exchange(0)) return;
    char bell = 1;
    if (::send(peer.streams[0].fd, &bell, 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {}
}

}  // namespace placet
