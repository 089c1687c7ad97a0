/* A raw pipelined load: one thread, some connections, a fixed number of requests in flight on each.
 *
 *   raw produce HOST PORT TOPIC SECONDS CONNECTIONS DEPTH PARTITIONS VALUE_BYTES
 *       each request carries one batch of one record for each of PARTITIONS partitions, acks=all
 *   raw fetch   HOST PORT TOPIC SECONDS CONNECTIONS DEPTH FETCH_BYTES OFFSETS [BASE]
 *       each connection reads on through partition 0 in pieces of FETCH_BYTES, round and round OFFSETS offsets from BASE
 *   raw stream  HOST PORT TOPIC SECONDS CONNECTIONS PARTITIONS FETCH_BYTES
 *       each connection reads all partitions from their start to their end, one after the other
 *
 * Prints one JSON object. Every answer is checked for its error codes: a load of refusals is no load.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS_MAX 1024
#define DEPTH_MAX 64
#define SAMPLES_MAX 20000000

enum mode { PRODUCE, FETCH, STREAM };

struct connection {
    int fd, in_flight, done;
    int32_t correlation, partition;
    int64_t offset;
    uint64_t sent_ns[DEPTH_MAX];
    int first;
    unsigned char *data;
    size_t have, room;
};

static enum mode mode;
static struct connection connections[CONNECTIONS_MAX];
static unsigned char *request;
static size_t request_size, correlation_at, offset_at, partition_at;
static uint32_t *samples;
static uint64_t sample_count, answers, bytes_read;
static const char *topic;
static int partitions = 1, fetch_bytes = 1024, offsets = 1, live;
static int64_t base, stride = 1;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void die(const char *what) {
    fprintf(stderr, "raw: %s: %s\n", what, errno ? strerror(errno) : "unexpected answer");
    exit(1);
}

static void put(const void *data, size_t size) { memcpy(request + request_size, data, size); request_size += size; }
static void put8(int v) { request[request_size++] = (unsigned char)v; }
static void put16(int v) { uint16_t n = htons((uint16_t)v); put(&n, 2); }
static void put32(int32_t v) { uint32_t n = htonl((uint32_t)v); put(&n, 4); }
static void put64(int64_t v) { put32((int32_t)(v >> 32)); put32((int32_t)v); }
static void put_varint(uint32_t v) { while (v > 127) { put8((int)(v & 127) | 128); v >>= 7; } put8((int)v); }
static void put_compact(const char *text) { put_varint((uint32_t)strlen(text) + 1); put(text, strlen(text)); }

static int32_t get32(const unsigned char *p) { uint32_t n; memcpy(&n, p, 4); return (int32_t)ntohl(n); }
static int16_t get16(const unsigned char *p) { uint16_t n; memcpy(&n, p, 2); return (int16_t)ntohs(n); }
static int64_t get64(const unsigned char *p) { return ((int64_t)get32(p) << 32) | (uint32_t)get32(p + 4); }

static uint32_t get_varint(const unsigned char **p) {
    uint32_t v = 0;
    for (int shift = 0;; shift += 7) {
        unsigned char byte = *(*p)++;
        v |= (uint32_t)(byte & 127) << shift;
        if (byte < 128) return v;
    }
}

static uint32_t crc32c(const unsigned char *data, size_t size) {
    uint32_t crc = 0xFFFFFFFFu;
    while (size--) {
        crc ^= *data++;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >> 1) ^ 0x82F63B78u : crc >> 1;
    }
    return ~crc;
}

static void put_header(int key, int version) {
    request_size = 0;
    put32(0); put16(key); put16(version);
    correlation_at = request_size;
    put32(0); put16(5); put("bench", 5); put8(0);
}

static void put_batch(int value_bytes) {
    unsigned char body[4096 + 64], *start = request;
    size_t at = request_size;
    int64_t stamp = (int64_t)time(NULL) * 1000;
    request = body; request_size = 0;
    put16(0); put32(0); put64(stamp); put64(stamp); put64(-1); put16(-1); put32(-1); put32(1);
    int value_varint = value_bytes * 2 < 128 ? 1 : value_bytes * 2 < 16384 ? 2 : 3;
    put_varint((uint32_t)(4 + value_varint + value_bytes + 1) * 2);
    put8(0); put8(0); put8(0); put8(1);
    put_varint((uint32_t)value_bytes * 2);
    for (int i = 0; i < value_bytes; i++) put8('a' + i % 26);
    put8(0);
    size_t size = request_size;
    uint32_t crc = crc32c(body, size);
    request = start; request_size = at;
    put_varint((uint32_t)(21 + size) + 1);
    put64(0); put32((int32_t)(9 + size)); put32(0); put8(2); put32((int32_t)crc);
    put(body, size);
}

static void build_produce(int value_bytes) {
    put_header(0, 9);
    put8(0); put16(-1); put32(30000); put_varint(2); put_compact(topic); put_varint((uint32_t)partitions + 1);
    for (int p = 0; p < partitions; p++) { put32(p); put_batch(value_bytes); put8(0); }
    put8(0); put8(0);
}

static void build_fetch(void) {
    put_header(1, 12);
    put32(-1); put32(mode == STREAM ? 500 : 0); put32(mode == STREAM ? 1 : 0); put32(fetch_bytes * 8); put8(0); put32(0); put32(-1);
    put_varint(2); put_compact(topic); put_varint(2);
    partition_at = request_size;
    put32(0); put32(-1);
    offset_at = request_size;
    put64(0); put32(-1); put64(-1); put32(fetch_bytes); put8(0); put8(0);
    put_varint(1); put_varint(1); put8(0);
}

static void send_all(int fd, const unsigned char *data, size_t size) {
    while (size) {
        ssize_t n = send(fd, data, size, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) {
            struct pollfd wait = { .fd = fd, .events = POLLOUT };
            poll(&wait, 1, 1000);
            continue;
        }
        if (n < 0) die("send");
        data += n; size -= (size_t)n;
    }
}

static void ask(struct connection *c) {
    uint32_t correlation = htonl((uint32_t)c->correlation++);
    memcpy(request + correlation_at, &correlation, 4);
    if (mode != PRODUCE) {
        uint32_t partition = htonl((uint32_t)c->partition), high = htonl((uint32_t)(c->offset >> 32)), low = htonl((uint32_t)c->offset);
        memcpy(request + partition_at, &partition, 4);
        memcpy(request + offset_at, &high, 4);
        memcpy(request + offset_at + 4, &low, 4);
        if (mode == FETCH) c->offset = base + (c->offset - base + stride) % offsets;
    }
    c->sent_ns[(c->first + c->in_flight++) % DEPTH_MAX] = now_ns();
    send_all(c->fd, request, request_size);
}

static void check_produce(const unsigned char *p) {
    p += 5;
    if (get_varint(&p) != 2) die("topics in produce response");
    p += get_varint(&p) - 1;
    uint32_t count = get_varint(&p) - 1;
    for (uint32_t i = 0; i < count; i++) {
        int error = get16(p + 4);
        if (error) { fprintf(stderr, "raw: produce refused with error %d\n", error); exit(1); }
        p += 4 + 2 + 8 + 8 + 8;
        if (*p++ != 1 || *p++ != 0) die("record errors");
        for (uint32_t tags = get_varint(&p); tags; tags--) { get_varint(&p); p += get_varint(&p); }
    }
}

/* The fetched bytes, and where they begin; the high watermark through `end`. */
static uint32_t check_fetch(const unsigned char *p, const unsigned char **records, int64_t *end) {
    p += 5 + 4;
    int error = get16(p);
    p += 2 + 4;
    if (error || get_varint(&p) != 2) { fprintf(stderr, "raw: fetch refused with error %d\n", error); exit(1); }
    p += get_varint(&p) - 1;
    if (get_varint(&p) != 2) die("partitions in fetch response");
    error = get16(p + 4);
    if (error) { fprintf(stderr, "raw: fetch refused with error %d\n", error); exit(1); }
    *end = get64(p + 6);
    p += 4 + 2 + 8 + 8 + 8;
    if (get_varint(&p) > 1) die("aborted transactions");
    p += 4;
    uint32_t size = get_varint(&p);
    *records = p;
    return size ? size - 1 : 0;
}

