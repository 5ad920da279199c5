// The engine's muscle: moves the bytes of submitted tasks. See ../core.py for what each
// call promises and docs/decisions/0011 for why it cannot deadlock.
//
// NOTE [Who moves the bytes]
// One lock guards everything. A pass (receive, compute, send, once over all peers) is
// made by whoever holds it: the core's own thread; a caller of `submit`, for small
// tasks; or a caller of `wait`, the *leader*, while it waits: then nothing is handed from
// thread to thread. A thread that finds nothing to do spins a little and then sleeps in
// epoll, after saying in the rings that peers must ring the bell.
#pragma once
#include <sys/epoll.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "peer.h"
#include "task.h"

namespace placet {

// Told once when more can be read, not as long as there is: a socket may have to wait for
// its turn. `Stream::readable` remembers.
constexpr uint32_t SOCKET_EVENTS = EPOLLIN | EPOLLRDHUP | EPOLLET;

constexpr uint64_t LOCAL_BYTES = 1 << 20;  // local work of one pass

enum EventKind : int { MESSAGE = 1, LOST = 2, MISMATCH = 3, FINISHED = 4, LEFT = 5 };

struct Event {
    int kind;
    int peer;
    uint64_t handle;
    std::string data;
};

// What came for a collective that is not submitted here.
struct EarlyPart {
    int peer;
    Header header;
    std::string body;
};

class Core {
  public:
    Core(int number, double spin_seconds);
    ~Core();
    void link(int number, const int* fds, int num_fds, int send_memory,
              int receive_memory, uint64_t memory_bytes);
    void start();

    Task* submit(std::unique_ptr<Task> task);
    int wait(Task* task, double seconds);
    void heard(Task* task, std::vector<int>& numbers);
    void fail(Task* task);
    void release(Task* task);
    bool send(int number, const char* data, uint64_t num_bytes);
    bool next_event(double seconds, Event& event);
    void advance(uint32_t epoch, const std::vector<int>& lost);
    void close();
    int index_of(int number) const;  // of a peer; -1 if unknown

    std::atomic<uint64_t> control_bytes{0}, num_preemptions{0}, num_early{0};

  private:
    using Lock = std::unique_lock<std::mutex>;

    // The lock, for callers from outside: those who move bytes step aside for them.
    Lock enter_door() {
        num_at_door_++;
        Lock lock(mutex_);
        num_at_door_--;
        return lock;
    }

    // core.cpp: threads and tasks
    void run();
    bool pass();
    bool anything_blocked() const;
    void disarm();
    bool arm();
    bool sleep(Lock& lock, int milliseconds, bool as_leader);
    void note(const epoll_event* events, int num_events);
    void let_others_in(Lock& lock);
    void kick();
    void hand_back();
    void enter(Task& t);
    void finish(Task& t);
    void fail_task(Task& t);
    void fail_all();
    void end(Task& t, int state);
    void leave(Task& t);
    bool run_locals(Task& t, uint64_t budget);
    void post(int kind, int peer, uint64_t handle, std::string data);
    void empty_trash();
    void unlink_all();

    // deliver.cpp: what comes in
    bool receive(int p);
    bool receive_ring(int p);
    bool receive_streams(int p);
    bool receive_stream(int p, Stream& s, bool& turn_over);
    bool begin_payload(int p, Stream& s);
    void deliver(int p, const Header& h, const char* a, uint64_t na, const char* b,
                 uint64_t nb);
    void deliver_early(int p, const Header& h, const char* a, uint64_t na,
                       const char* b, uint64_t nb);
    void take(Task& t, int p, const Header& h, const char* a, uint64_t na, const char* b,
              uint64_t nb);
    bool fits(Task& t, int p, const Header& h);
    void hear(Task& t, int p);
    void absorb(Task& t, Lane& lane, const char* data, uint64_t n);
    void mismatch(Task& t, int p, const Header& h, uint64_t expected);
    void lost(int p, const std::string& why);
    void detach(Task& t);

    // dispatch.cpp: what goes out
    bool send_to(int p);
    bool flush(int p);
    bool flush_stream(int p, Stream& s);
    bool put(int p, const Header& h, const char* body, Task* t, uint32_t instruction);
    uint64_t room(int p, uint64_t wanted) const;
    Task* choose(int p);
    uint64_t sendable(Task& t, Lane& lane) const;
    bool send_slice(int p, Task& t);
    void queue(int p, uint8_t kind, uint64_t collective, uint64_t fingerprint,
               std::string body);
    void ring_bell(Peer& peer, std::atomic<uint32_t>& sleeps);
    void watch_out(Stream& s, bool on);

    int number_;
    double spin_seconds_;
    int epoll_ = -1, wake_ = -1;
    std::mutex mutex_;
    std::condition_variable stand_by_, done_;
    bool has_leader_ = false;
    bool is_closing_ = false, is_closed_ = false;
    bool has_sockets_ = false;  // some peer's data go by socket
    bool is_turn_over_ = false;  // a peer's turn ended before its frames did
    bool is_asleep_ = false;  // the core's own thread
    int num_asleep_ = 0;      // all threads
    int num_waiting_ = 0;
    std::atomic<int> num_at_door_{0};  // callers that want the lock
    uint32_t num_passes_ = 0;
    uint32_t epoch_ = 0;
    uint64_t next_order_ = 0;
    std::vector<std::unique_ptr<Peer>> peers_;
    std::unordered_map<uint64_t, Task*> tasks_;  // pending, by collective
    std::vector<Task*> busy_;                    // with local work left
    std::unordered_map<uint64_t, std::vector<EarlyPart>> early_;
    std::vector<EarlyPart> later_;             // of an epoch that we have not begun
    std::unordered_set<uint64_t> failed_;      // collectives to drop the data of
    std::vector<Task*> to_delete_;
    std::mutex trash_mutex_;
    std::vector<Task*> trash_;
    std::thread thread_;

    std::mutex event_mutex_;
    std::condition_variable event_ready_;
    std::deque<Event> events_;
    bool is_over_ = false;
};

}  // namespace placet
