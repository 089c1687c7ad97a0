/* Load through librdkafka, the library that confluent-kafka brings along: opened at run time, so no headers are needed.
 *
 *   bulk LIBRARY produce BOOTSTRAP TOPIC PARTITIONS COUNT VALUE_BYTES     1 MB batches, linger 20 ms, acks=all
 *   bulk LIBRARY consume BOOTSTRAP TOPIC PARTITIONS COUNT                 from the beginning, all partitions
 *   bulk LIBRARY ack     BOOTSTRAP TOPIC RATE SECONDS VALUE_BYTES         latency of acks at a steady rate, linger 0
 *   bulk LIBRARY tail    BOOTSTRAP TOPIC RATE SECONDS VALUE_BYTES         latency from produce to a consumer at the tail
 *
 * Prints one JSON object. Python's own loop would be the bottleneck: it makes half as many messages a second.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "librdkafka.h"

#define BATCH 10000
#define SAMPLES_MAX 4000000

static rd_kafka_conf_t *(*conf_new)(void);
static int (*conf_set)(rd_kafka_conf_t *, const char *, const char *, char *, size_t);
static void (*conf_set_dr_msg_cb)(rd_kafka_conf_t *, void (*)(rd_kafka_t *, const rd_kafka_message_t *, void *));
static rd_kafka_t *(*new_client)(int, rd_kafka_conf_t *, char *, size_t);
static rd_kafka_topic_t *(*topic_new)(rd_kafka_t *, const char *, void *);
static int (*produce)(rd_kafka_topic_t *, int32_t, int, void *, size_t, const void *, size_t, void *);
static int (*poll_client)(rd_kafka_t *, int);
static int (*flush)(rd_kafka_t *, int);
static int (*last_error)(void);
static int (*watermarks)(rd_kafka_t *, const char *, int32_t, int64_t *, int64_t *, int);
static rd_kafka_queue_t *(*queue_new)(rd_kafka_t *);
static int (*consume_start_queue)(rd_kafka_topic_t *, int32_t, int64_t, rd_kafka_queue_t *);
static ssize_t (*consume_batch_queue)(rd_kafka_queue_t *, int, rd_kafka_message_t **, size_t);
static void (*message_destroy)(rd_kafka_message_t *);

static const char *bootstrap, *topic_name;
static uint32_t *samples;
static volatile uint64_t sample_count, failures;
static volatile int finished;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void *find(void *library, const char *name) {
    void *found = dlsym(library, name);
    if (!found) { fprintf(stderr, "bulk: no %s in librdkafka\n", name); exit(1); }
    return found;
}

static void open_library(const char *path) {
    void *l = dlopen(path, RTLD_NOW);
    if (!l) { fprintf(stderr, "bulk: %s\n", dlerror()); exit(1); }
    conf_new = find(l, "rd_kafka_conf_new");
    conf_set = find(l, "rd_kafka_conf_set");
    conf_set_dr_msg_cb = find(l, "rd_kafka_conf_set_dr_msg_cb");
    new_client = find(l, "rd_kafka_new");
    topic_new = find(l, "rd_kafka_topic_new");
    produce = find(l, "rd_kafka_produce");
    poll_client = find(l, "rd_kafka_poll");
    flush = find(l, "rd_kafka_flush");
    last_error = find(l, "rd_kafka_last_error");
    watermarks = find(l, "rd_kafka_query_watermark_offsets");
    queue_new = find(l, "rd_kafka_queue_new");
    consume_start_queue = find(l, "rd_kafka_consume_start_queue");
    consume_batch_queue = find(l, "rd_kafka_consume_batch_queue");
    message_destroy = find(l, "rd_kafka_message_destroy");
}

static void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
    char error[512];
    if (conf_set(conf, name, value, error, sizeof error)) { fprintf(stderr, "bulk: %s\n", error); exit(1); }
}

static rd_kafka_t *client(int kind, rd_kafka_conf_t *conf) {
    char error[512];
    set(conf, "bootstrap.servers", bootstrap);
    set(conf, "log_level", "3");
    rd_kafka_t *made = new_client(kind, conf, error, sizeof error);
    if (!made) { fprintf(stderr, "bulk: %s\n", error); exit(1); }
    return made;
}

static int64_t total_end(rd_kafka_t *rk, int partitions) {
    int64_t low, high, sum = 0;
    for (int p = 0; p < partitions; p++) {
        if (watermarks(rk, topic_name, p, &low, &high, 10000)) { fprintf(stderr, "bulk: no watermarks of %s %d\n", topic_name, p); exit(1); }
        sum += high;
    }
    return sum;
}

static void put(rd_kafka_t *rk, rd_kafka_topic_t *rkt, int partition, char *value, size_t size, int copy) {
    while (produce(rkt, partition, copy ? 2 : 0, value, size, NULL, 0, NULL)) {
        if (last_error() != QUEUE_FULL) { fprintf(stderr, "bulk: produce failed with %d\n", last_error()); exit(1); }
        poll_client(rk, 1);
    }
}

static rd_kafka_conf_t *bulk_producer(void) {
    rd_kafka_conf_t *conf = conf_new();
    set(conf, "acks", "all");
    set(conf, "linger.ms", "20");
    set(conf, "batch.size", "1000000");
    set(conf, "batch.num.messages", "10000");
    set(conf, "queue.buffering.max.messages", "2000000");
    set(conf, "queue.buffering.max.kbytes", "1000000");
    return conf;
}

static void run_produce(int partitions, long count, size_t size) {
    rd_kafka_t *rk = client(PRODUCER, bulk_producer());
    rd_kafka_topic_t *rkt = topic_new(rk, topic_name, NULL);
    char *value = malloc(size);
    for (size_t i = 0; i < size; i++) value[i] = (char)('a' + i * 7 % 26);
    int64_t before = total_end(rk, partitions);
    uint64_t start = now_ns();
    for (long i = 0; i < count; i++) put(rk, rkt, (int)(i / 100 % partitions), value, size, 0);
    if (flush(rk, 120000)) { fprintf(stderr, "bulk: not everything was delivered\n"); exit(1); }
    double took = (double)(now_ns() - start) / 1e9;
    int64_t added = total_end(rk, partitions) - before;
    if (added != count) { fprintf(stderr, "bulk: sent %ld, but the log grew by %ld\n", count, (long)added); exit(1); }
    printf("{\"count\": %ld, \"seconds\": %.4f, \"per_second\": %.1f, \"mb_per_second\": %.2f}\n", count, took, (double)count / took, (double)count * (double)size / took / 1e6);
}

/* The clock starts with the first messages: finding leaders takes librdkafka half a second, whoever is asked. */
static void run_consume(int partitions, long count) {
    rd_kafka_conf_t *conf = conf_new();
    set(conf, "queued.min.messages", "1000000");
    set(conf, "queued.max.messages.kbytes", "131072");
    rd_kafka_t *rk = client(CONSUMER, conf);
    rd_kafka_topic_t *rkt = topic_new(rk, topic_name, NULL);
    rd_kafka_queue_t *queue = queue_new(rk);
    rd_kafka_message_t *messages[BATCH];
    uint64_t start = 0, size = 0;
    long seen = 0, first = 0;
    for (int p = 0; p < partitions; p++) consume_start_queue(rkt, p, OFFSET_BEGINNING, queue);
    while (seen < count) {
        ssize_t n = consume_batch_queue(queue, 10000, messages, BATCH);
        if (n <= 0) { fprintf(stderr, "bulk: only %ld of %ld came\n", seen, count); exit(1); }
        for (ssize_t i = 0; i < n; i++) {
            if (messages[i]->err) { fprintf(stderr, "bulk: consume error %d\n", messages[i]->err); exit(1); }
            size += messages[i]->len;
            message_destroy(messages[i]);
        }
        seen += n;
        if (!start) { start = now_ns(); first = seen; size = 0; }
    }
    double took = (double)(now_ns() - start) / 1e9;
    printf("{\"count\": %ld, \"seconds\": %.4f, \"per_second\": %.1f, \"mb_per_second\": %.2f}\n", seen, took, (double)(seen - first) / took, (double)size / took / 1e6);
}

