// A link to another rank: shared rings, or sockets that frames are striped over.
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "frames.h"
#include "ring.h"
#include "task.h"

namespace placet {

// One socket's frames under way. `staged` goes out first, then `big`: a payload read
// from the task's own memory until the kernel has it.
struct Stream {
    int fd = -1;
    uint64_t id = 0;  // for epoll: its peer and its place there
    std::vector<char> staged;
    size_t staged_at = 0;
    const char* big = nullptr;
    size_t big_left = 0;
    Task* big_task = nullptr;
    uint32_t big_instruction = 0;

    bool wants_out = false;  // EPOLLOUT is on
    bool readable = true;
    bool hung_up = false;  // no more will come than what is there

    std::vector<char> in;  // read, not yet taken
    size_t in_at = 0, in_end = 0;
    bool in_payload = false;
    Header header{};
    size_t got = 0;            // payload bytes so far
    std::vector<char> body;    // where the payload gathers, unless `direct`
    char* direct = nullptr;    // straight into the task's memory
    Task* direct_task = nullptr;

    bool idle_out() const { return staged_at == staged.size() && !big_left; }
};

struct OutFrame {
    Header header;
    std::string body;
};

struct Peer {
    int number = -1;  // its number for Python
    bool alive = false;
    bool said_bye = false;
    Ring out, in;            // shared rings, or
    std::vector<Stream> streams;  // sockets; with rings, the one that carries bells
    size_t next_out = 0, next_in = 0;  // whose turn it is among the sockets
    std::deque<OutFrame> outbox;       // control frames that wait for space
    std::vector<Task*> senders;  // with something left to send; most urgent, oldest first
    std::vector<Task*> owed;     // that have not told this peer that they are submitted
    Task* sticky = nullptr;      // whose data came last from this peer
    Task* current = nullptr;     // whose lane was sent last
    uint32_t num_slices = 0;
    uint64_t trust_left = EARLY_BYTES;  // bytes we may still send on trust
    uint64_t early_bytes = 0;           // bytes set aside here for the peer
    size_t num_early = 0;               // and frames, some of which hold none
    std::unordered_map<uint64_t, uint64_t> unheard;  // trust given, of tasks that ended
    bool is_blocked = false;  // something to send and no space

    bool has_rings() const { return bool(out); }
};

}  // namespace placet
