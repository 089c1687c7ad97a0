/* Transactions through librdkafka, which speaks their first generation: partitions and groups are added before they are used.
 *
 *   transactions LIBRARY rate  BOOTSTRAP TOPIC WARM SECONDS PARTITIONS PRODUCERS RECORDS   how many are committed
 *   transactions LIBRARY delay BOOTSTRAP TOPIC WARM SECONDS                                how much later read_committed has a record
 *   transactions LIBRARY loop  BOOTSTRAP TOPIC WARM SECONDS PARTITIONS INPUT RECORDS       consume, transform, produce, offsets inside
 *
 * Prints one JSON object. `Transactions.java` does the same with the second generation; the two are to be kept alike.
 */
#include <ctype.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "librdkafka.h"

#define COPY 2
#define VALUE_BYTES 100
#define RECORDS_MAX 1000
#define SAMPLES_MAX 100000
#define PATIENCE_MS 30000
#define PAUSE_US 10000

static rd_kafka_conf_t *(*conf_new)(void);
static int (*conf_set)(rd_kafka_conf_t *, const char *, const char *, char *, size_t);
static void (*conf_set_dr_msg_cb)(rd_kafka_conf_t *, void (*)(rd_kafka_t *, const rd_kafka_message_t *, void *));
static rd_kafka_t *(*new_client)(int, rd_kafka_conf_t *, char *, size_t);
static rd_kafka_topic_t *(*topic_new)(rd_kafka_t *, const char *, void *);
static int (*produce)(rd_kafka_topic_t *, int32_t, int, void *, size_t, const void *, size_t, void *);
static int (*flush)(rd_kafka_t *, int);
static int (*last_error)(void);
static int (*watermarks)(rd_kafka_t *, const char *, int32_t, int64_t *, int64_t *, int);
static rd_kafka_queue_t *(*queue_new)(rd_kafka_t *);
static rd_kafka_queue_t *(*queue_get_consumer)(rd_kafka_t *);
static int (*consume_start_queue)(rd_kafka_topic_t *, int32_t, int64_t, rd_kafka_queue_t *);
static ssize_t (*consume_batch_queue)(rd_kafka_queue_t *, int, rd_kafka_message_t **, size_t);
static void (*message_destroy)(rd_kafka_message_t *);
static int (*subscribe)(rd_kafka_t *, const rd_kafka_topic_partition_list_t *);
static int (*poll_set_consumer)(rd_kafka_t *);
static int (*committed)(rd_kafka_t *, rd_kafka_topic_partition_list_t *, int);
static rd_kafka_topic_partition_list_t *(*list_new)(int);
static rd_kafka_topic_partition_t *(*list_add)(rd_kafka_topic_partition_list_t *, const char *, int32_t);
static void (*list_destroy)(rd_kafka_topic_partition_list_t *);
static rd_kafka_consumer_group_metadata_t *(*group_metadata)(rd_kafka_t *);
static void (*group_metadata_destroy)(rd_kafka_consumer_group_metadata_t *);
static rd_kafka_error_t *(*init_transactions)(rd_kafka_t *, int);
static rd_kafka_error_t *(*begin_transaction)(rd_kafka_t *);
static rd_kafka_error_t *(*commit_transaction)(rd_kafka_t *, int);
static rd_kafka_error_t *(*send_offsets)(rd_kafka_t *, const rd_kafka_topic_partition_list_t *, const rd_kafka_consumer_group_metadata_t *, int);
static const char *(*error_string)(const rd_kafka_error_t *);