static void follow(struct connection *c, const unsigned char *records, uint32_t size, int64_t end) {
    uint32_t at = 0;
    while (at + 61 <= size) {
        uint32_t whole = (uint32_t)get32(records + at + 8) + 12;
        if (at + whole > size) break;
        c->offset = get64(records + at) + get32(records + at + 23) + 1;
        at += whole;
    }
    if (c->offset < end) return;
    c->offset = 0;
    if (++c->partition == partitions) { c->done = 1; live--; }
}

/* How many records one fetch brings: requests in flight must know where the one before them will end. */
static void measure_stride(const unsigned char *records, uint32_t size) {
    int64_t first = get64(records), last = first;
    for (uint32_t at = 0; at + 61 <= size; at += (uint32_t)get32(records + at + 8) + 12)
        if (at + (uint32_t)get32(records + at + 8) + 12 <= size) last = get64(records + at) + get32(records + at + 23);
    stride = last - first + 1;
}

static void answer(struct connection *c, const unsigned char *frame) {
    uint64_t took = (now_ns() - c->sent_ns[c->first]) / 1000;
    c->first = (c->first + 1) % DEPTH_MAX;
    c->in_flight--;
    if (sample_count < SAMPLES_MAX) samples[sample_count++] = (uint32_t)took;
    answers++;
    if (mode == PRODUCE) { check_produce(frame); return; }
    const unsigned char *records;
    int64_t end;
    uint32_t size = check_fetch(frame, &records, &end);
    bytes_read += size;
    if (mode == FETCH && !size) die("an empty fetch");
    if (mode == FETCH && answers == 1) measure_stride(records, size);
    if (mode == STREAM) follow(c, records, size, end);
}

