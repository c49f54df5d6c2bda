/* Sockets between ranks: see remote.h. */
#include "sweep/remote.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { TRY_SECONDS = 5, SEND_SECONDS = 30, CONNECT_SECONDS = 5 };

/* A machine that vanished without a word is noticed after about half a minute; a message that nobody takes,
 * too. */
static void keep_alive(int fd)
{
    int on = 1, idle = 10, interval = 5, count = 4;
    struct timeval patience = {.tv_sec = SEND_SECONDS};
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
}

static void list_addresses(char *text, size_t capacity)
{
    struct ifaddrs *list = NULL;
    if (getifaddrs(&list)) return;
    for (struct ifaddrs *i = list; i; i = i->ifa_next) {
        char number[INET_ADDRSTRLEN];
        if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || (i->ifa_flags & IFF_LOOPBACK)) continue;
        const struct sockaddr_in *at = (const struct sockaddr_in *)(const void *)i->ifa_addr;
        if (!inet_ntop(AF_INET, &at->sin_addr, number, sizeof number)) continue;
        size_t used = strlen(text);
        if (used + strlen(number) + 2 < capacity) snprintf(text + used, capacity - used, " %s", number);
    }
    freeifaddrs(list);
}

blurry_status remote_listen(int *fd, char *address, size_t capacity)
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    socklen_t size = sizeof any;
    char host[64] = "localhost";
    gethostname(host, sizeof host - 1);
    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0 || bind(*fd, (struct sockaddr *)&any, sizeof any) || listen(*fd, 128) ||
        getsockname(*fd, (struct sockaddr *)&any, &size)) {
        int cause = errno;
        if (*fd >= 0) close(*fd);
        *fd = -1;
        return status_fail(BLURRY_E_IO, "cannot listen for other ranks: %s", strerror(cause));
    }
    snprintf(address, capacity, "%d %s", ntohs(any.sin_port), host);
    list_addresses(address, capacity);
    return BLURRY_OK;
}

int remote_accept(int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0) keep_alive(fd);
    return fd;
}

/* One name or number with a port. */
static int connect_to(const char *name, const char *port)
{
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *list = NULL;
    if (getaddrinfo(name, port, &hints, &list)) return -1;
    int fd = -1;
    for (struct addrinfo *i = list; i && fd < 0; i = i->ai_next) {
        fd = socket(i->ai_family, i->ai_socktype | SOCK_CLOEXEC, i->ai_protocol);
        struct timeval patience = {.tv_sec = CONNECT_SECONDS};
        if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        if (fd >= 0 && connect(fd, i->ai_addr, i->ai_addrlen)) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    return fd;
}

int remote_connect(const char *address)
{
    char here[64] = "", text[512];
    gethostname(here, sizeof here - 1);
    time_t begin = time(NULL);
    do {
        char *next = NULL;
        snprintf(text, sizeof text, "%s", address);
        const char *port = strtok_r(text, " ", &next), *host = strtok_r(NULL, " ", &next);
        if (!port || !host) return -1;
        int fd = !strcmp(here, host) ? connect_to("127.0.0.1", port) : -1;
        for (const char *number = strtok_r(NULL, " ", &next); fd < 0 && number;
             number = strtok_r(NULL, " ", &next))
            fd = connect_to(number, port);
        if (fd < 0) fd = connect_to(host, port);
        if (fd >= 0) {
            keep_alive(fd);
            return fd;
        }
        usleep(200000);
    } while (time(NULL) - begin < TRY_SECONDS);
    return -1;
}

blurry_status remote_secret(char token[65])
{
    unsigned char bytes[32];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return status_fail(BLURRY_E_IO, "the system gives no random numbers: %s", strerror(errno));
    for (size_t i = 0; i < sizeof bytes; i++) snprintf(token + 2 * i, 3, "%02x", bytes[i]);
    return BLURRY_OK;
}
