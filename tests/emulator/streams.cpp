/* Streams, events and graphs of the emulated runtime.
 *
 * Usually a stream runs what it gets at once, which is one of the orders a GPU may choose.
 * EMULATOR_ORDER=reverse holds everything back until somebody waits for it, and then lets the stream that was
 * made first run ahead as far as it can; random:SEED takes the next action of any stream that does not wait.
 * Both show where one stream uses what another has not finished. A graph is run in the same way, stream by
 * stream as it was recorded. */
#include "streams.h"

#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <stdio.h>
#include <vector>

namespace
{

typedef std::shared_ptr<bool> point; /* a recorded event: whether it has been reached */

struct step {
    enum { RUN, RECORD, WAIT } kind;
    std::function<void()> action; /* RUN, RECORD */
    point at;                     /* RECORD, WAIT */
};

struct recorded_step {
    size_t stream; /* by its place in capture::streams */
    step what;
};

struct capture {
    std::vector<cudaStream_t> streams; /* the first began it */
    std::vector<recorded_step> steps;
};

typedef std::deque<step> queue;

enum order { AT_ONCE, LATE, RANDOM };

order running_order()
{
    const char *wish = getenv("EMULATOR_ORDER");
    if (wish && !strcmp(wish, "reverse")) return LATE;
    return wish && !strncmp(wish, "random", 6) ? RANDOM : AT_ONCE;
}

size_t random_below(size_t count)
{
    static const char *wish = getenv("EMULATOR_ORDER");
    static uint64_t state = 88172645463325252ull + (wish[6] == ':' ? strtoull(wish + 7, nullptr, 10) : 0);
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (size_t)(state % count);
}

std::recursive_mutex lock; /* of streams and what waits in them */

} // namespace

struct CUstream_st {
    queue waiting;
    capture *recording;
};
struct CUevent_st {
    std::chrono::steady_clock::time_point time;
    point at;
    capture *in; /* NULL: recorded outside of a graph, or never */
};
struct CUgraph_st {
    std::vector<recorded_step> steps;
    size_t streams;
};
struct CUgraphExec_st {
    std::vector<recorded_step> steps;
    size_t streams;
};

namespace
{

std::vector<cudaStream_t> streams; /* as they were made */

void run_step(const step &s)
{
    if (s.kind != step::WAIT) s.action();
    if (s.kind == step::RECORD) *s.at = true;
}

/* Takes steps from the queues until `done`; each queue in its own order. */
void run_until(const std::vector<queue *> &queues, const std::function<bool()> &done)
{
    while (!done()) {
        std::vector<queue *> ready;
        for (queue *q : queues)
            if (!q->empty() && (q->front().kind != step::WAIT || *q->front().at)) ready.push_back(q);
        if (ready.empty()) {
            fprintf(stderr, "emulator: all streams wait for each other\n");
            abort();
        }
        queue *next = ready[running_order() == RANDOM ? random_below(ready.size()) : 0];
        step now = next->front();
        next->pop_front();
        run_step(now);
    }
}

void run_streams_until(const std::function<bool()> &done)
{
    std::vector<queue *> queues;
    for (cudaStream_t s : streams) queues.push_back(&s->waiting);
    run_until(queues, done);
}

void submit(cudaStream_t stream, const step &s)
{
    if (stream && stream->recording) {
        capture *c = stream->recording;
        size_t place = 0;
        while (c->streams[place] != stream) place++;
        c->steps.push_back({place, s});
    } else if (stream && running_order() != AT_ONCE) {
        std::lock_guard<std::recursive_mutex> hold(lock);
        stream->waiting.push_back(s);
    } else {
        run_step(s);
    }
}

/* Whether every stream's work comes before the end of the first one's, by waits. */
bool joined(const capture &c)
{
    size_t n = c.streams.size();
    std::vector<std::vector<size_t>> seen(
        n, std::vector<size_t>(n, 0)); /* steps of the others that come before */
    std::vector<std::pair<point, std::vector<size_t>>> points;
    std::vector<size_t> last(n, 0);
    for (size_t i = 0; i < c.steps.size(); i++) {
        size_t s = c.steps[i].stream;
        const step &now = c.steps[i].what;
        if (now.kind == step::RUN) last[s] = seen[s][s] = i + 1;
        if (now.kind == step::RECORD) points.push_back({now.at, seen[s]});
        if (now.kind != step::WAIT) continue;
        for (const auto &p : points)
            for (size_t k = 0; p.first == now.at && k < n; k++)
                seen[s][k] = std::max(seen[s][k], p.second[k]);
    }
    for (size_t k = 0; k < n; k++)
        if (seen[0][k] < last[k]) return false;
    return true;
}

/* One run of a graph. */
void run_graph(const std::vector<recorded_step> &steps, size_t count)
{
    std::vector<queue> own(count);
    std::vector<queue *> queues;
    for (const recorded_step &s : steps) {
        if (s.what.at) *s.what.at = false;
        own[s.stream].push_back(s.what);
    }
    if (running_order() == AT_ONCE) {
        for (const recorded_step &s : steps) run_step(s.what);
        return;
    }
    for (queue &q : own) queues.push_back(&q);
    run_until(queues,
              [&] { return std::all_of(own.begin(), own.end(), [](const queue &q) { return q.empty(); }); });
}

} // namespace