static const struct { const char *name; void *into; } NEEDED[] = {
    {"rd_kafka_conf_new", &conf_new},
    {"rd_kafka_conf_set", &conf_set},
    {"rd_kafka_conf_set_dr_msg_cb", &conf_set_dr_msg_cb},
    {"rd_kafka_new", &new_client},
    {"rd_kafka_topic_new", &topic_new},
    {"rd_kafka_produce", &produce},
    {"rd_kafka_flush", &flush},
    {"rd_kafka_last_error", &last_error},
    {"rd_kafka_query_watermark_offsets", &watermarks},
    {"rd_kafka_queue_new", &queue_new},
    {"rd_kafka_queue_get_consumer", &queue_get_consumer},
    {"rd_kafka_consume_start_queue", &consume_start_queue},
    {"rd_kafka_consume_batch_queue", &consume_batch_queue},
    {"rd_kafka_message_destroy", &message_destroy},
    {"rd_kafka_subscribe", &subscribe},
    {"rd_kafka_poll_set_consumer", &poll_set_consumer},
    {"rd_kafka_committed", &committed},
    {"rd_kafka_topic_partition_list_new", &list_new},
    {"rd_kafka_topic_partition_list_add", &list_add},
    {"rd_kafka_topic_partition_list_destroy", &list_destroy},
    {"rd_kafka_consumer_group_metadata", &group_metadata},
    {"rd_kafka_consumer_group_metadata_destroy", &group_metadata_destroy},
    {"rd_kafka_init_transactions", &init_transactions},
    {"rd_kafka_begin_transaction", &begin_transaction},
    {"rd_kafka_commit_transaction", &commit_transaction},
    {"rd_kafka_send_offsets_to_transaction", &send_offsets},
    {"rd_kafka_error_string", &error_string},
};

static const char *bootstrap, *topic_name;
static double warm_seconds, seconds;
static int partitions;
static atomic_long done;
static atomic_int finished;

