// What comes in: frames are checked, and their bytes put where they belong.
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "core.h"

namespace placet {
namespace {

constexpr size_t IN_BYTES = 1 << 16;      // a socket's read buffer
constexpr int FRAMES_A_PASS = 64;         // of one peer, then the others have a turn
constexpr char BROKEN_LANE[] = "sent bytes that do not go on where their lane stands";
constexpr size_t MANY_MARKS = EARLY_BYTES / 2;  // early frames of a peer, empty or not

}  // namespace

bool Core::receive(int p) {
    Peer& peer = *peers_[p];
    if (!peer.has_rings()) return receive_streams(p);
    bool progressed = receive_ring(p);
    Stream& bells = peer.streams[0];
    if (!peer.alive || !bells.readable) return progressed;
    char bytes[256];
    ssize_t n = recv(bells.fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n > 0) return true;
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        bells.readable = errno == EINTR;
        return progressed;
    }
    std::string why = n == 0 ? "its connection closed" : strerror(errno);
    // What it wrote before it ended counts: a ring full of frames at most.
    uint64_t passes = peer.in.capacity / (FRAMES_A_PASS * sizeof(Header)) + 1;
    while (peer.alive && passes-- && receive_ring(p)) {}
    if (peer.alive) lost(p, why);
    return true;
}

bool Core::receive_ring(int p) {
    Peer& peer = *peers_[p];
    uint64_t available = peer.in.available(), taken = 0;
    for (int k = 0; k < FRAMES_A_PASS && available >= sizeof(Header) && peer.alive; k++) {
        if (available > peer.in.capacity) {
            lost(p, "wrote beyond the end of its ring");
            return true;
        }
        Header h;
        peer.in.get(0, &h, sizeof h);
        const char* fault = fault_of(h);
        uint64_t size = sizeof h + padded(h.num_bytes);
        if (!fault && size > available) fault = "num_bytes: more than was written";
        if (fault) {
            lost(p, std::string("sent a malformed frame (") + fault + ")");
            return true;
        }
        uint64_t first = h.num_bytes;
        const char* a = peer.in.piece(sizeof h, first);
        deliver(p, h, a, first, peer.in.data, h.num_bytes - first);
        if (!peer.alive) return true;
        peer.in.drop(size);
        available -= size;
        taken += size;
        if (available < sizeof h) available = peer.in.available();
    }
    if (!taken) return false;
    ring_bell(peer, peer.in.shared->writer_sleeps);
    return true;
}

