/* Framed JSON over sockets: see channel.h. */
#include "sweep/channel.h"

#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LENGTH_BYTES = 4, MESSAGE_MAX = 1 << 26 };

void channel_open(channel *c, int fd)
{
    *c = (channel){.fd = fd};
}

void channel_close(channel *c)
{
    if (c->fd >= 0) close(c->fd);
    free(c->pending);
    *c = (channel){.fd = -1};
}

static bool send_all(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t n = send(fd, bytes, size, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        bytes += n;
        size -= (size_t)n;
    }
    return true;
}

bool channel_send(channel *c, json_t *message)
{
    char *text = message ? json_dumps(message, JSON_COMPACT) : NULL;
    json_decref(message);
    if (!text || c->fd < 0) {
        free(text);
        return false;
    }
    size_t size = strlen(text);
    unsigned char head[LENGTH_BYTES];
    for (int i = 0; i < LENGTH_BYTES; i++) head[i] = (unsigned char)(size >> 8 * i);
    bool sent =
        size <= MESSAGE_MAX && send_all(c->fd, (char *)head, sizeof head) && send_all(c->fd, text, size);
    free(text);
    return sent;
}

static bool wait_for_bytes(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (poll(&p, 1, -1) < 0)
        if (errno != EINTR) return false;
    return true;
}

/* Reads what is there. False: the other side is gone. */
static bool fill(channel *c)
{
    if (c->room - c->used < 65536) {
        char *more = realloc(c->pending, c->used + 131072);
        if (!more) return false;
        c->pending = more;
        c->room = c->used + 131072;
    }
    ssize_t n = recv(c->fd, c->pending + c->used, c->room - c->used, MSG_DONTWAIT);
    if (n > 0) c->used += (size_t)n;
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR));
}

/* Takes a whole message off the front. */
static channel_state take(channel *c, json_t **message)
{
    if (c->used < LENGTH_BYTES) return CHANNEL_NOTHING;
    size_t size = 0;
    for (int i = 0; i < LENGTH_BYTES; i++) size |= (size_t)(unsigned char)c->pending[i] << 8 * i;
    if (size > MESSAGE_MAX) return CHANNEL_CLOSED;
    if (c->used < LENGTH_BYTES + size) return CHANNEL_NOTHING;
    *message = json_loadb(c->pending + LENGTH_BYTES, size, 0, NULL);
    c->used -= LENGTH_BYTES + size;
    memmove(c->pending, c->pending + LENGTH_BYTES + size, c->used);
    if (json_is_object(*message)) return CHANNEL_MESSAGE;
    json_decref(*message);
    return CHANNEL_CLOSED;
}

channel_state channel_receive(channel *c, bool wait, json_t **message)
{
    *message = NULL;
    if (c->fd < 0) return CHANNEL_CLOSED;
    for (;;) {
        channel_state state = take(c, message);
        if (state != CHANNEL_NOTHING) return state;
        if (wait && !wait_for_bytes(c->fd)) return CHANNEL_CLOSED;
        size_t before = c->used;
        if (!fill(c)) return CHANNEL_CLOSED;
        if (!wait && c->used == before) return CHANNEL_NOTHING;
    }
}

const char *channel_type(const json_t *message)
{
    const char *type = json_string_value(json_object_get(message, "type"));
    return type ? type : "";
}