static void readable(struct connection *c, int go_on) {
    for (;;) {
        if (c->have == c->room) c->data = realloc(c->data, c->room *= 2);
        ssize_t n = recv(c->fd, c->data + c->have, c->room - c->have, MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) die("the broker closed a connection");
        c->have += (size_t)n;
        size_t at = 0;
        while (c->have - at >= 4) {
            size_t size = (size_t)get32(c->data + at) + 4;
            if (c->have - at < size) break;
            answer(c, c->data + at + 4);
            at += size;
            if (go_on && !c->done) ask(c);
        }
        memmove(c->data, c->data + at, c->have - at);
        c->have -= at;
        if (n < 65536) return;
    }
}

static int dial(const char *host, int port) {
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    inet_pton(AF_INET, host, &to.sin_addr);
    if (connect(fd, (struct sockaddr *)&to, sizeof to)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static uint32_t percentile(double part) { return sample_count ? samples[(uint64_t)((double)(sample_count - 1) * part)] : 0; }

int main(int argc, char **argv) {
    if (argc < 9) { fprintf(stderr, "usage: see the head of raw.c\n"); return 2; }
    mode = !strcmp(argv[1], "produce") ? PRODUCE : !strcmp(argv[1], "fetch") ? FETCH : STREAM;
    topic = argv[4];
    double seconds = atof(argv[5]);
    int count = atoi(argv[6]), depth = mode == STREAM ? 1 : atoi(argv[7]);
    request = malloc(16 << 20);
    samples = malloc(sizeof *samples * SAMPLES_MAX);
    if (mode == PRODUCE) { partitions = atoi(argv[8]); build_produce(atoi(argv[9])); }
    if (mode == FETCH) { fetch_bytes = atoi(argv[8]); offsets = atoi(argv[9]); base = argc > 10 ? atoll(argv[10]) : 0; build_fetch(); }
    if (mode == STREAM) { partitions = atoi(argv[7]); fetch_bytes = atoi(argv[8]); build_fetch(); }
    uint32_t size = htonl((uint32_t)request_size - 4);
    memcpy(request, &size, 4);

    int epoll = epoll_create1(0);
    for (int i = 0; i < count; i++) {
        struct connection *c = &connections[i];
        struct epoll_event event = { .events = EPOLLIN, .data.ptr = c };
        c->fd = dial(argv[2], atoi(argv[3]));
        c->room = 1 << 18;
        c->data = malloc(c->room);
        if (mode == FETCH) c->offset = base + i * 397 % offsets;
        epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &event);
    }
    live = count;
    uint64_t start = now_ns(), stop = start + (uint64_t)(seconds * 1e9), end = start;
    for (int i = 0; i < count; i++) for (int d = 0; d < depth; d++) ask(&connections[i]);
    struct epoll_event events[256];
    while ((end = now_ns()) < stop && live) {
        int n = epoll_wait(epoll, events, 256, 100);
        for (int i = 0; i < n; i++) readable(events[i].data.ptr, 1);
    }
    if (mode == STREAM && live) { errno = 0; die("did not reach the end in time"); }
    double took = (double)(end - start) / 1e9;
    qsort(samples, sample_count, sizeof *samples, by_size);
    printf("{\"count\": %llu, \"seconds\": %.4f, \"per_second\": %.1f, \"p50_us\": %u, \"p99_us\": %u, \"bytes\": %llu, \"mb_per_second\": %.2f}\n",
           (unsigned long long)answers, took, (double)answers / took, percentile(0.5), percentile(0.99),
           (unsigned long long)bytes_read, (double)bytes_read / took / 1e6);
    return 0;
}