void emulator_record(cudaStream_t stream, std::function<void()> action)
{
    submit(stream, {step::RUN, action, nullptr});
}

void emulator_drain(void)
{
    std::lock_guard<std::recursive_mutex> hold(lock);
    run_streams_until([] {
        return std::all_of(streams.begin(), streams.end(), [](cudaStream_t s) { return s->waiting.empty(); });
    });
}

/* ---- streams ---- */
cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    std::lock_guard<std::recursive_mutex> hold(lock);
    *stream = new CUstream_st();
    streams.push_back(*stream);
    return emulator_outcome();
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    return cudaStreamCreate(stream);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int)
{
    return cudaStreamCreate(stream);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = *greatest = 0;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> hold(lock);
    if (stream && stream->recording) return emulator_keep(cudaErrorStreamCaptureUnsupported);
    if (stream) run_streams_until([=] { return stream->waiting.empty(); });
    return emulator_outcome();
}
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    std::lock_guard<std::recursive_mutex> hold(lock);
    cudaStreamSynchronize(stream);
    streams.erase(std::find(streams.begin(), streams.end(), stream));
    delete stream;
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    return cudaStreamSynchronize(stream);
}
cudaError_t cudaDeviceSynchronize(void)
{
    emulator_drain();
    return emulator_outcome();
}

/* ---- events ---- */
cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    *event = new CUevent_st();
    return emulator_outcome();
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    return cudaEventCreate(event);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    std::lock_guard<std::recursive_mutex> hold(lock);
    if (event->in) return emulator_keep(cudaErrorStreamCaptureUnsupported);
    if (event->at) run_streams_until([=] { return *event->at; });
    return emulator_outcome();
}
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    emulator_drain();
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    event->at = std::make_shared<bool>(false);
    event->in = stream ? stream->recording : nullptr;
    submit(stream, {step::RECORD, [=] { event->time = std::chrono::steady_clock::now(); }, event->at});
    return emulator_outcome();
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t stop)
{
    *ms = std::chrono::duration<float, std::milli>(stop->time - start->time).count();
    return cudaSuccess;
}
/* A stream that waits for an event of a graph being recorded is recorded from then on. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    std::lock_guard<std::recursive_mutex> hold(lock);
    if (!event->at) return cudaSuccess; /* never recorded */
    if (!stream || (stream->recording && stream->recording != event->in))
        return emulator_keep(cudaErrorStreamCaptureIsolation);
    if (event->in && !stream->recording) {
        if (!stream->waiting.empty()) return emulator_keep(cudaErrorStreamCaptureIsolation);
        stream->recording = event->in;
        event->in->streams.push_back(stream);
    }
    submit(stream, {step::WAIT, nullptr, event->at});
    return emulator_outcome();
}

/* ---- graphs ---- */
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode)
{
    if (!stream || stream->recording) return emulator_keep(cudaErrorInvalidValue);
    stream->recording = new capture();
    stream->recording->streams.push_back(stream);
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    *graph = nullptr;
    if (!stream || !stream->recording || stream->recording->streams[0] != stream)
        return emulator_keep(cudaErrorInvalidValue);
    capture *c = stream->recording;
    bool complete = joined(*c);
    if (complete) *graph = new CUgraph_st{c->steps, c->streams.size()};
    for (cudaStream_t s : c->streams) s->recording = nullptr;
    delete c;
    return complete ? cudaSuccess : emulator_keep(cudaErrorStreamCaptureUnjoined);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long)
{
    *exec = new CUgraphExec_st{graph->steps, graph->streams};
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    emulator_record(stream, [=] { run_graph(exec->steps, exec->streams); });
    return emulator_outcome();
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    emulator_drain();
    delete exec;
    return cudaSuccess;
}