#define FAIL(...) do { fprintf(stderr, "transactions: " __VA_ARGS__); fputc('\n', stderr); exit(1); } while (0)

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double cpu_seconds(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static void open_library(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    if (!library) FAIL("%s", dlerror());
    for (size_t i = 0; i < sizeof NEEDED / sizeof *NEEDED; i++) {
        void *found = dlsym(library, NEEDED[i].name);
        if (!found) FAIL("no %s in librdkafka", NEEDED[i].name);
        *(void **)NEEDED[i].into = found;
    }
}

static void set(rd_kafka_conf_t *conf, const char *name, const char *value) {
    char error[512];
    if (conf_set(conf, name, value, error, sizeof error)) FAIL("%s", error);
}

static rd_kafka_t *client(int kind, rd_kafka_conf_t *conf) {
    char error[512];
    set(conf, "bootstrap.servers", bootstrap);
    set(conf, "log_level", "3");
    rd_kafka_t *made = new_client(kind, conf, error, sizeof error);
    if (!made) FAIL("%s", error);
    return made;
}

static void must(const char *what, rd_kafka_error_t *error) {
    if (error) FAIL("%s: %s", what, error_string(error));
}

/* With somebody to tell of them, librdkafka notices acks when they come; without, it looks for them every 10 ms. */
static void acknowledged(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
    (void)rk; (void)opaque;
    if (message->err) FAIL("a record failed with %d", message->err);
}

/* A commit flushes first, so what is sent in one transaction makes one batch for each partition. */
static rd_kafka_t *transactional(int number) {
    char id[64];
    snprintf(id, sizeof id, "bench-%d-%d", (int)getpid(), number);
    rd_kafka_conf_t *conf = conf_new();
    set(conf, "transactional.id", id);
    conf_set_dr_msg_cb(conf, acknowledged);
    rd_kafka_t *made = client(PRODUCER, conf);
    must("init", init_transactions(made, PATIENCE_MS));
    return made;
}

static void put(rd_kafka_topic_t *rkt, int partition, const void *value, size_t size) {
    if (produce(rkt, partition, COPY, (void *)value, size, NULL, 0, NULL)) FAIL("produce failed with %d", last_error());
}

static void commit(rd_kafka_t *rk) {
    must("commit", commit_transaction(rk, PATIENCE_MS));
    atomic_fetch_add(&done, 1);
}

static int64_t total_end(rd_kafka_t *rk) {
    int64_t low, high, sum = 0;
    for (int p = 0; p < partitions; p++) {
        if (watermarks(rk, topic_name, p, &low, &high, 10000)) FAIL("no watermarks of %s %d", topic_name, p);
        sum += high;
    }
    return sum;
}

/* A commit may be answered before its markers are written. */
static void must_have_grown(rd_kafka_t *rk, int64_t before, int64_t expected) {
    uint64_t deadline = now_ns() + 10000000000u;
    int64_t grown;
    while ((grown = total_end(rk) - before) != expected) {
        if (now_ns() > deadline) FAIL("records and markers are %ld, but the log grew by %ld", (long)expected, (long)grown);
        usleep(50000);
    }
}

/* Lets the others work: first to warm up, then on the clock. */
static void watch(double *took, double *used, long *counted) {
    usleep((useconds_t)(warm_seconds * 1e6));
    long first = atomic_load(&done);
    double cpu = cpu_seconds();
    uint64_t start = now_ns();
    usleep((useconds_t)(seconds * 1e6));
    *counted = atomic_load(&done) - first;
    *used = cpu_seconds() - cpu;
    *took = (double)(now_ns() - start) / 1e9;
    atomic_store(&finished, 1);
    if (!*counted) FAIL("nothing was committed in %.1f s", *took);
}

static void print_rate(double took, double used, long counted) {
    printf("{\"count\": %ld, \"seconds\": %.4f, \"per_second\": %.2f, \"client_us_each\": %.1f}\n", atomic_load(&done), took,
           (double)counted / took, 1e6 * used / (double)counted);
}

/* --- how many */

typedef struct { rd_kafka_t *rk; int records; } work_t;

static void *commit_on(void *given) {
    work_t *work = given;
    char value[VALUE_BYTES];
    memset(value, 'a', sizeof value);
    rd_kafka_topic_t *rkt = topic_new(work->rk, topic_name, NULL);
    for (long turn = 0; !atomic_load(&finished); turn++) {
        must("begin", begin_transaction(work->rk));
        for (int i = 0; i < work->records; i++) put(rkt, (int)((turn + i) % partitions), value, sizeof value);
        commit(work->rk);
    }
    return NULL;
}

static void run_rate(int producers, int records) {
    work_t *works = calloc((size_t)producers, sizeof *works);
    pthread_t *threads = calloc((size_t)producers, sizeof *threads);
    double took, used;
    long counted;
    for (int n = 0; n < producers; n++) works[n] = (work_t){transactional(n), records};
    int64_t before = total_end(works[0].rk);
    for (int n = 0; n < producers; n++) pthread_create(&threads[n], NULL, commit_on, &works[n]);
    watch(&took, &used, &counted);
    for (int n = 0; n < producers; n++) pthread_join(threads[n], NULL);
    int markers = records < partitions ? records : partitions;
    must_have_grown(works[0].rk, before, (int64_t)atomic_load(&done) * (records + markers));
    print_rate(took, used, counted);
}

/* --- how much later */

typedef struct { const char *isolation; _Atomic uint64_t delivered[SAMPLES_MAX]; } reader_t;
static reader_t of_committed = {.isolation = "read_committed"}, of_all = {.isolation = "read_uncommitted"};

static void *read_tail(void *given) {
    reader_t *reader = given;
    rd_kafka_conf_t *conf = conf_new();
    set(conf, "isolation.level", reader->isolation);
    rd_kafka_t *rk = client(CONSUMER, conf);
    rd_kafka_queue_t *queue = queue_new(rk);
    consume_start_queue(topic_new(rk, topic_name, NULL), 0, OFFSET_END, queue);
    while (!atomic_load(&finished)) {
        rd_kafka_message_t *message;
        if (consume_batch_queue(queue, 20, &message, 1) < 1) continue;
        long number;
        if (!message->err && message->len == VALUE_BYTES) {
            memcpy(&number, message->payload, sizeof number);
            atomic_store(&reader->delivered[number], now_ns());
        }
        message_destroy(message);
    }
    return NULL;
}

static int both_have(long number, double patience) {
    uint64_t deadline = now_ns() + (uint64_t)(patience * 1e9);
    while (!atomic_load(&of_committed.delivered[number]) || !atomic_load(&of_all.delivered[number])) {
        if (now_ns() > deadline) return 0;
        usleep(200);
    }
    return 1;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double quantile(double *values, long count, double part) {
    qsort(values, (size_t)count, sizeof *values, by_size);
    return values[(long)((double)(count - 1) * part)];
}

static void run_delay(void) {
    static double added[SAMPLES_MAX], since_commit[SAMPLES_MAX], since_send[SAMPLES_MAX];
    pthread_t thread;
    char value[VALUE_BYTES] = {0};
    rd_kafka_t *rk = transactional(0);
    rd_kafka_topic_t *rkt = topic_new(rk, topic_name, NULL);
    pthread_create(&thread, NULL, read_tail, &of_committed);
    pthread_create(&thread, NULL, read_tail, &of_all);
    long taken = 0;
    int heard = 0;
    uint64_t begun = now_ns(), warm = begun + (uint64_t)(warm_seconds * 1e9), end = warm + (uint64_t)(seconds * 1e9);
    for (long number = 0; number < SAMPLES_MAX && now_ns() < end; number++) {
        memcpy(value, &number, sizeof number);
        uint64_t sent = now_ns();
        must("begin", begin_transaction(rk));
        put(rkt, 0, value, sizeof value);
        if (flush(rk, PATIENCE_MS)) FAIL("no ack");
        uint64_t asked = now_ns();
        commit(rk);
        int came = both_have(number, heard ? 10 : 0.2);
        heard |= came;
        if (!came && (heard || now_ns() - begun > 20000000000u)) FAIL("record %ld did not reach both readers", number);
        if (came && sent > warm) {
            uint64_t last = atomic_load(&of_committed.delivered[number]), first = atomic_load(&of_all.delivered[number]);
            added[taken] = ((double)last - (double)first) / 1e3;
            since_commit[taken] = ((double)last - (double)asked) / 1e3;
            since_send[taken++] = ((double)first - (double)sent) / 1e3;
        }
        usleep(PAUSE_US);
    }
    if (!taken) FAIL("nothing was measured");
    printf("{\"count\": %ld, \"added_p50_us\": %.1f, \"added_p99_us\": %.1f, \"committed_p50_us\": %.1f, \"uncommitted_p50_us\": %.1f}\n", taken,
           quantile(added, taken, 0.5), quantile(added, taken, 0.99), quantile(since_commit, taken, 0.5), quantile(since_send, taken, 0.5));
}

/* --- consume, transform, produce */

typedef struct { const char *input; int records; rd_kafka_t *consumer, *producer; rd_kafka_queue_t *queue; } loop_t;

static void fill(rd_kafka_queue_t *queue, rd_kafka_message_t **messages, int wanted) {
    for (int have = 0; have < wanted;) {
        ssize_t n = consume_batch_queue(queue, 10000, messages + have, (size_t)(wanted - have));
        if (n <= 0) FAIL("no more input after %ld transactions", atomic_load(&done));
        for (ssize_t i = 0; i < n; i++)
            if (messages[have + i]->err) FAIL("consume error %d", messages[have + i]->err);
        have += (int)n;
    }
}

static void transform(rd_kafka_topic_t *output, rd_kafka_message_t **messages, int count, int64_t *next) {
    char value[VALUE_BYTES];
    for (int i = 0; i < count; i++) {
        const char *from = messages[i]->payload;
        size_t size = messages[i]->len < sizeof value ? messages[i]->len : sizeof value;
        for (size_t c = 0; c < size; c++) value[c] = (char)toupper(from[c]);
        put(output, i % partitions, value, size);
        next[messages[i]->partition] = messages[i]->offset + 1;
        message_destroy(messages[i]);
    }
}

static void commit_with_offsets(loop_t *loop, const int64_t *next) {
    rd_kafka_topic_partition_list_t *offsets = list_new(partitions);
    for (int p = 0; p < partitions; p++)
        if (next[p] >= 0) list_add(offsets, loop->input, p)->offset = next[p];
    rd_kafka_consumer_group_metadata_t *group = group_metadata(loop->consumer);
    must("offsets", send_offsets(loop->producer, offsets, group, PATIENCE_MS));
    group_metadata_destroy(group);
    list_destroy(offsets);
    commit(loop->producer);
}

static void *loop_on(void *given) {
    loop_t *loop = given;
    rd_kafka_message_t *messages[RECORDS_MAX];
    int64_t *next = malloc(sizeof *next * (size_t)partitions);
    rd_kafka_topic_t *output = topic_new(loop->producer, topic_name, NULL);
    while (!atomic_load(&finished)) {
        fill(loop->queue, messages, loop->records);
        for (int p = 0; p < partitions; p++) next[p] = -1;
        must("begin", begin_transaction(loop->producer));
        transform(output, messages, loop->records, next);
        commit_with_offsets(loop, next);
    }
    free(next);
    return NULL;
}

static rd_kafka_t *member(const char *input) {
    char group[64];
    snprintf(group, sizeof group, "bench-%d", (int)getpid());
    rd_kafka_conf_t *conf = conf_new();
    set(conf, "group.id", group);
    set(conf, "enable.auto.commit", "false");
    set(conf, "auto.offset.reset", "earliest");
    set(conf, "isolation.level", "read_committed");
    rd_kafka_t *made = client(CONSUMER, conf);
    poll_set_consumer(made);
    rd_kafka_topic_partition_list_t *topics = list_new(1);
    list_add(topics, input, -1);
    if (subscribe(made, topics)) FAIL("cannot subscribe");
    list_destroy(topics);
    return made;
}

/* What is committed must be what was consumed: one more or less would be a duplicate or a hole. */
static void must_have_committed(loop_t *loop, int64_t expected) {
    rd_kafka_topic_partition_list_t *offsets = list_new(partitions);
    for (int p = 0; p < partitions; p++) list_add(offsets, loop->input, p);
    int error = committed(loop->consumer, offsets, PATIENCE_MS);
    int64_t sum = 0;
    for (int p = 0; p < partitions; p++) sum += offsets->elems[p].offset > 0 ? offsets->elems[p].offset : 0;
    if (error || sum != expected) FAIL("error %d, offsets come to %ld instead of %ld", error, (long)sum, (long)expected);
}

static void run_loop(const char *input, int records) {
    if (records > RECORDS_MAX) FAIL("at most %d records", RECORDS_MAX);
    loop_t loop = {.input = input, .records = records, .producer = transactional(0), .consumer = member(input)};
    loop.queue = queue_get_consumer(loop.consumer);
    int64_t before = total_end(loop.producer);
    double took, used;
    long counted;
    pthread_t thread;
    pthread_create(&thread, NULL, loop_on, &loop);
    while (!atomic_load(&done)) usleep(1000);
    watch(&took, &used, &counted);
    pthread_join(thread, NULL);
    int markers = records < partitions ? records : partitions;
    must_have_grown(loop.producer, before, (int64_t)atomic_load(&done) * (records + markers));
    must_have_committed(&loop, (int64_t)atomic_load(&done) * records);
    print_rate(took, used, counted);
}

int main(int argc, char **argv) {
    if (argc < 7) { fprintf(stderr, "usage: see the head of transactions.c\n"); return 2; }
    open_library(argv[1]);
    bootstrap = argv[3];
    topic_name = argv[4];
    warm_seconds = atof(argv[5]);
    seconds = atof(argv[6]);
    partitions = argc > 7 ? atoi(argv[7]) : 1;
    if (!strcmp(argv[2], "rate") && argc == 10) run_rate(atoi(argv[8]), atoi(argv[9]));
    else if (!strcmp(argv[2], "delay") && argc == 7) run_delay();
    else if (!strcmp(argv[2], "loop") && argc == 10) run_loop(argv[8], atoi(argv[9]));
    else return 2;
    fflush(stdout);
    _exit(0);
}