bool Core::receive_streams(int p) {
    Peer& peer = *peers_[p];
    bool progressed = false;
    for (int k = 0; peer.alive; k++) {
        if (k == FRAMES_A_PASS) {
            is_turn_over_ = true;
            break;
        }
        Stream& s = peer.streams[peer.next_in];
        bool turn_over = false;
        progressed |= receive_stream(p, s, turn_over);
        if (!peer.alive) return true;
        if (!turn_over) break;
        peer.next_in = (peer.next_in + 1) % peer.streams.size();
    }
    for (Stream& s : peer.streams) {  // one may end when it is not its turn
        char byte;
        if (peer.alive && s.hung_up && recv(s.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
            lost(p, "its connection closed");
    }
    return progressed;
}

// One frame of a socket, or as much of it as is there.
bool Core::receive_stream(int p, Stream& s, bool& turn_over) {
    if (s.in.empty()) s.in.resize(IN_BYTES);
    bool progressed = false;
    while (true) {
        size_t have = s.in_end - s.in_at;
        char* to = nullptr;
        size_t most = 0;
        bool whole = false;  // read past the buffer, into the payload's own place
        if (!s.in_payload && have >= sizeof(Header)) {
            memcpy(&s.header, s.in.data() + s.in_at, sizeof(Header));
            s.in_at += sizeof(Header);
            if (const char* fault = fault_of(s.header)) {
                lost(p, std::string("sent a malformed frame (") + fault + ")");
                return true;
            }
            if (!begin_payload(p, s)) return true;
            progressed = true;
            continue;
        }
        if (s.in_payload) {
            size_t need = s.header.num_bytes - s.got;
            size_t n = std::min(have, need);
            char* place = (s.direct ? s.direct : s.body.data()) + s.got;
            if (n) memcpy(place, s.in.data() + s.in_at, n);
            s.in_at += n;
            s.got += n;
            if (n == need) {
                s.in_payload = false;
                turn_over = true;
                Task* t = s.direct_task;
                char* direct = s.direct;
                s.direct = nullptr;
                s.direct_task = nullptr;
                if (t) absorb(*t, *t->lane(t->receives, p), direct, s.header.num_bytes);
                else deliver(p, s.header, s.body.data(), s.header.num_bytes, nullptr, 0);
                return true;
            }
            whole = need - n >= IN_BYTES / 4;
            to = place + n;
            most = need - n;
        }
        if (!s.readable) return progressed;
        if (!whole) {
            if (s.in_at == s.in_end) s.in_at = s.in_end = 0;
            if (s.in_at) {
                memmove(s.in.data(), s.in.data() + s.in_at, s.in_end - s.in_at);
                s.in_end -= s.in_at;
                s.in_at = 0;
            }
            to = s.in.data() + s.in_end;
            most = s.in.size() - s.in_end;
        }
        ssize_t n = recv(s.fd, to, most, MSG_DONTWAIT);
        if (n > 0) {
            (whole ? s.got : s.in_end) += n;
            progressed = true;
        } else if (n < 0 && errno == EINTR) {
            continue;
        } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            s.readable = false;
            return progressed;
        } else {
            lost(p, n == 0 ? "its connection closed" : strerror(errno));
            return true;
        }
    }
}

// A header has come: decide where its payload goes. False if the link ended.
bool Core::begin_payload(int p, Stream& s) {
    const Header& h = s.header;
    s.in_payload = true;
    s.got = 0;
    s.direct = nullptr;
    if (s.body.size() < h.num_bytes) s.body.resize(h.num_bytes);
    if (h.kind == DATA && h.epoch == epoch_) {
        auto found = tasks_.find(h.collective);
        if (found != tasks_.end()) {
            Task& t = *found->second;
            if (!fits(t, p, h)) return peers_[p]->alive;
            if (t.state != PENDING) return true;
            Lane& lane = *t.lane(t.receives, p);
            Instruction& i = t.instructions[lane.instructions[lane.at]];
            if (i.kind == RECEIVE && i.num_bytes - i.done >= h.num_bytes) {
                s.direct = i.dst + i.done;
                s.direct_task = &t;
                control_bytes += sizeof h;
                return true;
            }
        }
    }
    return true;
}

// The payload lies in two pieces where a ring wraps.
void Core::deliver(int p, const Header& h, const char* a, uint64_t na, const char* b,
                   uint64_t nb) {
    Peer& peer = *peers_[p];
    if (h.kind != DATA) control_bytes += sizeof h + na + nb;
    else control_bytes += sizeof h;
    if (h.kind == CONTROL) {
        std::string text(a, na);
        if (nb) text.append(b, nb);
        return post(MESSAGE, p, 0, std::move(text));
    }
    if (h.kind == BYE) {
        peer.said_bye = true;
        return;
    }
    if (h.epoch < epoch_) return;
    auto found = h.epoch == epoch_ ? tasks_.find(h.collective) : tasks_.end();
    if (found == tasks_.end()) return deliver_early(p, h, a, na, b, nb);
    take(*found->second, p, h, a, na, b, nb);
}

// Of a collective that is not submitted here: not yet, or not any more.
void Core::deliver_early(int p, const Header& h, const char* a, uint64_t na,
                         const char* b, uint64_t nb) {
    Peer& peer = *peers_[p];
    bool is_later = h.epoch > epoch_;
    if (!is_later) {
        // A peer says READY for a task that ended here only if we sent it data on trust,
        // so its account is open: this rule tells "not any more" from "not yet".
        auto open = peer.unheard.find(h.collective);
        if (open != peer.unheard.end()) {
            peer.trust_left += open->second;
            peer.unheard.erase(open);
            return;
        }
        if (failed_.count(h.collective)) return;
    }
    auto& parts = is_later ? later_ : early_[h.collective];
    bool too_many = peer.num_early >= MANY_MARKS;
    bool too_far = h.kind == DATA && h.start + h.num_bytes > EAGER_BYTES;
    if (too_many || too_far || peer.early_bytes + h.num_bytes > EARLY_BYTES)
        return lost(p, "sent more of a lane than it may before READY");
    if (h.kind == DATA && !is_later) {
        auto last = parts.rbegin();
        while (last != parts.rend() && (last->peer != p || last->header.kind != DATA))
            last++;
        bool is_first = last == parts.rend();
        uint64_t moved = is_first ? 0 : last->header.start + last->header.num_bytes;
        bool same = is_first || (last->header.fingerprint == h.fingerprint &&
                                 last->header.lane_bytes == h.lane_bytes);
        if (h.start != moved || !same) return lost(p, BROKEN_LANE);
    }
    peer.early_bytes += h.num_bytes;
    peer.num_early++;
    std::string body(a ? a : "", na);
    if (nb) body.append(b, nb);
    parts.push_back({p, h, std::move(body)});
}

// Data or READY of a submitted task.
void Core::take(Task& t, int p, const Header& h, const char* a, uint64_t na,
                const char* b, uint64_t nb) {
    if (!fits(t, p, h) || t.state != PENDING || h.kind != DATA) return;
    Lane& lane = *t.lane(t.receives, p);
    if (na) absorb(t, lane, a, na);
    if (nb && t.state == PENDING) absorb(t, lane, b, nb);
}

// Whether what a peer says of a task agrees with ours. The link ends where a frame breaks
// the order of its lane, the task where ranks submitted different moves.
bool Core::fits(Task& t, int p, const Header& h) {
    if (t.state != PENDING) return true;
    Lane* lane = t.lane(t.receives, p);
    bool same = h.fingerprint == t.fingerprint;
    if (h.kind == DATA) same &= lane && lane->total == h.lane_bytes;
    bool has_begun = h.kind == DATA && lane && lane->start;
    if (!same && !has_begun) {
        mismatch(t, p, h, lane ? lane->total : 0);
        return false;
    }
    if (h.kind != DATA) {
        hear(t, p);
        return true;
    }
    if (!same || h.start != lane->start) {
        lost(p, BROKEN_LANE);
        return false;
    }
    if (h.num_bytes % t.itemsize) {
        lost(p, "sent a part of an element");
        return false;
    }
    hear(t, p);
    peers_[p]->sticky = &t;
    return true;
}

// The peer has submitted the task, too: it may be sent to without limit.
void Core::hear(Task& t, int p) {
    if (t.has_heard(p)) return;
    t.heard.push_back(p);
    if (Lane* lane = t.lane(t.sends, p)) {
        peers_[p]->trust_left += lane->unheard;
        lane->unheard = 0;
    }
}

// The next bytes of a lane; `data` may already be where they belong.
void Core::absorb(Task& t, Lane& lane, const char* data, uint64_t n) {
    lane.start += n;
    while (n) {
        Instruction& i = t.instructions[lane.instructions[lane.at]];
        uint64_t m = std::min(n, i.num_bytes - i.done);
        char* dst = i.dst + i.done;
        if (i.kind == RECEIVE_REDUCE)
            reduce(t.dtype, t.reduction, dst, i.src + i.done, data, m);
        else if (dst != data)
            memcpy(dst, data, m);
        t.progress(i, m);
        if (i.done == i.num_bytes) lane.at++;
        data += m;
        n -= m;
    }
    run_locals(t, LOCAL_BYTES);
}

void Core::mismatch(Task& t, int p, const Header& h, uint64_t expected) {
    std::string text = "{\"fingerprint\": " + std::to_string(h.fingerprint) +
                       ", \"lane_bytes\": " + std::to_string(h.lane_bytes) +
                       ", \"expected_bytes\": " + std::to_string(expected) + "}";
    hear(t, p);
    queue(p, READY, t.collective, t.fingerprint, {});  // so that it sees the same
    fail_task(t);  // before the event: whoever reads it must find the task failed
    post(MISMATCH, p, reinterpret_cast<uint64_t>(&t), std::move(text));
}

// A link ended: tasks that still need it fail.
void Core::lost(int p, const std::string& why) {
    Peer& peer = *peers_[p];
    if (!peer.alive) return;  // by what it sent early, before its end
    peer.alive = peer.is_blocked = false;
    for (Stream& s : peer.streams) {
        epoll_ctl(epoll_, EPOLL_CTL_DEL, s.fd, nullptr);
        shutdown(s.fd, SHUT_RDWR);  // others may hold it, too
        ::close(s.fd);
        s.fd = -1;
    }
    peer.outbox.clear();
    post(peer.said_bye ? LEFT : LOST, p, 0, why);
    std::vector<Task*> broken;
    for (auto& [_, t] : tasks_)
        if (t->needs(p)) broken.push_back(t);
    for (Task* t : broken) fail_task(*t);
    peer.senders.clear();
    peer.owed.clear();
}

// A task fails while its bytes are under way: frames must stay whole on their streams,
// but its memory belongs to the caller again.
void Core::detach(Task& t) {
    for (auto& peer : peers_) {
        for (Stream& s : peer->streams) {
            if (s.direct_task == &t) {
                s.body.resize(std::max<size_t>(s.body.size(), s.header.num_bytes));
                s.direct = nullptr;
                s.direct_task = nullptr;
            }
            if (s.big_task == &t) {
                s.staged.insert(s.staged.end(), s.big, s.big + s.big_left);
                s.big = nullptr;
                s.big_left = 0;
                s.big_task = nullptr;
            }
        }
    }
}

}  // namespace placet