static void sample(uint64_t sent) {
    if (sample_count < SAMPLES_MAX) samples[sample_count++] = (uint32_t)((now_ns() - sent) / 1000);
}

static void delivered(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
    (void)rk; (void)opaque;
    uint64_t sent;
    memcpy(&sent, message->payload, sizeof sent);
    if (message->err) failures++; else sample(sent);
}

static void *poll_until_finished(void *rk) {
    while (!finished) poll_client(rk, 10);
    return NULL;
}

static rd_kafka_conf_t *quick_producer(void) {
    rd_kafka_conf_t *conf = conf_new();
    set(conf, "acks", "all");
    set(conf, "linger.ms", "0");
    set(conf, "socket.nagle.disable", "true");
    return conf;
}

/* Sends at a steady pace; a value begins with the moment it was meant to be sent, so a stall is not hidden. */
static void pace(rd_kafka_t *rk, rd_kafka_topic_t *rkt, double rate, double seconds, size_t size) {
    char *value = calloc(1, size);
    uint64_t start = now_ns(), step = (uint64_t)(1e9 / rate);
    for (long i = 0; i < (long)(rate * seconds); i++) {
        uint64_t due = start + (uint64_t)i * step, now = now_ns();
        if (due > now) {
            struct timespec wait = { .tv_sec = (time_t)((due - now) / 1000000000u), .tv_nsec = (long)((due - now) % 1000000000u) };
            nanosleep(&wait, NULL);
        }
        now = now_ns();
        memcpy(value, &now, sizeof now);
        put(rk, rkt, 0, value, size, 1);
    }
    free(value);
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void print_latency(double took) {
    uint64_t n = sample_count;
    qsort(samples, n, sizeof *samples, by_size);
    if (!n || failures) { fprintf(stderr, "bulk: %lu samples, %lu failures\n", (unsigned long)n, (unsigned long)failures); exit(1); }
    printf("{\"count\": %lu, \"seconds\": %.4f, \"per_second\": %.1f, \"p50_us\": %u, \"p99_us\": %u, \"worst_us\": %u}\n", (unsigned long)n, took,
           (double)n / took, samples[(uint64_t)((double)(n - 1) * 0.5)], samples[(uint64_t)((double)(n - 1) * 0.99)], samples[n - 1]);
}

static void run_ack(double rate, double seconds, size_t size) {
    rd_kafka_conf_t *conf = quick_producer();
    conf_set_dr_msg_cb(conf, delivered);
    rd_kafka_t *rk = client(PRODUCER, conf);
    rd_kafka_topic_t *rkt = topic_new(rk, topic_name, NULL);
    pthread_t poller;
    pthread_create(&poller, NULL, poll_until_finished, rk);
    pace(rk, rkt, 200, 0.5, size);
    flush(rk, 30000);
    sample_count = 0;
    uint64_t start = now_ns();
    pace(rk, rkt, rate, seconds, size);
    flush(rk, 60000);
    double took = (double)(now_ns() - start) / 1e9;
    finished = 1;
    pthread_join(poller, NULL);
    print_latency(took);
}

static rd_kafka_queue_t *tail_queue;

static void *read_tail(void *unused) {
    (void)unused;
    rd_kafka_message_t *messages[256];
    while (!finished) {
        ssize_t n = consume_batch_queue(tail_queue, 20, messages, 1);
        for (ssize_t i = 0; i < n; i++) {
            uint64_t sent;
            if (!messages[i]->err) { memcpy(&sent, messages[i]->payload, sizeof sent); sample(sent); }
            message_destroy(messages[i]);
        }
    }
    return NULL;
}

static void run_tail(double rate, double seconds, size_t size) {
    rd_kafka_t *rk = client(PRODUCER, quick_producer());
    rd_kafka_topic_t *rkt = topic_new(rk, topic_name, NULL);
    rd_kafka_t *consumer = client(CONSUMER, conf_new());
    rd_kafka_topic_t *read = topic_new(consumer, topic_name, NULL);
    tail_queue = queue_new(consumer);
    consume_start_queue(read, 0, OFFSET_END, tail_queue);
    pthread_t reader;
    pthread_create(&reader, NULL, read_tail, NULL);
    pace(rk, rkt, 200, 1.0, size);
    flush(rk, 30000);
    usleep(200000);
    sample_count = 0;
    uint64_t start = now_ns();
    pace(rk, rkt, rate, seconds, size);
    flush(rk, 60000);
    double took = (double)(now_ns() - start) / 1e9;
    usleep(500000);
    finished = 1;
    pthread_join(reader, NULL);
    print_latency(took);
}

int main(int argc, char **argv) {
    if (argc < 7) { fprintf(stderr, "usage: see the head of bulk.c\n"); return 2; }
    open_library(argv[1]);
    samples = malloc(sizeof *samples * SAMPLES_MAX);
    bootstrap = argv[3];
    topic_name = argv[4];
    const char *mode = argv[2];
    if (!strcmp(mode, "produce")) run_produce(atoi(argv[5]), atol(argv[6]), (size_t)atol(argv[7]));
    else if (!strcmp(mode, "consume")) run_consume(atoi(argv[5]), atol(argv[6]));
    else if (!strcmp(mode, "ack")) run_ack(atof(argv[5]), atof(argv[6]), (size_t)atol(argv[7]));
    else if (!strcmp(mode, "tail")) run_tail(atof(argv[5]), atof(argv[6]), (size_t)atol(argv[7]));
    else return 2;
    fflush(stdout);
    _exit(0);
}
