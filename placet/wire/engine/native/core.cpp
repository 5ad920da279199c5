// Threads, tasks and epochs. See core.h, NOTE [Who moves the bytes].
#include "core.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace placet {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t INLINE_BYTES = 1 << 20;  // submit itself moves tasks up to this size
constexpr int UNSENT_BYTES = 1 << 17;       // that a TCP socket may hold back
constexpr int NAP_MILLISECONDS = 200;
constexpr uint32_t PASSES_A_LOOK = 256;
constexpr auto DOZE = std::chrono::microseconds(50);

double since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

Core::Core(int number, double spin_seconds)
    : number_(number), spin_seconds_(spin_seconds) {
    epoll_ = epoll_create1(EPOLL_CLOEXEC);
    wake_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    epoll_event e{};
    e.events = EPOLLIN;
    e.data.u64 = ~uint64_t(0);
    epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &e);
}

void Core::link(int number, const int* fds, int num_fds, int send_memory,
                int receive_memory, uint64_t memory_bytes) {
    auto peer = std::make_unique<Peer>();
    peer->number = number;
    peer->alive = true;
    auto map = [&](int fd) {
        void* at = mmap(nullptr, memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        ::close(fd);
        return at == MAP_FAILED ? nullptr : static_cast<char*>(at);
    };
    if (send_memory >= 0 && receive_memory >= 0) {
        char* out = map(send_memory);
        char* in = map(receive_memory);
        if (out && in) {
            peer->out.attach(out, memory_bytes);
            peer->in.attach(in, memory_bytes);
        }
    }
    if (!peer->has_rings()) has_sockets_ = true;
    uint64_t p = peers_.size();
    peer->streams.resize(num_fds);
    for (int k = 0; k < num_fds; k++) {
        peer->streams[k].fd = fds[k];
        fcntl(fds[k], F_SETFL, fcntl(fds[k], F_GETFL) | O_NONBLOCK);
        // What the kernel has taken cannot be overtaken; fails on Unix sockets, rightly.
        setsockopt(fds[k], IPPROTO_TCP, TCP_NOTSENT_LOWAT, &UNSENT_BYTES, sizeof(int));
        epoll_event e{};
        e.events = SOCKET_EVENTS;
        e.data.u64 = peer->streams[k].id = p << 32 | uint64_t(k);
        epoll_ctl(epoll_, EPOLL_CTL_ADD, fds[k], &e);
    }
    peers_.push_back(std::move(peer));
}

void Core::start() {
    thread_ = std::thread([this] { run(); });
}

Core::~Core() {
    close();
    empty_trash();
    ::close(wake_);
    ::close(epoll_);
}

// Let go of sockets and shared memory. Callers that come late find all peers gone.
void Core::unlink_all() {
    for (auto& peer : peers_) {
        peer->alive = false;
        for (Stream& s : peer->streams) {
            if (s.fd >= 0) ::close(s.fd);
            s.fd = -1;
        }
        for (Ring* ring : {&peer->out, &peer->in}) {
            if (*ring) munmap(ring->shared, RING_HEAD_BYTES + ring->capacity);
            *ring = Ring{};
        }
    }
}

int Core::index_of(int number) const {
    for (size_t p = 0; p < peers_.size(); p++)
        if (peers_[p]->number == number) return int(p);
    return -1;
}

// --- threads ---

void Core::run() {
    prctl(PR_SET_TIMERSLACK, 1000ul);  // else a doze takes 50 microseconds more
    int num_naps = 0;
    Lock lock(mutex_);
    while (!is_closing_) {
        if (has_leader_) {
            stand_by_.wait(lock);
        } else if (pass()) {
            num_naps = 0;
            let_others_in(lock);
        } else if (num_naps++ == 0) {
            // News come in bursts: doze once without asking for bells, so that a burst
            // wakes this thread once and not at each of its frames.
            lock.unlock();
            std::this_thread::sleep_for(DOZE);
            lock.lock();
        } else {
            empty_trash();
            is_asleep_ = true;
            sleep(lock, NAP_MILLISECONDS, false);
            is_asleep_ = false;
            if (has_leader_) kick();  // what woke us was meant for the leader
        }
    }
}

int Core::wait(Task* task, double seconds) {
    if (task->state.load(std::memory_order_acquire) != PENDING) return task->state;
    auto begin = Clock::now(), idle_since = begin;
    Lock lock = enter_door();
    num_waiting_++;
    while (task->state == PENDING && has_leader_ && since(begin) < seconds)
        done_.wait_for(lock, std::chrono::milliseconds(20));
    if (task->state == PENDING && !has_leader_ && !is_closing_) {
        has_leader_ = true;
        disarm();
        bool interrupted = false, has_slept = false;
        while (task->state == PENDING && !interrupted && since(begin) < seconds) {
            has_slept = false;
            if (pass()) {
                idle_since = Clock::now();
                let_others_in(lock);
            } else if (since(idle_since) >= spin_seconds_) {
                double left = std::max(0.0, seconds - since(begin)) * 1e3;
                interrupted = sleep(lock, std::min(NAP_MILLISECONDS, int(left) + 1), true);
                has_slept = true;
            } else if (has_sockets_) {
                epoll_event events[64];
                note(events, epoll_wait(epoll_, events, 64, 0));
            }
        }
        // What woke us is told once: the core's own thread, asleep, would not hear of it.
        if (has_slept && !is_closing_) pass();
        has_leader_ = false;
        hand_back();
    }
    num_waiting_--;
    return task->state;
}

void Core::let_others_in(Lock& lock) {
    if (!num_at_door_) return;
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
}

// Until a peer rings, a socket is ready or somebody kicks. True if a signal came: Python
// must see it.
bool Core::sleep(Lock& lock, int milliseconds, bool as_leader) {
    bool interrupted = false;
    if (!arm()) {
        epoll_event events[64];
        num_asleep_++;
        lock.unlock();
        int n = epoll_wait(epoll_, events, 64, milliseconds);
        interrupted = n < 0 && errno == EINTR;
        lock.lock();
        num_asleep_--;
        note(events, n);
    }
    if (as_leader || !has_leader_) disarm();
    return interrupted;
}

// The leader goes: the core's own thread must listen again.
void Core::hand_back() {
    if (!is_asleep_) stand_by_.notify_one();
    else if (arm() || is_turn_over_ || !busy_.empty()) kick();
    if (num_waiting_ > 1) done_.notify_all();
}

void Core::kick() {
    if (!num_asleep_) return;
    uint64_t one = 1;
    if (::write(wake_, &one, sizeof one) < 0) {}  // full: it will wake anyway
}

bool Core::anything_blocked() const {
    for (auto& peer : peers_)
        if (peer->is_blocked) return true;
    return is_turn_over_ || !busy_.empty();
}

// We are awake: peers need not ring.
void Core::disarm() {
    for (auto& peer : peers_) {
        if (!peer->has_rings()) continue;
        peer->in.shared->reader_sleeps.store(0, std::memory_order_relaxed);
        peer->out.shared->writer_sleeps.store(0, std::memory_order_relaxed);
    }
}

// About to sleep: say so, then look once more. True if there is something to do.
bool Core::arm() {
    for (auto& peer : peers_) {
        if (!peer->has_rings() || !peer->alive) continue;
        peer->in.shared->reader_sleeps.store(1, std::memory_order_relaxed);
        if (peer->is_blocked)
            peer->out.shared->writer_sleeps.store(1, std::memory_order_relaxed);
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (auto& peer : peers_) {
        if (!peer->has_rings() || !peer->alive) continue;
        if (peer->in.available() >= sizeof(Header)) return true;
        if (peer->is_blocked && peer->out.space() > peer->out.capacity / 4) return true;
    }
    return false;
}

// Which sockets can be read.
void Core::note(const epoll_event* events, int num_events) {
    for (int i = 0; i < num_events; i++) {
        uint64_t id = events[i].data.u64;
        if (id == ~uint64_t(0)) {
            uint64_t count;
            if (::read(wake_, &count, sizeof count) < 0) {}
            continue;
        }
        Stream& s = peers_[id >> 32]->streams[uint32_t(id)];
        constexpr uint32_t ends = EPOLLHUP | EPOLLERR | EPOLLRDHUP;
        if (events[i].events & (EPOLLIN | ends)) s.readable = true;
        if (events[i].events & ends) s.hung_up = true;
    }
}

// --- one pass over everything ---

bool Core::pass() {
    bool progressed = false;
    is_turn_over_ = false;
    if (++num_passes_ % PASSES_A_LOOK == 0) {  // busy or not, see who died
        epoll_event events[64];
        note(events, epoll_wait(epoll_, events, 64, 0));
    }
    for (size_t p = 0; p < peers_.size(); p++)
        if (peers_[p]->alive) progressed |= receive(int(p));
    for (size_t i = 0; i < busy_.size();) {
        Task* t = busy_[i];
        progressed |= run_locals(*t, LOCAL_BYTES);
        if (i < busy_.size() && busy_[i] == t) i++;  // not ended meanwhile
    }
    busy_.erase(std::remove_if(busy_.begin(), busy_.end(),
                               [](Task* t) { return !t->is_busy; }),
                busy_.end());
    for (size_t p = 0; p < peers_.size(); p++)
        if (peers_[p]->alive) progressed |= send_to(int(p));
    return progressed;
}

// REDUCE and COPY as far as what they follow allows; ends the task if all is done.
bool Core::run_locals(Task& t, uint64_t budget) {
    bool progressed = false, again = true;
    while (again && budget && t.state == PENDING) {
        again = false;
        for (size_t k = 0; k < t.locals.size() && budget;) {
            Instruction& i = t.instructions[t.locals[k]];
            uint64_t n = std::min(t.allowed(i) - i.done, budget);
            n -= n % t.itemsize;
            if (n) {
                if (i.kind == COPY) {
                    if (i.dst != i.src) memcpy(i.dst + i.done, i.src + i.done, n);
                } else {
                    reduce(t.dtype, t.reduction, i.dst + i.done, i.src + i.done,
                           i.other + i.done, n);
                }
                t.progress(i, n);
                budget -= n;
                progressed = again = true;
            }
            if (i.done == i.num_bytes) t.locals.erase(t.locals.begin() + k);
            else k++;
        }
    }
    t.is_busy = !budget && !t.locals.empty();
    if (t.is_busy && std::find(busy_.begin(), busy_.end(), &t) == busy_.end())
        busy_.push_back(&t);
    if (!t.num_undone && t.state == PENDING) finish(t);
    return progressed;
}

// --- tasks ---

Task* Core::submit(std::unique_ptr<Task> owned) {
    Task* t = owned.release();
    uint64_t num_bytes = 0;
    for (Lane& lane : t->sends) num_bytes += lane.total;
    for (Lane& lane : t->receives) num_bytes += lane.total;
    Lock lock = enter_door();
    t->order = next_order_++;
    if (is_closing_) {
        t->state = FAILED;
        return t;
    }
    empty_trash();
    enter(*t);
    if (num_bytes > INLINE_BYTES) {
        kick();
        return t;
    }
    // Small: send it from here, and let nobody be woken for it if all is said.
    for (auto* lanes : {&t->sends, &t->receives})
        for (Lane& lane : *lanes)
            if (peers_[lane.peer]->alive) send_to(lane.peer);
    if (anything_blocked()) kick();
    return t;
}

void Core::enter(Task& t) {
    tasks_[t.collective] = &t;
    for (Lane& lane : t.sends) {
        auto& senders = peers_[lane.peer]->senders;
        auto before = [](Task* a, Task* b) {
            return a->priority != b->priority ? a->priority > b->priority
                                              : a->order < b->order;
        };
        senders.insert(std::upper_bound(senders.begin(), senders.end(), &t, before), &t);
    }
    for (Lane& lane : t.receives) peers_[lane.peer]->owed.push_back(&t);
    auto found = early_.find(t.collective);
    if (found != early_.end()) {
        std::vector<EarlyPart> parts = std::move(found->second);
        early_.erase(found);
        num_early++;
        for (EarlyPart& part : parts) {
            peers_[part.peer]->early_bytes -= part.body.size();
            peers_[part.peer]->num_early--;
            if (t.state == PENDING)
                take(t, part.peer, part.header, part.body.data(), part.body.size(),
                     nullptr, 0);
        }
    }
    // Data of a peer that is gone may be here already; else there is nothing to wait for.
    for (auto* lanes : {&t.sends, &t.receives})
        for (Lane& lane : *lanes)
            if (!peers_[lane.peer]->alive && t.needs(lane.peer)) return fail_task(t);
    if (t.state == PENDING) run_locals(t, LOCAL_BYTES);
}

// Take a task out of everything but its own memory.
void Core::leave(Task& t) {
    tasks_.erase(t.collective);
    t.is_busy = false;
    busy_.erase(std::remove(busy_.begin(), busy_.end(), &t), busy_.end());
    for (Lane& lane : t.sends) {
        Peer& peer = *peers_[lane.peer];
        auto& s = peer.senders;
        s.erase(std::remove(s.begin(), s.end(), &t), s.end());
        // Given back when the peer is heard, however late: see `hear`.
        if (lane.unheard) peer.unheard[t.collective] = lane.unheard;
        if (peer.current == &t) peer.current = nullptr;
    }
    for (Lane& lane : t.receives) {
        Peer& peer = *peers_[lane.peer];
        if (peer.sticky == &t) peer.sticky = nullptr;
    }
}

void Core::finish(Task& t) { end(t, DONE); }

void Core::fail_task(Task& t) {
    if (t.state != PENDING) return;
    detach(t);
    failed_.insert(t.collective);
    end(t, FAILED);
}

void Core::fail_all() {
    std::vector<Task*> all;
    for (auto& [_, t] : tasks_) all.push_back(t);
    for (Task* t : all) fail_task(*t);
}

void Core::end(Task& t, int state) {
    // That it was submitted must be said even though it ends here: what peers sent on
    // trust is acknowledged by it, and those of a failed task need not guess.
    for (Lane& lane : t.receives) {
        auto& owed = peers_[lane.peer]->owed;
        auto at = std::find(owed.begin(), owed.end(), &t);
        if (at == owed.end()) continue;
        owed.erase(at);
        queue(lane.peer, READY, t.collective, t.fingerprint, {});
    }
    leave(t);
    uint64_t handle = reinterpret_cast<uint64_t>(&t);
    bool notify = t.notify;
    t.state.store(state, std::memory_order_release);
    if (notify) post(FINISHED, -1, handle, {});
    if (num_waiting_) done_.notify_all();
}

void Core::fail(Task* task) {
    Lock lock = enter_door();
    fail_task(*task);
    kick();  // it may have left a READY to send
}

// The task's memory goes at the end of a pass: one under way may still hold it.
void Core::release(Task* task) {
    std::lock_guard<std::mutex> lock(trash_mutex_);
    trash_.push_back(task);
}

void Core::empty_trash() {
    std::lock_guard<std::mutex> lock(trash_mutex_);
    for (Task* t : trash_) delete t;
    trash_.clear();
}

void Core::heard(Task* task, std::vector<int>& numbers) {
    Lock lock = enter_door();
    for (int p : task->heard) numbers.push_back(peers_[p]->number);
}

// --- messages, events, epochs, the end ---

bool Core::send(int number, const char* data, uint64_t num_bytes) {
    Lock lock = enter_door();
    int p = index_of(number);
    if (p < 0 || is_closing_ || !peers_[p]->alive) return false;
    queue(p, CONTROL, 0, 0, std::string(data, num_bytes));
    send_to(p);
    if (anything_blocked()) kick();
    return true;
}

void Core::post(int kind, int peer, uint64_t handle, std::string data) {
    int number = peer < 0 ? -1 : peers_[peer]->number;
    std::lock_guard<std::mutex> lock(event_mutex_);
    events_.push_back({kind, number, handle, std::move(data)});
    event_ready_.notify_one();
}

bool Core::next_event(double seconds, Event& event) {
    Lock lock(event_mutex_);
    auto most = std::chrono::duration<double>(seconds);
    event_ready_.wait_for(lock, most, [&] { return !events_.empty() || is_over_; });
    if (events_.empty()) return false;
    event = std::move(events_.front());
    events_.pop_front();
    return true;
}

void Core::advance(uint32_t epoch, const std::vector<int>& lost_numbers) {
    Lock lock = enter_door();
    fail_all();
    epoch_ = epoch;
    early_.clear();
    failed_.clear();
    for (size_t p = 0; p < peers_.size(); p++) {
        Peer& peer = *peers_[p];
        peer.trust_left = EARLY_BYTES;
        peer.early_bytes = 0;
        peer.num_early = 0;
        peer.unheard.clear();
        bool is_lost = std::count(lost_numbers.begin(), lost_numbers.end(), peer.number);
        if (is_lost && peer.alive) lost(int(p), "left out of the new group");
    }
    std::vector<EarlyPart> parts = std::move(later_);
    later_.clear();
    for (EarlyPart& part : parts)
        if (peers_[part.peer]->alive)
            deliver(part.peer, part.header, part.body.data(), part.body.size(), nullptr,
                    0);
    kick();
}

void Core::close() {
    Lock lock = enter_door();
    if (is_closed_) return;
    is_closed_ = true;
    fail_all();
    for (size_t p = 0; p < peers_.size(); p++)
        if (peers_[p]->alive) queue(int(p), BYE, 0, 0, {});
    auto go_on_while = [&](auto&& holds) {
        auto begin = Clock::now();
        while (std::any_of(peers_.begin(), peers_.end(), holds) && since(begin) < 1.0) {
            if (pass()) continue;
            epoll_event events[64];
            lock.unlock();
            int n = epoll_wait(epoll_, events, 64, 1);
            lock.lock();
            note(events, n);
        }
    };
    go_on_while([](auto& peer) {
        if (!peer->alive) return false;
        if (!peer->outbox.empty()) return true;
        auto is_idle = [](Stream& s) { return s.idle_out(); };
        return !std::all_of(peer->streams.begin(), peer->streams.end(), is_idle);
    });
    // Read on until the others have closed, too: a socket that is closed with data unread
    // takes what it sent last with it.
    for (auto& peer : peers_)
        for (Stream& s : peer->streams)
            if (s.fd >= 0) shutdown(s.fd, SHUT_WR);
    go_on_while([](auto& peer) { return peer->alive && !peer->has_rings(); });
    is_closing_ = true;
    stand_by_.notify_all();
    done_.notify_all();
    kick();
    lock.unlock();
    if (thread_.joinable()) thread_.join();
    lock.lock();
    unlink_all();
    lock.unlock();
    {
        std::lock_guard<std::mutex> over(event_mutex_);
        is_over_ = true;
        event_ready_.notify_all();
    }
}

}  // namespace placet
